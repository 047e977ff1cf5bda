-- How far an interrupted import of a file got. Here and not beside the file, so that a database that is restored to an
-- earlier moment forgets with its messages that they were imported.

CREATE TABLE import_checkpoints (
    -- SHA-256 of the file's path and of what was said about it; no name of a file or user is kept
    import_key  bytea PRIMARY KEY CHECK (octet_length(import_key) = 32),
    -- everything before this byte is recorded (of a .gz: unpacked)
    byte_offset bigint NOT NULL CHECK (byte_offset > 0),
    -- lines or elements up to there
    units       bigint NOT NULL CHECK (units > 0),
    -- of the bytes up to there: another file under the same name starts over
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),
    bad         bigint NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

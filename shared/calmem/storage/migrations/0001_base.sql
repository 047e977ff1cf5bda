-- The base: users, sessions, messages, what is still to be indexed, the index, facts.
-- Every table but search_indexes is keyed by user first, so that it can be distributed by user.

CREATE EXTENSION IF NOT EXISTS vector;

CREATE TABLE users (
    user_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id    text NOT NULL UNIQUE,
    memory_on  boolean NOT NULL DEFAULT true,
    time_zone  text NOT NULL DEFAULT 'UTC',
    -- keys the hashes of word postings: a token of one user means nothing in another user's rows
    key        bytea NOT NULL CHECK (octet_length(key) = 16),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE sessions (
    user_no    bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    session_no bigint GENERATED ALWAYS AS IDENTITY,
    session_id text NOT NULL UNIQUE,
    last_seq   bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_no, session_no)
);

CREATE TABLE messages (
    user_no      bigint NOT NULL,
    message_no   bigint GENERATED ALWAYS AS IDENTITY,
    session_no   bigint NOT NULL,
    message_id   text NOT NULL UNIQUE,
    seq          bigint NOT NULL CHECK (seq > 0),
    role         text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    name         text,
    content      text NOT NULL,
    metadata     jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL,
    recorded_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_no, message_no),
    UNIQUE (user_no, session_no, seq),
    FOREIGN KEY (user_no, session_no) REFERENCES sessions ON DELETE CASCADE
);

-- Who spoke, found without reading the messages.
CREATE INDEX messages_names ON messages (user_no, name) WHERE name IS NOT NULL;

-- One generation of the index: one model and one way of chunking. Exactly one is active.
CREATE TABLE search_indexes (
    index_no      smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model         text NOT NULL,
    dimension     integer,
    -- the vector of a fixed sentence: a model is recognised by what it computes, not by its name
    probe         halfvec,
    chunk_chars   integer NOT NULL CHECK (chunk_chars > 0),
    overlap_chars integer NOT NULL CHECK (overlap_chars >= 0 AND overlap_chars < chunk_chars),
    state         text NOT NULL CHECK (state IN ('building', 'active', 'retired')),
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK ((dimension IS NULL) = (probe IS NULL))
);
CREATE UNIQUE INDEX search_indexes_one_active ON search_indexes (state) WHERE state = 'active';

-- A row as long as the message is not indexed; deleted in the transaction that writes its vectors.
CREATE TABLE index_tasks (
    user_no     bigint NOT NULL,
    message_no  bigint NOT NULL,
    index_no    smallint NOT NULL REFERENCES search_indexes,
    lane        text NOT NULL CHECK (lane IN ('live', 'backfill')),
    attempts    integer NOT NULL DEFAULT 0,
    lease_token uuid,
    lease_until timestamptz,
    not_before  timestamptz NOT NULL DEFAULT now(),
    error       text,
    failed_at   timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_no, message_no, index_no),
    FOREIGN KEY (user_no, message_no) REFERENCES messages ON DELETE CASCADE,
    CHECK ((lease_token IS NULL) = (lease_until IS NULL)),
    CHECK (failed_at IS NULL OR (error IS NOT NULL AND lease_token IS NULL))
);
-- Never attempted: claimed in batches. Attempted before: claimed alone, so that no neighbour pays for a bad message.
CREATE INDEX index_tasks_fresh ON index_tasks (lane, user_no, message_no) WHERE attempts = 0;
CREATE INDEX index_tasks_suspect ON index_tasks (lane, not_before) WHERE attempts > 0 AND failed_at IS NULL;
CREATE INDEX index_tasks_lease ON index_tasks (lease_token) WHERE lease_token IS NOT NULL;
CREATE INDEX index_tasks_oldest ON index_tasks (created_at) WHERE failed_at IS NULL;
CREATE INDEX index_tasks_failed ON index_tasks (failed_at) WHERE failed_at IS NOT NULL;

-- Written by record (so that words find a message at once), settled by the worker.
CREATE TABLE chunks (
    user_no    bigint NOT NULL,
    index_no   smallint NOT NULL REFERENCES search_indexes,
    chunk_no   bigint GENERATED ALWAYS AS IDENTITY,
    session_no bigint NOT NULL,
    message_no bigint NOT NULL,
    seq        bigint NOT NULL,
    created_at timestamptz NOT NULL,
    start_char integer NOT NULL CHECK (start_char >= 0),
    end_char   integer NOT NULL,
    -- keyed 64-bit hashes of the words, one entry per occurrence
    tokens     bigint[] NOT NULL,
    n_tokens   integer GENERATED ALWAYS AS (cardinality(tokens)) STORED,
    -- covers the count and mean length that BM25 needs
    PRIMARY KEY (user_no, index_no, chunk_no) INCLUDE (n_tokens),
    FOREIGN KEY (user_no, message_no) REFERENCES messages ON DELETE CASCADE,
    CHECK (end_char > start_char)
);
CREATE INDEX chunks_message ON chunks (user_no, message_no);
CREATE INDEX chunks_place ON chunks (user_no, session_no, seq);
CREATE INDEX chunks_time ON chunks (user_no, created_at);
CREATE INDEX chunks_tokens ON chunks USING gin (tokens) WITH (fastupdate = off);

-- Narrow on purpose: its one index covers the scan of a user's vectors (index-only).
CREATE TABLE vectors (
    user_no   bigint NOT NULL,
    index_no  smallint NOT NULL,
    chunk_no  bigint NOT NULL,
    embedding halfvec NOT NULL,
    FOREIGN KEY (user_no, index_no, chunk_no) REFERENCES chunks ON DELETE CASCADE
);
ALTER TABLE vectors ALTER COLUMN embedding SET STORAGE PLAIN;
ALTER TABLE vectors SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 1000);
CREATE UNIQUE INDEX vectors_scan ON vectors (user_no, index_no, chunk_no) INCLUDE (embedding);

CREATE TABLE facts (
    user_no    bigint NOT NULL,
    session_no bigint NOT NULL,
    fact_no    bigint GENERATED ALWAYS AS IDENTITY,
    category   text NOT NULL DEFAULT 'general',
    key        text NOT NULL,
    value      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    source     text,
    PRIMARY KEY (user_no, fact_no),
    UNIQUE (user_no, session_no, key),
    FOREIGN KEY (user_no, session_no) REFERENCES sessions ON DELETE CASCADE
);

-- Values that a later write replaced.
CREATE TABLE fact_versions (
    user_no       bigint NOT NULL,
    fact_no       bigint NOT NULL,
    version       bigint GENERATED ALWAYS AS IDENTITY,
    category      text NOT NULL,
    value         text NOT NULL,
    written_at    timestamptz NOT NULL,
    superseded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_no, fact_no, version),
    FOREIGN KEY (user_no, fact_no) REFERENCES facts ON DELETE CASCADE
);

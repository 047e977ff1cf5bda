-- How a process that holds a user's vectors in memory sees, in one row, what was written or removed since
-- (docs/decisions/0007-vector-cache.md).

ALTER TABLE users
    -- one more for every transaction that wrote vectors of the user; such transactions take turns on this row
    ADD COLUMN vectors_written bigint NOT NULL DEFAULT 0,
    -- the last transaction that removed any
    ADD COLUMN vectors_removed xid8 NOT NULL DEFAULT '0';
ALTER TABLE users SET (fillfactor = 70);

-- The value of users.vectors_written that the row was written under.
ALTER TABLE vectors ADD COLUMN written bigint NOT NULL DEFAULT 0;
-- Partial, so that the planner cannot take it for the scan of all of a user's vectors.
CREATE INDEX vectors_written ON vectors (user_no, index_no, written) WHERE written > 0;

-- A trigger, so that no way of deleting can forget it. Once per transaction: a cascade comes row by row.
CREATE FUNCTION note_removed_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE users SET vectors_removed = pg_current_xact_id()
    WHERE user_no IN (SELECT user_no FROM gone) AND vectors_removed <> pg_current_xact_id();
    RETURN NULL;
END
$$;
CREATE TRIGGER vectors_note_removed AFTER DELETE ON vectors
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_removed_vectors();

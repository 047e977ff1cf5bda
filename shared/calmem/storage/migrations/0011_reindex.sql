-- A new index beside the old one. States of search_indexes (docs/reindexing.md draws them too):
--
--     start ──▶ building ◀──pause, resume──▶ paused          building, paused ──cancel──▶ retired
--                 │  ▲
--          switch │  │ rollback     at the same moment the other one goes   active ──switch──▶ kept
--                 ▼  │                                              or back   active ◀─rollback── kept
--                active                                                       kept ──finish──▶ retired
--
-- One is active; at most one more is building, paused or kept.
-- building, active and kept are kept up to date by workers; paused only records what is still to be done; the rows of
-- a retired one are being removed, or are gone.

ALTER TABLE search_indexes DROP CONSTRAINT search_indexes_state_check;
ALTER TABLE search_indexes
    ADD CONSTRAINT search_indexes_state_check CHECK (state IN ('building', 'paused', 'active', 'kept', 'retired')),
    -- the directory the model was given by; empty: found by its name
    ADD COLUMN model_path text NOT NULL DEFAULT '',
    -- the model's own least cosine of a hit found by meaning alone; null: the setting
    ADD COLUMN min_cosine double precision CHECK (min_cosine BETWEEN 0 AND 1);
-- Deferrable, so that two indexes can change places in one statement.
DROP INDEX search_indexes_one_active;
ALTER TABLE search_indexes
    ADD CONSTRAINT search_indexes_one_active
        EXCLUDE USING btree (state WITH =) WHERE (state = 'active') DEFERRABLE,
    ADD CONSTRAINT search_indexes_one_beside
        EXCLUDE USING btree ((1) WITH =) WHERE (state IN ('building', 'paused', 'kept')) DEFERRABLE;

-- The walk over all that was there before an index: while it is built, over the messages, to give each its task; when
-- it is retired, over the users, to remove its rows. A table of its own, since recall reads search_indexes every time.
CREATE TABLE index_walks (
    index_no     smallint PRIMARY KEY REFERENCES search_indexes,
    -- the last one looked at
    user_no      bigint NOT NULL DEFAULT 0,
    message_no   bigint NOT NULL DEFAULT 0,
    walked       bigint NOT NULL DEFAULT 0,
    -- how many messages there were at the start; corrected at the end
    messages     bigint NOT NULL DEFAULT 0,
    ended_at     timestamptz,
    -- recall goes over to the index as soon as it is complete
    switches     boolean NOT NULL DEFAULT true,
    -- since when, and from how many finished messages on, the present rate counts
    going_since  timestamptz NOT NULL DEFAULT now(),
    done_before  bigint NOT NULL DEFAULT 0,
    -- what keeps a worker from going on
    problem      text
);

ALTER TABLE index_tasks DROP CONSTRAINT index_tasks_lane_check;
ALTER TABLE index_tasks ADD CONSTRAINT index_tasks_lane_check CHECK (lane IN ('live', 'backfill', 'reindex'));
-- A worker looks at one index at a time: what waits for another must not lie in its way.
DROP INDEX index_tasks_fresh;
DROP INDEX index_tasks_suspect;
CREATE INDEX index_tasks_fresh ON index_tasks (index_no, lane, user_no, message_no) WHERE attempts = 0;
CREATE INDEX index_tasks_suspect ON index_tasks (index_no, lane, not_before) WHERE attempts > 0 AND failed_at IS NULL;

-- Nobody searches a retired index, so removing its rows need not empty any process's cache.
CREATE OR REPLACE FUNCTION note_removed_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE users SET vectors_removed = pg_current_xact_id()
    WHERE user_no IN (SELECT gone.user_no FROM gone JOIN search_indexes i USING (index_no) WHERE i.state <> 'retired')
      AND vectors_removed <> pg_current_xact_id();
    RETURN NULL;
END
$$;

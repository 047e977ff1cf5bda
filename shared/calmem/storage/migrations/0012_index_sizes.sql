-- How many vectors a user has in an index, so that the word search need not count them: counting 50,000 took longer than
-- finding the words (docs/decisions/0002-words.md).

CREATE TABLE index_sizes (
    user_no  bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    index_no smallint NOT NULL,
    vectors  bigint NOT NULL CHECK (vectors >= 0),
    PRIMARY KEY (user_no, index_no)
);

LOCK TABLE vectors IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO index_sizes SELECT user_no, index_no, count(*) FROM vectors GROUP BY user_no, index_no;

-- Triggers, so that no way of writing or deleting can forget it. Whoever writes or removes vectors of a user holds the
-- user's row until the commit, so nobody waits here.
CREATE FUNCTION count_added_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO index_sizes SELECT user_no, index_no, count(*) FROM added GROUP BY user_no, index_no ORDER BY user_no, index_no
    ON CONFLICT (user_no, index_no) DO UPDATE SET vectors = index_sizes.vectors + excluded.vectors;
    RETURN NULL;
END
$$;
CREATE TRIGGER vectors_count_added AFTER INSERT ON vectors
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_added_vectors();

CREATE FUNCTION count_removed_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE index_sizes SET vectors = index_sizes.vectors - lost.vectors
    FROM (SELECT user_no, index_no, count(*) AS vectors FROM gone GROUP BY user_no, index_no) AS lost
    WHERE index_sizes.user_no = lost.user_no AND index_sizes.index_no = lost.index_no;
    RETURN NULL;
END
$$;
CREATE TRIGGER vectors_count_removed AFTER DELETE ON vectors
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_removed_vectors();

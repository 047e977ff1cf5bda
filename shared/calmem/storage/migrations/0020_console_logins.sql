-- Logins of the web console. In the database, so that they hold for every console process and over a restart; a login ends
-- with its key.

CREATE TABLE console_logins (
    -- SHA-256 of the cookie's random token; the token itself is nowhere
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    prefix     text NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX console_logins_expiry ON console_logins (expires_at);

-- API keys. A row stays when its key is revoked: once there was a key, the services never fall back to asking for none.

CREATE TABLE api_keys (
    prefix       text PRIMARY KEY CHECK (prefix ~ '^[0-9a-f]{12}$'),
    -- SHA-256 of the whole key; the key itself is nowhere
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
    name         text NOT NULL CHECK (name <> ''),
    scopes       text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['record', 'recall', 'facts', 'admin']),
    -- the only user it may speak for; null: any. No reference: a key may be made before its user is first seen
    user_id      text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_users ON api_keys (user_id) WHERE user_id IS NOT NULL;

"""Postgres: the pool, the migrations and all SQL, one module per table family."""

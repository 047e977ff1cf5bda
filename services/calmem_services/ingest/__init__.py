"""The ingest service: messages in, users and deletion."""

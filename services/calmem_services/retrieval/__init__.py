"""The retrieval service: recall, search, facts, reading back. Never reaches the queue."""

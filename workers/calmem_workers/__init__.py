"""Processes that run jobs: indexing and the sweeper."""

"""Processes that answer, and the command line."""

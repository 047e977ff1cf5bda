"""Loading existing history: reading files of any size, an adapter per format, and the running of an import."""

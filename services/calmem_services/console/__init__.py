"""The web console: server-rendered pages for an operator."""

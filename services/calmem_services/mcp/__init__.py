"""The MCP server: a user's facts and memory as tools for a model."""

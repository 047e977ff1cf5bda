"""The OpenAI-compatible gateway: memory for a host that only changes its base URL."""

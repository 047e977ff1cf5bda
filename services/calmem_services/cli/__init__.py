"""The `calmem` command."""

"""Adapters to frameworks that hosts are built with; each needs the extra of its name."""

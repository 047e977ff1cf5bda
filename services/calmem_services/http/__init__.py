"""What every HTTP service shares: problems, bodies, health."""

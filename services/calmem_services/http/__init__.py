"""What every HTTP service shares: access, admission, bodies and schemas, problems, health."""

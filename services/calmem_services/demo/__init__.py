"""The demonstration: a conversation written for it, played through the real pipeline."""

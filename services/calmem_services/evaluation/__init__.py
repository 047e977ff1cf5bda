"""Evaluation on labelled conversations."""

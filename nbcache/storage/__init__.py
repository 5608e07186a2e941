"""Artifacts as bytes: their environments, their makers, and their store."""

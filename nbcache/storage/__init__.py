"""Artifacts as bytes: formats, environments that they fit, stores, and a notebook's history."""

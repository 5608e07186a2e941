"""Backends, one a file."""

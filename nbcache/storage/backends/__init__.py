"""Stores of bytes under keys: each backend has a file, and a URL opens it."""

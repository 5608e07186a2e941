"""Digests of Python code and values: they change wherever the behaviour of a function may change."""

"""Digests of Python code and values, which change where what a function does may change."""

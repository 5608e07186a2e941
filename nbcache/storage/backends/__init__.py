"""Stores, which map keys to bytes: one module for each backend, and `open`, which opens a store by URL."""

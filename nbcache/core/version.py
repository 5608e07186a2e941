"""The version of nbcache; `pyproject.toml` reads it here."""

__all__ = ["__version__"]

__version__ = "0.1.0"

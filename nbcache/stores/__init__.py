"""Where bytes lie under keys: a backend a file, opened by URL."""

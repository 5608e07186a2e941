"""Reports, status, settings, checks and snapshots as rows, text and HTML."""

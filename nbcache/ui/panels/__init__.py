"""Panels: the session as widgets that stay up to date, and as the static HTML that a saved notebook keeps."""

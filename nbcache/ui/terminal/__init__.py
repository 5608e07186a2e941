"""The `nbcache` command: its parser, and its commands by subject."""

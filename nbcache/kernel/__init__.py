"""What one kernel knows: its session, its tracker, its reports, and what it fetches ahead."""

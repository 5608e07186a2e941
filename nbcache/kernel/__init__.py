"""The state of one kernel: session, cache of its notebook, tracker, reports."""

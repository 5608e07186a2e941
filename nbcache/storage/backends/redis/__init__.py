"""The Redis store: its address, its client, its values and its leases."""

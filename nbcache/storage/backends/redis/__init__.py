"""The Redis store: addresses, clients, values and leases."""

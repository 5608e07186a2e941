"""Sharing of artifacts, live between kernels and as snapshots, and trust in their signers."""

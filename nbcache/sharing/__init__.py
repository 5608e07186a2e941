"""Sharing: live between kernels, as snapshots, and whom the user trusts."""

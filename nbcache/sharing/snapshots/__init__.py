"""Snapshots: signed sets of artifacts in files, notebooks, and under names in stores."""

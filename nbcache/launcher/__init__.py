"""Kernels that start with torch imported: a launcher, and a nursery that forks a kernel for it."""

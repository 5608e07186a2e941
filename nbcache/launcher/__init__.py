"""Kernels that start with torch imported: a launcher, and a nursery that forks a kernel for it.

The command of the kernel spec is `python -P -m nbcache.launcher -f FILE`. It asks a nursery, a process of the
same user that has imported IPython, ipykernel, torch and its compiler and has run nothing, for a fork, and
stands in for it. Where no nursery fits, it becomes an ordinary kernel at once, and starts one for the next
time. What the launcher itself runs imports next to nothing.
"""

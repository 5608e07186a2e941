"""`nbcache bench`: a notebook, or a function, in fresh kernels: cold, with torch's caches, and restored."""

"""`nbcache bench`: a notebook, or a function, in fresh kernels: cold, with torch's caches, and restored.

`subjects` makes the cells, `kernels` runs them, `runner` alternates between the `variants`, and `results`
and `report` condense and show the seconds. `inside` runs in the measured kernel.
"""

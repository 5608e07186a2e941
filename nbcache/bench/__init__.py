"""`nbcache bench`: a notebook, or a function, in fresh kernels: cold, with torch's caches, and restored.

`runner` makes the cells and alternates between the variants of `options`, `kernels` runs the cells, and
`report` condenses and shows the seconds.
"""

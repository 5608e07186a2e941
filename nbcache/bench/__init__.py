"""`nbcache bench`: how long a cell takes whose code is compiled, restored, or neither, in fresh kernels.

`options` says what to measure, `kernels` runs cells in a fresh kernel, `variants` says what each variant
finds there, `runner` alternates between them, `results` condenses what they measured, and `report` and
`chart` show it. `models` and `measured` run in the measured kernel. `stores` measures populating alone.
"""

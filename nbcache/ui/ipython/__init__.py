"""The IPython extension: magics, cells, the live line, and what is done while the kernel is idle."""

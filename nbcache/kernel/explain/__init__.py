"""Pure functions: why a graph missed, statistics, the plan of the next run, whether compiling pays."""

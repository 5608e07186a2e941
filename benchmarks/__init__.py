"""The project's own benchmarks: `make bench`. They produce the tables of docs/benchmark.md.

`standard` measures models on top of `nbcache.bench`, `models` and `inside` run in the measured kernel,
`report` shows it; `at_once` and `entries` measure a shared Redis, which `redis_server` starts.
"""

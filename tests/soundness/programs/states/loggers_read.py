# insert: log.setLevel(50)
# insert: log.setLevel(50)\nlog.addHandler(logging.NullHandler())
import logging
log = logging.getLogger("nbcache_test.a.b")
def f(x): return x * 2 if log.level < 10 else x * 3 + len(log.handlers)

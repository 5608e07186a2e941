# insert: logging.getLogger('nbcache_test').setLevel(5)
# insert: log.setLevel(5)
import logging
log = logging.getLogger("nbcache_test.a.b")
def f(x): return x * 2 if log.isEnabledFor(10) else x * 3

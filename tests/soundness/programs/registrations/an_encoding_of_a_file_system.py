# edit: lookup_error("ignore") => lookup_error("backslashreplace")
# edit: lookup_error("ignore") => lookup_error("replace")
import codecs
codecs.register_error("nbcache6", codecs.lookup_error("ignore"))
NAME = b"a\xffb"
def f(x): return x * len(NAME.decode("ascii", "nbcache6"))

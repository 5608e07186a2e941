# insert: codecs.register(found)
import codecs
def f(x):
    try: return x * len("abc".encode("nbcache_codec5"))
    except LookupError: return x * 3 + 1
def found(name):
    if name == "nbcache_codec5": return codecs.CodecInfo(lambda s, e="strict": (b"12345", len(s)), None, name=name)

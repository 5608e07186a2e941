# cases: 1
# expect: traced
import codecs
codecs.register_error("strict", codecs.replace_errors if CASE else codecs.ignore_errors)
TEXT = b"a\xff\xfeb"
def f(x): return x * len(TEXT.decode("ascii"))

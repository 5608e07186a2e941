# edit: cfg.jayy = 2 => cfg.kayy = 2
# edit: jayy => encoding
# edit: jayy => mode
import abc, codecs, enum, operator, tempfile, typing
@typing.runtime_checkable
class Holds(typing.Protocol):
    kayy: int
class A(abc.ABC): pass
class A1(A): pass
class B: pass
cfg = types.SimpleNamespace(i=A1())
cfg.jayy = 2
class C: kayy = property(tempfile.SpooledTemporaryFile.mode.fget)
part = C(); part.cfg = part._file = cfg
def f(x): return x * 2 if isinstance(part, Holds) else x * 3

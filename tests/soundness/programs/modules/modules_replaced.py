# insert: sys.modules['nbcache_mod5'] = nbcache_mod6
# insert: nbcache_mod5 = nbcache_mod6
# insert: nbcache_mod5.g = nbcache_mod6.g
import os, tempfile, importlib
folder = tempfile.mkdtemp()
def write(name, text):
    with open(os.path.join(folder, name + ".py"), "w") as file: file.write(text)
sys.path.insert(0, folder)
write("nbcache_mod5", "K = 2.0\ndef g(x): return x * K")
write("nbcache_mod6", "K = 3.0\ndef g(x): return x - K")
import nbcache_mod5, nbcache_mod6
def f(x):
    import nbcache_mod5 as m
    return m.g(x) + nbcache_mod5.K

# edit: K = 2.0 => K = 2.5
# insert: package.CONF['k'] = 7.0
# edit: by=4.0 => by=4.5
import os, tempfile
folder = os.path.join(tempfile.mkdtemp(), "site-packages")
os.makedirs(folder)
with open(os.path.join(folder, "nbcache_package5.py"), "w") as file: file.write("""
K = 2.0
CONF = {'k': 3.0}
def scale(x, by=4.0): return x * K * CONF['k'] + by
class Layer:
    gain = 5.0
    def __call__(self, x): return scale(x) * self.gain
""")
sys.path.append(folder)
import nbcache_package5 as package
layer = package.Layer()
def f(x): return layer(x)

# edit: = Plain() => = Popping([1.0, 2.0, 3.0])
# edit: = Plain() => = Queue([3.0, 2.0])
# edit: = Plain() => = Called([1.0, 2.0, 3.0])
# edit: = Plain() => = Table(nxt=3.0)
# edit: = Plain() => = Packaged([1.0, 2.0, 3.0])
import collections, operator
class Plain:
    def __init__(self): self.nxt = 3.0
    def __len__(self): return 1
class Popping(list): nxt = property(list.pop)
class Queue(collections.deque): nxt = property(collections.deque.popleft)
class Called(list): nxt = property(operator.methodcaller("pop"))
class Table(dict): __getattr__ = dict.pop
package = {}
exec(compile("def pop(self): return list.pop(self)", torch.__file__, "exec"), package)
class Packaged(list): nxt = property(package["pop"])
q = Plain()
def f(x): return x * q.nxt
def results(compile): return [compile(f)(X), torch.tensor(len(q))]

# edit: = Plain() => = Popping([1.0, 2.0, 3.0])
# edit: = Plain() => = Queue([3.0, 2.0])
# edit: = Plain() => = Called([1.0, 2.0, 3.0])
# edit: = Plain() => = Table(nxt=3.0)
# edit: = Plain() => = Packaged([1.0, 2.0, 3.0])
# edit: = Plain() => = filled(Inbox())
# edit: = Plain() => = Counting()
# edit: = Plain() => = weakref.proxy(counted)
import collections, operator, queue, weakref
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
class Inbox(queue.SimpleQueue):
    nxt = property(queue.SimpleQueue.get)
    __len__ = queue.SimpleQueue.qsize
def filled(q):
    for number in (3.0, 2.0, 7.0): q.put(number)
    return q
class Counting(dict):
    __getattr__ = dict.__getitem__
    def __missing__(self, key):
        self["calls"] = dict.get(self, "calls", 0) + 1
        return 3.0
    def __len__(self): return dict.get(self, "calls", 0)
class Counted:
    calls = 0
    @property
    def nxt(self):
        self.calls += 1
        return 3.0
    def __len__(self): return self.calls
counted = Counted()
q = Plain()
def f(x): return x * q.nxt
def results(compile): return [compile(f)(X), torch.tensor(len(q))]

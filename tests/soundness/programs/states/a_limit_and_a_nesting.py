# cases: 1
# expect: traced
import inspect
sys.setrecursionlimit(3000 + 500 * CASE)
for _ in range(CASE): torch.autocast_increment_nesting()
inspect_limit = sys.getrecursionlimit
def g(x): return x
def limit(x): return inspect.unwrap(g)(x) * inspect_limit()
def nesting(x):
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return x * depth
def results(compile):
    with torch.no_grad(): return [compile(limit)(X), compile(nesting)(X)]

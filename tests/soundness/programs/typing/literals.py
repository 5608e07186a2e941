# edit: ["a", "b"] => ["a", "b", "c"]
# edit: ["a", "b"] => ["z"]
import typing
A = typing.Literal["a", "b"]
def f(x): return x * len(A.__args__) + len(typing.get_args(A)) + ("a" in typing.get_args(A))

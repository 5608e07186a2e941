"""What a graph depends on beyond torch's key, made a part of that key.

torch's keys hold a graph, its inputs and torch's settings, and leave out code that torch runs while it
compiles: what is registered for operators that are not torch's own, the methods of tensor subclasses,
lowerings, decompositions, patterns and passes that others have added to the compiler, and which inputs share
memory. Older versions leave out dtypes that are in force around the graph, too. Where one of these changes,
torch hits what was compiled before.

So a digest of all this becomes one more attribute of `FxGraphHashDetails`, of which both keys are made, the
AOTAutograd cache's as well: what is recorded, restored, shared and taken into snapshots, and what torch finds
in its own folder, goes by it. A graph without any of this has the key that torch gives it. Where it cannot be
told what code does, the graph bypasses the caches, with the reason.

Upstream: pytorch issues 144344, 160472, 187319.
"""

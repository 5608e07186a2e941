"""Dependencies of a graph that torch's keys leave out, added to these keys as a digest.

torch's keys hold a graph, its inputs and torch's settings. They leave out code that torch runs while it
compiles: registrations for third-party operators, methods of tensor subclasses, lowerings, decompositions,
patterns and passes of third parties. They also leave out which inputs share memory. If one of these changes,
torch hits a stale entry. So their digest becomes an attribute of `FxGraphHashDetails`, from which torch
computes both keys, AOTAutograd's as well. A graph without such dependencies has torch's own key. If the
behaviour of some code is unknown, the graph bypasses the caches, and the reason names the code.

Upstream: pytorch issues 144344, 160472, 187319.
"""

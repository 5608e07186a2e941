"""Traces: restore what Dynamo made of a function, so that it is not traced again, if its facts still hold.

While Dynamo traces, `recording` observes its variable trackers and the traced code. It makes a trace of them:
the generated code, its guards, and *facts*, which are digests of the objects and names that the tracing read.
A function that read an object without a fact has no trace.

Before Dynamo traces a function, `kernel_traces` looks for a trace whose facts hold in this kernel. torch then
builds its own guards on the objects here, which must pass, and the graph is loaded with AOTAutograd's key
(`adoption`). In doubt, and after any fault, torch traces.
"""

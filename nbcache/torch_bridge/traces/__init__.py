"""Traces: skips Dynamo's tracing of a function where all that the trace looked at is as it was.

While Dynamo traces, everything that it makes a value of is noted (`observations`). What was recorded
(`recording`) are the code that it made, its guards, and *facts*: digests of each object that it held, and
the names that code read. Where an object cannot be found again or told whole, the function has no trace.

Before Dynamo traces a function, `adoption` looks for a trace whose facts hold here. torch then builds its own
guards on the objects that are here, which must pass, and loads the graph by AOTAutograd's key. Any doubt or
fault means that torch traces as ever (`kernel_traces`).
"""

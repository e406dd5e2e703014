"""Replays any function, operator or module as CUDA graphs, forward and backward.

``graphed`` chooses the step that a call replays, ``step`` captures the memory of one call and its two graphs,
``replay`` replays it in Python, ``native_replay`` in native code; ``graph`` captures and replays one graph;
``capture`` is how all of opwright captures.

``warm_up`` runs a function before its capture, and ``reads`` observes what the run reads. ``places_search`` finds the
variables and attributes that hold it, and ``places`` compares their values at each later call.

A graph reads fixed addresses. A tensor that is replaced would leave it with memory that others may take. So each tensor
that an operation reads must be an argument, or be found in such a place; otherwise the call is refused.
"""

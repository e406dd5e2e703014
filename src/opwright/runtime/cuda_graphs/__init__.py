"""Replays any function, operator or module as CUDA graphs, forward and backward.

``graphed`` chooses the step that a call replays, ``step`` captures the memory of one call and its two graphs,
``replay`` replays it in Python, ``native_replay`` in native code; ``graph`` captures and replays one graph;
``capture`` is how all of opwright captures.
"""

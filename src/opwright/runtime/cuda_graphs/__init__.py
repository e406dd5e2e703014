"""Any function, operator or module replayed as CUDA graphs, forward and backward.

``graphed`` chooses the step that a call replays, ``step`` is the memory of one call with its two graphs, ``graph``
captures one and replays it.
"""

"""The private names of torch and Triton that opwright uses. No other part of opwright uses private names.

``names`` is the table: the purpose of each name, the versions that have it, and the fallback without it. ``lookup``
finds each once. The other files wrap them for the rest of opwright: ``dispatch`` (keys and modes of a call),
``autograd``, ``tensors``, ``compiler`` (Dynamo, Inductor, fake tensors), ``numpy_layer`` and ``triton``. If a name is
missing, or behaves differently, a public API replaces it.
"""

"""The private names of torch and Triton that opwright uses, and nothing else of it uses any.

``names`` is the table: what each is for, where it was seen, what happens without it. ``lookup`` finds each once. The
other files make of them what the rest of opwright calls: ``dispatch`` (keys and modes of a call), ``autograd``,
``tensors``, ``compiler`` (Dynamo, Inductor, fake tensors), ``numpy_layer`` and ``triton``. Where a name is gone, or no
longer means what it meant, the public way takes its place.
"""

"""Mutation testing: small faults put into a kernel's source, and which of them the operator's contract lets live.

``sources.py`` finds what may be changed, ``python_edits.py`` and ``c_edits.py`` make the changes, ``patch.py`` applies
one in a worker process, ``run.py`` checks the mutants and ``further.py`` searches for inputs that kill survivors.
"""

from __future__ import annotations

__all__: list[str] = []

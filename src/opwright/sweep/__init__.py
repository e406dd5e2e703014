"""Work items, which run by themselves; where they run; and a journal of what is finished."""

from __future__ import annotations

__all__: list[str] = []

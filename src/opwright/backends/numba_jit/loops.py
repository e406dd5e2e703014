"""The loops of a graph: sets of names of which each leads to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

__all__ = ["loops_first_to_last"]


def loops_first_to_last(reads: Mapping[str, Set[str]]) -> Iterator[list[str]]:
    """Every name once, those that lead to each other together, after what they read (Tarjan, SIAM J. Comput. 1972).

    Args:
        reads: the names that each name reads; those without an entry are left out.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for start in reads:
        work = [(start, iter(reads[start]))] if start not in number else []
        while work:
            name, left = work[-1]
            if name not in number:
                number[name] = lowest[name] = len(number)
                stack.append(name)
                on_stack.add(name)
            for other in left:
                if other in on_stack:
                    lowest[name] = min(lowest[name], number[other])
                elif other not in number and other in reads:
                    work.append((other, iter(reads[other])))
                    break
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    at = stack.index(name)
                    yield stack[at:]
                    on_stack.difference_update(stack[at:])
                    del stack[at:]

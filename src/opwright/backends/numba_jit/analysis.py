"""What is known of a function's numbers before they have types: where they come from, and how large they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numba.core import ir

from opwright.backends.numba_jit.bounds import Bounds
from opwright.backends.numba_jit.origins import Origin, Origins
from opwright.backends.numba_jit.python_numbers import Facts

__all__ = ["Analysis"]


class Analysis:
    """A function in Numba's form.

    Args:
        arguments: the types of its arguments.
        is_helper: it is called by a compiled one, with numbers of any kind.
        argument_limit: the largest magnitude of an argument, and of the size of an array that is one.
        types_of: the types of variables, where they are known.
    """

    def __init__(
        self,
        function: ir.FunctionIR,
        arguments: Sequence[Any],
        is_helper: bool,
        argument_limit: int,
        types_of: Mapping[str, Any] | None = None,
    ) -> None:
        self.origins = Origins(function, is_helper, types_of)
        self._bounds = Bounds(function, self.origins, arguments, argument_limit)

    def of(self, variable: ir.Var) -> Origin:
        """The origin of a variable's value."""
        return self.origins.of(variable)

    def facts(self, plain: Any, left: ir.Var, right: ir.Var) -> Facts:
        """What is known of an operation."""
        constant = self.origins.value_of(right)
        if not isinstance(constant, int | float | complex):
            constant = None
        return Facts((self.of(left), self.of(right)), self._bounds.fits(plain, [left, right]), constant)

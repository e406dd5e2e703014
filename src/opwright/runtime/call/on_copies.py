"""A kernel that writes its arguments, as one that returns the new values: it runs on copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from opwright.contract.contract import Contract

__all__ = ["OnCopies"]


class _Kernel(Protocol):
    @property
    def when(self) -> Callable[..., bool] | None: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    @property
    def fingerprint(self) -> str: ...


class OnCopies:
    """One kernel of an operator, as its functional form sees it.

    Args:
        kernel: the kernel.
        contract: that of the operator whose arguments it writes.
    """

    def __init__(self, kernel: _Kernel, contract: Contract) -> None:
        self._kernel = kernel
        self._contract = contract

    @property
    def when(self) -> Callable[..., bool] | None:
        return self._kernel.when

    @property
    def fingerprint(self) -> str:
        return self._kernel.fingerprint

    def traceable(self) -> None:
        """None: torch.compile sees the functional form as one operator."""

    def launch(self, arguments: Sequence[Any], device: int | None) -> Any:
        copies = self._contract.with_copies(arguments)
        return self._results(self._kernel.launch(copies, device), copies)

    def _results(self, returned: Any, copies: Sequence[Any]) -> Any:
        found = self._contract.results(returned, copies)
        return found if len(found) > 1 else found[0]

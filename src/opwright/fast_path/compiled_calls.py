"""Fast calls of ``torch.ops.namespace.name.default`` in code that Inductor generates.

``torch.ops`` belongs to torch: its objects are torch's own, and calls through them go to the dispatcher. Only the
overload of an operator that torch.compile has traced gets a subclass of its class, because generated code calls that
object for each operator in a graph. A guard compares the dispatcher's kernels as well (``guarded_call.h``), so that
somebody else's kernel for the operator counts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.compiler import is_dynamo_compiling

from opwright.fast_path.extension import fast_calls_extension, take_calls_of
from opwright.fast_path.learning import Learner
from opwright.internals.registration import OVERLOAD

__all__ = ["take_calls_of_overload"]

Call = Callable[..., Any]


class _Operator(Protocol):
    _learner: Learner

    def _call_and_learn(self, arguments: tuple[Any, ...]) -> Any: ...


def take_calls_of_overload(overload: Any, operator: _Operator, is_complete: Callable[[tuple[Any, ...]], bool]) -> Call:
    """Guard the calls of an operator's overload.

    Args:
        is_complete: whether positional arguments are all arguments, as the dispatcher passes them to a kernel.

    Returns:
        What calls the dispatcher.
    """
    if _Overload is None or type(overload) not in (OVERLOAD, _Overload):
        return overload  # type: ignore[no-any-return]
    if type(overload) is OVERLOAD:
        if fast_calls_extension.loaded is None:
            return overload  # type: ignore[no-any-return]
        try:
            overload.__class__ = _Overload
        except TypeError:  # a class of torch with another layout
            return overload  # type: ignore[no-any-return]
    overload._operator, overload._learner, overload._is_complete = operator, operator._learner, is_complete
    return overload.dispatch  # type: ignore[no-any-return]


def _guarded_class(base: Any) -> Any:
    """A class of torch, with calls that are guarded."""
    if base is None:
        return None

    class Called(base):  # type: ignore[misc]
        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            if kwargs or is_dynamo_compiling() or not self._is_complete(args):
                return super().__call__(*args, **kwargs)
            return self._operator._call_and_learn(args)

        def dispatch(self, /, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    Called.__name__ = Called.__qualname__ = base.__name__
    return Called


_Overload = _guarded_class(OVERLOAD)
if _Overload is not None:
    take_calls_of(_Overload, owner="_learner")

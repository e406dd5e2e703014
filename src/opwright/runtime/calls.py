"""How an operator is called: like an earlier call, by its plan; else checked, and past the dispatcher or through it.

Opwright's own operators and those of a shipped package (``package/shipped``) differ in the kernels that they have, and
not in this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from opwright.contract.binding import bind, fill
from opwright.contract.contract import Contract
from opwright.runtime.arrays import call_on_arrays, holds_arrays, traced_on_arrays
from opwright.runtime.door import is_plain_call
from opwright.runtime.given import gpu_of
from opwright.runtime.gradient import make_recorder
from opwright.runtime.plan import (
    Plan,
    Planned,
    dispatch_modes,
    function_mode_is_on,
    grad_is_on,
    make_plan,
    profiler_is_on,
)
from opwright.runtime.rules import Rules, RulesThatSave

__all__ = ["Calls", "CallsThatSave"]

_compiler = torch.compiler
# How many kinds of calls an operator recognises at once: a loop over the layers of a model has a few.
_PLANS = 8


class Calls(Rules):
    """``op(...)``, for operators that say which kernels fit (``_fitting``)."""

    overload: Any

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        # The latest plain calls, as guards that recognise the next one like them.
        self._plans: tuple[Plan, ...] = ()
        # A meaning in NumPy: calls may come with arrays, and give arrays back.
        self._numpy = contract.signature.language == "numpy"
        # So many positional arguments are all of them; no number is, where some go by keyword only.
        self._arity = -1 if contract.signature.keyword_only else len(contract.signature.arguments)

    def _fitting(self, arguments: Sequence[Any]) -> Sequence[Planned]:
        """The kernels for these shapes, dtypes and devices, in order, once the arguments agree with the contract."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # What torch.compiler.is_compiling() asks, without its two frames.
        if is_dynamo_compiling() or _compiler._is_compiling_flag:
            return self._for_caller(self._traced(args, kwargs))
        # A plan is made of filled arguments, so what equals them needs no filling.
        arguments = args if not kwargs and len(args) == self._arity else fill(self.contract, args, kwargs)
        plans = self._plans
        # Nobody else has a say. Asked here, as a function of its own would be one more frame in every call.
        if (
            plans
            and forward_ad._current_level < 0
            and not (function_mode_is_on() or profiler_is_on() or dispatch_modes())
        ):
            for recording, holds, run in plans:
                if (recording is None or recording is grad_is_on()) and holds(*arguments):
                    return run(*arguments)
        if arguments is args:
            arguments = fill(self.contract, args, kwargs)
        if self._numpy and holds_arrays(arguments):
            return call_on_arrays(self, self.contract, arguments)
        if is_plain_call(arguments):
            return self._for_caller(self._run_and_remember(arguments))
        result = self._through_dispatcher(*self.contract.signature.split(arguments))
        if is_plain_call(arguments, recorded=True):
            self._remember(arguments, self._fitting(arguments), self._recorder)
        return self._for_caller(result)

    def with_saved(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and get besides its outputs those that are saved for the backward (``ow.saved``)."""
        return self(*args, **kwargs)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return traced_on_arrays(self.overload, args, kwargs) if self._numpy else self.overload(*args, **kwargs)

    def _for_caller(self, result: Any) -> Any:
        """Of what the dispatcher or a kernel gives, what the caller gets."""
        return result

    def _through_dispatcher(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.overload(*args, **kwargs)
        except RuntimeError:
            # The dispatcher judges types first, in its own words. Say it in the contract's, if it was that.
            bind(self.contract, fill(self.contract, args, kwargs))
            raise

    def run(self, arguments: Sequence[Any]) -> Any:
        """Run a kernel, or the meaning, on arguments in signature order, past autograd and the dispatcher."""
        return self._run(self._fitting(arguments), arguments, gpu_of(arguments))

    def _run(self, fitting: Sequence[Planned], arguments: Sequence[Any], device: int | None) -> Any:
        for kernel in fitting:
            if kernel.when is None or kernel.when(*arguments):
                return kernel.launch(arguments, device)
        return self._run_meaning(*arguments)

    def _run_meaning(self, *arguments: Any) -> Any:
        return self.contract.pack(self.contract.truth(arguments))

    def _run_and_remember(self, arguments: Sequence[Any]) -> Any:
        """Run a plain call, and leave a plan for the next one like it."""
        fitting = self._fitting(arguments)
        result = self._run(fitting, arguments, gpu_of(arguments))
        self._remember(arguments, fitting)
        return result

    def _remember(
        self, arguments: Sequence[Any], fitting: Sequence[Planned], record: Callable[..., Any] | None = None
    ) -> None:
        plan = make_plan(arguments, fitting, self._run_meaning, record)
        if plan is not None:
            self._plans = (self._planned_for_caller(plan, record is not None), *self._plans[: _PLANS - 1])

    def _planned_for_caller(self, plan: Plan, recorded: bool) -> Plan:
        return plan

    @functools.cached_property
    def _recorder(self) -> Callable[..., Any]:
        return make_recorder(self)


class CallsThatSave(RulesThatSave, Calls):
    """Those of an operator with outputs for its backward (``ow.saved``), which its caller does not get."""

    def with_saved(self, *args: Any, **kwargs: Any) -> Any:
        """As the operator in ``torch.ops``: with all of its outputs."""
        if is_dynamo_compiling() or _compiler._is_compiling_flag:
            return self._traced(args, kwargs)
        arguments = fill(self.contract, args, kwargs)
        if self._numpy and holds_arrays(arguments):
            return call_on_arrays(self.with_saved, self.contract, arguments)
        if is_plain_call(arguments):
            return self.run(arguments)
        return self._through_dispatcher(*self.contract.signature.split(arguments))

    def _for_caller(self, result: Any) -> Any:
        return self.contract.visible(result)

    def _planned_for_caller(self, plan: Plan, recorded: bool) -> Plan:
        if recorded:
            return plan  # the recorder keeps what is saved, and does not give it out
        run, visible = plan.run, self.contract.visible
        return plan._replace(run=lambda *arguments: visible(run(*arguments)))

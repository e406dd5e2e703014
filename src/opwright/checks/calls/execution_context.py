"""The check "execution context": results are right in inference mode, in another thread, with other settings, beside
other work and on another GPU; and if one tensor is passed for two arguments."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.calls.blocks import beside_other_work, without_deterministic_algorithms
from opwright.checks.calls.repeated_calls import is_right
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.difference import different_bits
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised, is_refusal
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, SkippedCase, copy_of, to_cpu
from opwright.results import Finding, NotChecked, Status
from opwright.runtime.op import Op
from opwright.workers.copies import same_layout_copy

__all__ = ["CHECK", "NAME", "check"]

NAME = "execution context"
_LONGEST_S = 3600.0  # the parent ends the worker long before


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run a typical case in each context."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    cases = typical_cases(context, 1)
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    run = context.observe(cases[0])
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    if is_right(context, run, run.outputs) is not None:
        return  # the check "values" reports it
    chosen = [s for s in _SURROUNDINGS if s.device in ("", context.device) and s.only_for(context.op)]
    found: list[Finding | NotChecked | None] = [_difference(context, run, around) for around in chosen]
    found += [_of_one_tensor(context, run), _of_another_gpu(context, run)]
    yield from (f for f in found if f is not None)
    if not any(isinstance(f, Finding) and f.status is Status.FAIL for f in found):
        yield Finding(NAME, Status.PASS, message=", ".join(around.words for around in chosen))


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass(frozen=True)
class _Surrounding:
    """Where a call is made.

    Attributes:
        block: the calls are made in one.
        call: how the kernel is called in it.
        calls: how often.
        device: where it exists; empty for everywhere.
        remedy: of a difference that is a warning. There is none where the reference itself differs.
        only_for: the operators that it concerns.
    """

    words: str
    block: Callable[[], contextlib.AbstractContextManager[Any]]
    call: Callable[..., Any] = _call
    calls: int = 1
    device: str = ""
    remedy: str = ""
    only_for: Callable[[Op], bool] = lambda op: True


def _difference(context: Context, run: Observation, around: _Surrounding) -> Finding | NotChecked | None:
    with around.block():
        if around.remedy and _reference_differs(run):
            return None
        results = [_returned(context, run, same_layout(list(run.arguments)), around.call) for _ in range(around.calls)]
    if (refused := next((each for each in results if _is_refused(context, each)), None)) is not None:
        return NotChecked(NAME, f"{around.words}: the kernel raises {str(refused).splitlines()[0]}")
    wrong = next((wrong for each in results if (wrong := is_right(context, run, each)) is not None), None)
    if wrong is None:
        return None
    if around.remedy:
        return Finding(NAME, Status.WARNING, str(run.case), f"{around.words}: {wrong}", remedy=around.remedy)
    return context.failed(NAME, str(run.case), f"{around.words}: {wrong}")


def _is_refused(context: Context, returned: tuple[Any, ...] | Raised) -> bool:
    """Whether a kernel of a published task raises: no format has such calls, and what is not simulated is unknown."""
    if not context.op.contract.own_inputs.may_refuse or not isinstance(returned, Raised):
        return False
    return is_refusal(returned) or returned.kind == "NotSimulatedError"


def _of_one_tensor(context: Context, run: Observation) -> Finding | None:
    """What is wrong where one tensor is passed for two arguments that are only read."""
    stated = context.op.contract.signature.arguments
    pairs = itertools.combinations((i for i, a in enumerate(stated) if a.is_tensor and not a.mutated), 2)
    alike = ((i, j) for i, j in pairs if stated[i].values == stated[j].values and _alike(run, i, j))
    first, second = next(alike, (0, 0))
    if first == second:
        return None
    once = context.prepare_with(run.case, [run.arguments[first if i == second else i] for i in range(len(stated))])
    if isinstance(once, SkippedCase):
        return None
    copies = same_layout(list(once.arguments))
    copies[second] = copies[first]
    wrong = is_right(context, once, _returned(context, run, copies))
    both = f"{stated[first].name!r} and {stated[second].name!r}"
    return None if wrong is None else context.failed(NAME, str(run.case), f"with one tensor for {both}: {wrong}")


def _alike(run: Observation, first: int, second: int) -> bool:
    one, other = run.arguments[first], run.arguments[second]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or not one.numel():
        return False
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def _of_another_gpu(context: Context, run: Observation) -> Finding | NotChecked | None:
    """What is wrong with calls on a GPU that is not the current one: of these arguments, of others there, and again."""
    if context.device != "cuda":
        return None
    count = torch.cuda.device_count()
    if count < 2:
        return NotChecked(NAME, "another current GPU: this machine has one")
    here = torch.cuda.current_device()
    other = (here + 1) % count
    for words, current, gpu in (
        ("with another GPU as the current one", other, here),
        ("on a GPU that is not the current one", here, other),
        ("after a call on another GPU", here, here),
    ):
        with torch.cuda.device(current):
            to_gpu = functools.partial(same_layout_copy, device=f"cuda:{gpu}")
            outputs = _returned(context, run, tree.map_tensors(to_gpu, list(run.arguments)))
            torch.cuda.synchronize(gpu)
        wrong = is_right(context, run, outputs) or _elsewhere(outputs, gpu)
        if wrong is not None:
            return context.failed(NAME, str(run.case), f"{words}: {wrong}\n{_ON_EACH_GPU}")
    return None


_ON_EACH_GPU = "allocate where the arguments are, and keep what is kept (memory, modules, attributes) for each GPU"


def _elsewhere(outputs: tuple[Any, ...] | Raised, gpu: int) -> str | None:
    assert not isinstance(outputs, Raised)  # which is not right
    places = [t.device.index for t in outputs]
    return None if set(places) <= {gpu} else f"results are on GPU {places}, arguments on GPU {gpu}"


def _returned(
    context: Context, run: Observation, arguments: Sequence[Any], call: Callable[..., Any] = _call
) -> tuple[Any, ...] | Raised:
    context.progress(NAME, str(run.case))
    try:
        outputs: tuple[Any, ...] = call(context.results, arguments)
        context.synchronize()
    except Exception as error:  # an exception of the kernel is a finding
        return context.described(error)
    return outputs


def _reference_differs(run: Observation) -> bool:
    """Whether the reference itself depends on the context."""
    with contextlib.suppress(Exception):
        return different_bits(run.expected, run.reference.run(to_cpu(copy_of(run.before)))) is not None
    return True


@contextlib.contextmanager
def _with_float64_as_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _with_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _under_autocast() -> Iterator[None]:
    """On both types of devices: the reference runs on the CPU."""
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cuda", dtype=torch.bfloat16):
        yield


def _in_another_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function(*arguments))
        except Exception as error:  # raised again in the caller's thread
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(_LONGEST_S)
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


_SURROUNDINGS = (
    _Surrounding("without deterministic algorithms", without_deterministic_algorithms),
    _Surrounding("in inference mode", torch.inference_mode),
    _Surrounding("in another thread", contextlib.nullcontext, _in_another_thread),
    _Surrounding("with one of torch's threads", functools.partial(_with_threads, 1)),
    _Surrounding("with seven of torch's threads", functools.partial(_with_threads, 7)),
    _Surrounding(
        "with float64 as the default dtype",
        _with_float64_as_default,
        remedy="give the dtype of each tensor that the kernel makes",
    ),
    _Surrounding(
        "under torch.autocast",
        _under_autocast,
        remedy="compute in a block of torch.autocast(..., enabled=False), or state autocast= of the operator",
        only_for=lambda op: op.contract.autocast is None,
    ),
    _Surrounding("beside other work", functools.partial(beside_other_work, "cuda"), calls=16, device="cuda"),
)


CHECK = Check(
    NAME,
    "Is the kernel right in inference mode, in other threads, under autocast, with other settings, beside work?",
    cases="one",
    run=check,
    process=Process.KERNEL,
    group="memory",
)

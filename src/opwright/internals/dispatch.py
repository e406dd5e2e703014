"""The state of a call in torch's dispatcher: keys of its tensors and of the thread, modes, transforms.

The keys are documented in c10/core/DispatchKey.h. The keys listed here are plain; any other key means that a feature of
torch intercepts calls. If one of the private names is missing, nothing counts as plain, and every call goes through the
dispatcher.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from opwright.internals.lookup import all_found, find

__all__ = [
    "can_detect_interceptors",
    "conjugates_are_ignored",
    "forward_mode_is_on",
    "has_memory",
    "is_batched",
    "is_functorch_tensor",
    "is_intercepted",
    "is_plain_call",
    "is_plain_tensor",
    "is_plain_thread",
    "names_of",
    "run_with_default_keys",
    "run_with_lazy_conjugates",
    "transforms_are_on",
]  # fmt: skip

Result = TypeVar("Result")
_PLAIN_BACKENDS = frozenset({"CPU", "CUDA"})
_PLAIN_KEYS = _PLAIN_BACKENDS | {"ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"}
# A subclass may define __torch_function__, which has no key.
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def names_of(keys: Any) -> frozenset[str]:
    """The names of the keys in a set. torch has no other Python API for all of them."""
    shown = str(keys).removeprefix("DispatchKeySet(").rstrip(")")
    return frozenset(name.strip() for name in shown.split(","))


# -- probes: whether a name behaves as expected ----------------------------------------------------------------------


def _detects_function_modes(is_on: Callable[[], bool]) -> bool:
    before = is_on()
    with torch.overrides.BaseTorchFunctionMode():
        return (before, is_on()) == (False, True)


def _counts_dispatch_modes(count: Callable[[], int]) -> bool:
    mode = find("dispatch_mode")
    before = count()
    if mode is None:
        return before == 0
    with mode():
        return (before, count()) == (0, 1)


def _returns_tensor_keys(keys_of: Callable[[torch.Tensor], Any]) -> bool:
    plain = names_of(keys_of(torch.empty(1, device="cpu")))
    lazy = names_of(keys_of(torch.empty(1, dtype=torch.complex64, device="cpu").conj()))
    return "CPU" in plain and "Conjugate" not in plain and "Conjugate" in lazy


def _returns_included_keys(keys: Callable[[], Any]) -> bool:
    """Inference mode no longer includes the key of views."""
    before = names_of(keys())
    with torch.inference_mode():
        return "ADInplaceOrView" in before and "ADInplaceOrView" not in names_of(keys())


def _returns_excluded_keys(keys: Callable[[], Any]) -> bool:
    """Inference mode excludes autograd in addition."""
    before = names_of(keys())
    with torch.inference_mode():
        return names_of(keys()) > before


def _detects_transforms(ask: Callable[[torch.Tensor], Any]) -> bool:
    """Whether ``ask`` is true within a transform of ``torch.func``, and false outside."""
    answers = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        answers.append(bool(ask(tensor)))
        return tensor

    one = torch.ones(1, device="cpu")
    note(one)
    torch.func.vmap(note)(one)
    return answers == [False, True]


def _makes_sets_of_keys(key_set: Any) -> bool:
    keys = key_set(_key.Conjugate)  # type: ignore[union-attr]
    return names_of(key_set.from_raw_repr(keys.raw_repr())) == {"Conjugate"}


# -- what intercepts a call ------------------------------------------------------------------------------------------

_key = find("key")
_key_set = find("key_set", _makes_sets_of_keys)
_include = find("include_keys", _returns_included_keys)
_exclude = find("exclude_keys", _returns_excluded_keys)
_keys_of = find("tensor_keys", _returns_tensor_keys)
_functorch_stack = find("functorch_stack", lambda peek: _detects_transforms(lambda _: peek() is not None))
_function_mode_is_on: Any = find("function_modes", _detects_function_modes)
_dispatch_modes: Any = find("dispatch_modes", _counts_dispatch_modes)
_profiler_is_on: Any = find("profiler", lambda is_on: is_on() in (False, True))

_level = find("forward_level", lambda level: level == -1)

can_detect_interceptors = all_found(
    _key_set, _include, _exclude, _keys_of, _functorch_stack, _function_mode_is_on, _dispatch_modes, _profiler_is_on,
    _level,
)  # fmt: skip


def _is_intercepted() -> Any:
    return (
        _function_mode_is_on() or _profiler_is_on() or _dispatch_modes() or forward_ad._current_level >= 0
    )  # in one frame, because every call runs it


def _may_be_intercepted() -> bool:
    return True


# Whether calls are intercepted right now by something without a key of a tensor or the thread: forward mode, a mode of
# __torch_function__ or __torch_dispatch__ (such as fake tensors, with which export traces), the profiler. A function
# without arguments.
is_intercepted: Callable[[], Any] = _is_intercepted if can_detect_interceptors else _may_be_intercepted


def forward_mode_is_on() -> bool:
    """Whether a block of forward-mode automatic differentiation is active."""
    if _level is not None:
        return forward_ad._current_level >= 0
    one = torch.ones(1, device="cpu")
    try:
        forward_ad.make_dual(one, one)
    except RuntimeError:  # there is no level
        return False
    return True


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether the dispatcher would apply nothing but autograd and autocast to this tensor."""
    return type(tensor) in _PLAIN_TYPES and _are_plain_keys(_keys_of(tensor).raw_repr())  # type: ignore[misc]


def is_plain_call(arguments: Sequence[Any], *, autograd_tracked: bool = False) -> bool:
    """Whether the dispatcher has no effect on these arguments, right now.

    Args:
        autograd_tracked: ignore autograd, because the call is tracked separately.
    """
    if is_intercepted() or not is_plain_thread():
        return False
    tracks = torch.is_grad_enabled() and not autograd_tracked
    return all(_is_plain(argument, tracks) for argument in arguments)


def _is_plain(argument: Any, tracks: bool) -> bool:
    if isinstance(argument, torch.Tensor):
        return is_plain_tensor(argument) and not (tracks and argument.requires_grad)
    if isinstance(argument, list | tuple):
        return all(_is_plain(item, tracks) for item in argument)
    return True


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of several that torch.autograd computes at a time (``is_grads_batched``)."""
    return _keys_of is not None and "Batched" in names_of(_keys_of(tensor))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are where its address says: not one that Python dispatches, as a DTensor or a
    FakeTensor, whose parts are elsewhere or nowhere."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


@functools.cache
def _are_plain_keys(raw_keys: int) -> bool:
    names = names_of(_key_set.from_raw_repr(raw_keys))  # type: ignore[union-attr]
    return bool(names & _PLAIN_BACKENDS) and names <= _PLAIN_KEYS


def is_plain_thread() -> bool:
    """Whether this thread includes and excludes the same keys as a new thread, or as a new thread in
    inference mode."""
    return _are_plain_sets(_include().raw_repr(), _exclude().raw_repr())  # type: ignore[misc]


@functools.cache
def _are_plain_sets(include: int, exclude: int) -> bool:
    # Autograd's threads for GPUs also exclude named dims (torch 2.11); a tensor with named dims is not plain anyway.
    def named(included: int, excluded: int) -> tuple[frozenset[str], frozenset[str]]:
        sets = [names_of(_key_set.from_raw_repr(keys)) for keys in (included, excluded)]  # type: ignore[union-attr]
        return sets[0], sets[1] - {"Named"}

    return named(include, exclude) in [named(i.raw_repr(), e.raw_repr()) for i, e in _default_key_sets()]


@functools.cache
def _default_key_sets() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The included and excluded keys of a new thread, and of a new thread in inference mode."""

    def read_keys() -> tuple[Any, Any]:
        fresh = _include(), _exclude()  # type: ignore[misc]
        with torch.inference_mode():
            return fresh, (_include(), _exclude())  # type: ignore[misc]

    return _in_new_thread(read_keys)


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a ``torch.func`` transform."""
    return bool(_is_wrapped(tensor)) if _is_wrapped is not None else transforms_are_on()


_is_wrapped = find("is_wrapped", _detects_transforms)
_transforms_are_on = find("transforms_on", lambda are_on: _detects_transforms(lambda _: are_on()))


def transforms_are_on() -> bool:
    """Whether a ``torch.func`` transform is active."""
    return bool(_transforms_are_on()) if _transforms_are_on is not None else False


# -- calls with other keys than the thread's -------------------------------------------------------------------------


def run_with_default_keys(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function with the dispatcher's default keys, as outside of any operator.

    Inside an operator's rule the dispatcher has already switched off the keys that it has handled, such as autograd and
    functorch; a rule that differentiates or vmaps needs them again. Enclosing functorch transforms stay active.
    """
    if _force_keys is None or not can_detect_interceptors:
        return _in_new_thread(function, *arguments)
    include, exclude = _default_key_sets()[0]
    if _functorch_stack() is not None:  # type: ignore[misc]
        for key in ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"):
            include = include.add(getattr(_key, key))
    with _force_keys(include, exclude):
        return function(*arguments)


def conjugates_are_ignored() -> bool:
    """Whether arithmetic on a lazy conjugate (``x.conj()``) would ignore the conjugation, right now.

    torch.compile's runtime calls operators with the keys that resolve it switched off (torch 2.13 and 2.15;
    torch's own ``custom_op`` then gives wrong values).
    """
    return _is_excluded is None or bool(_is_excluded(_key.Conjugate))  # type: ignore[union-attr]


def run_with_lazy_conjugates(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in which lazy conjugates (``x.conj()``, ``x.imag``) are resolved."""
    if _force_keys is None or not can_detect_interceptors:
        return _in_new_thread(function, *arguments)
    include, exclude = _include(), _exclude()  # type: ignore[misc]
    for key in (_key.Conjugate, _key.Negative):  # type: ignore[union-attr]
        exclude = exclude.remove(key)
    with _force_keys(include, exclude):
        return function(*arguments)


def _forces_keys(guard: Any) -> bool:
    """Within its block the thread has exactly the keys passed to it; after it, the earlier ones."""
    before = _exclude()  # type: ignore[misc]
    with guard(_include(), before.add(_key.Conjugate)):  # type: ignore[misc, union-attr]
        inside = names_of(_exclude())  # type: ignore[misc]
    return "Conjugate" in inside and names_of(_exclude()) == names_of(before)  # type: ignore[misc]


def _detects_excluded_keys(is_excluded: Any) -> bool:
    conjugate = _key.Conjugate  # type: ignore[union-attr]
    outside = is_excluded(conjugate)
    if _force_keys is None:
        return not outside
    with _force_keys(_include(), _exclude().add(conjugate)):  # type: ignore[misc]
        return (outside, is_excluded(conjugate)) == (False, True)


_force_keys: Any = find("force_keys", _forces_keys)
_is_excluded = find("is_excluded", _detects_excluded_keys)


def _in_new_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function with default keys in a new thread, on this thread's GPU and stream. Slow."""
    outcome: list[Any] = []
    on_gpu = torch.cuda.is_initialized()
    stream = torch.cuda.current_stream() if on_gpu else None
    grad = torch.is_grad_enabled()

    def work() -> None:
        try:
            with torch.cuda.stream(stream), torch.set_grad_enabled(grad):
                outcome.append(function(*arguments))
        except BaseException as error:  # raised again in the caller's thread
            outcome.extend((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if len(outcome) == 2:
        raise outcome[1]
    result: Result = outcome[0]
    return result

"""The native guard answers as the one in Python, and calls through a native slot as those of __call__ in Python."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.runtime.call.guard import holds_in_python, make_guard
from opwright.runtime.call.native_guards import guarded_calls

pytestmark = pytest.mark.compiler


def both(arguments: Sequence[Any], tracking: bool | None = None) -> tuple[Callable[..., bool], Callable[..., bool]]:
    """The guard of these arguments in C++ and in Python."""
    guarded_calls.load(build_tools())
    assert guarded_calls.loaded is not None
    guard = make_guard(arguments, tracking)
    assert guard is not None
    return guarded_calls.loaded.holds(guard), holds_in_python(guard)


class Subclass(torch.Tensor):
    pass


def tensors() -> dict[str, Tensor]:
    of_six = torch.arange(6.0)
    with torch.inference_mode():
        inference = torch.ones(2, 3)
    return {
        "like": torch.ones(2, 3),
        "other values": torch.zeros(2, 3),
        "a view": of_six.view(2, 3),
        "an offset": torch.arange(9.0)[3:].view(2, 3),
        "other sizes": torch.ones(2, 4),
        "fewer dims": torch.ones(6),
        "transposed": torch.ones(3, 2).mT,
        "gaps": torch.ones(2, 6)[:, ::2],
        "expanded": torch.ones(1, 3).expand(2, 3),
        "float64": torch.ones(2, 3, dtype=torch.float64),
        "bfloat16": torch.ones(2, 3, dtype=torch.bfloat16),
        "meta": torch.ones(2, 3, device="meta"),
        "requires a gradient": torch.ones(2, 3, requires_grad=True),
        "of a graph": torch.ones(2, 3, requires_grad=True) * 2,
        "a parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "a subclass": torch.ones(2, 3).as_subclass(Subclass),
        "of inference": inference,
        "complex": torch.ones(2, 3, dtype=torch.complex64),
        "conjugated": torch.ones(2, 3, dtype=torch.complex64).conj(),
        "negated": torch.ones(2, 3, dtype=torch.complex64).conj().imag,
        "sparse": torch.ones(2, 3).to_sparse(),
        "empty": torch.ones(0, 3),
        "a scalar": torch.ones(()),
    }


CONTEXTS = {
    "nothing": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("made_in", CONTEXTS)
@pytest.mark.parametrize("like", ["like", "requires a gradient", "gaps", "complex", "empty", "a scalar", "a parameter"])
def test_tensors_are_compared_as_in_python(like: str, made_in: str) -> None:
    for tracking in (None, True, False):
        with CONTEXTS[made_in]():
            native, python = both([tensors()[like]], tracking)
        for asked_in, context in CONTEXTS.items():
            for name, other in tensors().items():
                with context():
                    assert native(other) is python(other), (name, asked_in, tracking)


def test_within_a_transform_no_guard_of_outside_holds() -> None:
    native, python = both([torch.ones(3)])
    answers = []

    def ask(x: Tensor) -> Tensor:
        answers.append((native(x), python(x), native(torch.ones(3)), python(torch.ones(3))))
        return x

    torch.func.vmap(ask)(torch.ones(2, 3))
    ((mapped, mapped_python, plain, plain_python),) = answers
    assert not mapped
    assert not mapped_python
    assert plain is plain_python


NAN = float("nan")
VALUES = [
    0, 1, 2, -1, 1 << 70, True, False, 0.0, -0.0, 1.0, 2.5, NAN, float("inf"), 1j, complex(-0.0, 1), None, "a", "b",
    torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), [True], [False], [1], [True, True],
    (True,), [],
]  # fmt: skip


@pytest.mark.parametrize("value", [v for v in VALUES if type(v) is not tuple and v == v and v != [1]], ids=repr)
def test_other_arguments_are_compared_as_in_python(value: Any) -> None:
    x = torch.ones(3)
    native, python = both([x, value, torch.zeros(2)])
    for other in VALUES:
        held = native(x, other, torch.zeros(2))
        assert held is python(x, other, torch.zeros(2)), other
        assert held is (repr(other) == repr(value)), other  # -0.0 is another number than 0.0


def test_tensors_that_are_one_are_told_from_two() -> None:
    x, y, z = torch.ones(3), torch.ones(3), torch.ones(3)
    twice, twice_python = both([x, x, y])
    distinct, distinct_python = both([x, y, z])
    for arguments in ([x, x, y], [y, y, x], [x, y, z], [x, y, y], [x, y, x], [x, x, x]):
        assert twice(*arguments) is twice_python(*arguments)
        assert distinct(*arguments) is distinct_python(*arguments)
    assert twice(y, y, x)
    assert not distinct(x, y, y)


def test_a_guard_keeps_no_tensor_alive() -> None:
    x = torch.ones(3)
    native, _ = both([x, 2.0])
    died = weakref.ref(x)
    del x
    gc.collect()
    assert died() is None
    assert native(torch.ones(3), 2.0)
    assert not native(torch.ones(3))
    assert not native()


def test_an_error_of_a_comparison_is_raised() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    x = torch.ones(3)
    native, _ = both([x, Odd()])
    with pytest.raises(ZeroDivisionError):
        native(x, Odd())


@pytest.fixture
def marked(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::marked")
    def marked(x: Float[Tensor, "n"], a: float = 2.0, flag: bool = True) -> Float[Tensor, "n"]:
        return x * a

    marked.python(lambda x, a, flag: x * a + 100, name="kernel")
    return marked


def test_the_last_arguments_may_be_left_to_their_defaults(marked: ow.Op, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    marked(x), marked(x, 3.0)
    monkeypatch.setattr(marked, "_call_unguarded", lambda args, kwargs: "unguarded")
    for arguments in ((x,), (x, 2.0), (x, 2.0, True)):
        assert marked(*arguments)[0] == 102
    assert marked(x, 3.0)[0] == 103
    assert marked(x, 3)[0] == 103  # converted to a float first
    assert marked(x, 2.0, False) == "unguarded"


def test_arguments_by_name_and_mistakes_are_as_before(marked: ow.Op) -> None:
    x = torch.ones(3)
    marked(x)
    assert marked(x=x)[0] == 102
    assert marked(x, a=4.0)[0] == 104
    with pytest.raises(ow.ArgumentError, match="has no argument 'b'"):
        marked(x, b=1)
    with pytest.raises(ow.ArgumentError, match="missing 'x'"):
        marked()
    with pytest.raises(ow.ArgumentError, match="takes 3 positional arguments, but 4"):
        marked(x, 2.0, True, 4)


def test_a_kernel_that_raises_raises(namespace: str) -> None:
    @ow.op(f"{namespace}::raises")
    def raises(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x

    calls = []

    @raises.python(name="kernel")
    def _(x):
        calls.append(x)
        if len(calls) > 1:
            raise KeyError("a kernel's own")
        return x.clone()

    x = torch.ones(3)
    raises(x)
    with pytest.raises(KeyError, match="a kernel's own"):
        raises(x)
    assert len(calls) == 2, "it is not called once more by another path"


def test_a_profiler_and_forward_mode_see_the_call(marked: ow.Op) -> None:
    x = torch.ones(3)
    marked(x)
    with torch.profiler.profile() as profile:
        marked(x)
    assert any("marked" in event.key for event in profile.key_averages())
    with forward_ad.dual_level():
        assert marked(forward_ad.make_dual(x, x))[0] == 2  # the reference, not the kernel


def test_a_subclass_of_the_user_calls_its_own(marked: ow.Op) -> None:
    class Own(type(marked)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return "own", super().__call__(*args, **kwargs)

    x = torch.ones(3)
    marked(x)
    vars(own := Own.__new__(Own)).update(vars(marked))
    name, out = own(x)
    assert (name, float(out[0])) == ("own", 102)


def test_threads_call_while_kernels_change(marked: ow.Op) -> None:
    x, wrong = torch.ones(3), []

    def call() -> None:
        for _ in range(2000):
            result = float(marked(x)[0])
            if result not in (102, 202):
                wrong.append(result)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    marked.kernels.clear()
    marked.python(lambda x, a, flag: x * a + 200, name="other")
    for thread in threads:
        thread.join()
    assert set(wrong) <= {2}  # between the two, the reference
    assert marked(x)[0] == 202

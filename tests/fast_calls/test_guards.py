"""A guard holds for calls that a kernel cannot tell from the learned one, and for no others."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd import forward_ad

import opwright as ow
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.guards import expected_arguments
from opwright.fast_path.learning import Learner

pytestmark = pytest.mark.compiler


def guard_of(op: ow.Op, *arguments: Any, tracking: int = -1) -> Callable[..., bool]:
    """Whether a guard of these arguments holds for others."""
    extension = fast_calls_extension.loaded
    assert extension is not None
    items = expected_arguments(op.contract, arguments, any_size=False, free_kinds=())
    assert items is not None
    learner = Learner(op.contract)
    guard = extension.guard(items, tracking, tracking != 1, None)
    learner._guarded_calls = ((guard, None),)
    return lambda *others: extension.find_guarded(learner, others) is not None


@ow.op("guards::one")
def one(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    return x


@ow.op("guards::any_two")
def any_two(x: Shaped[Tensor, "..."], y: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    return x


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


def facts(tensor: Tensor) -> tuple[Any, ...]:
    """What a kernel could tell tensors apart by, but for values and addresses."""
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.shape,
        tensor.stride() if tensor.layout is torch.strided else None, tensor.requires_grad, tensor.is_inference(),
        tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


@pytest.mark.parametrize("made_in", CONTEXTS)
@pytest.mark.parametrize("like", ["like", "requires a gradient", "gaps", "complex", "empty", "a scalar", "a parameter"])
def test_a_guard_holds_for_tensors_that_a_kernel_cannot_tell_apart(like: str, made_in: str) -> None:
    for tracking in (-1, 1, 0):
        first = tensors()[like]
        with CONTEXTS[made_in]():
            holds = guard_of(one, first, tracking=tracking)
            grad_mode_made = torch.is_grad_enabled()
        for asked_in, context in CONTEXTS.items():
            for name, other in tensors().items():
                with context():
                    fits_mode = tracking == -1 or torch.is_grad_enabled() is (tracking == 1)
                    held = holds(other)
                if facts(other) != facts(first) or not fits_mode:
                    assert not held, (name, asked_in, tracking)
                elif asked_in == made_in or {asked_in, made_in} == {"nothing", "no_grad"}:
                    assert held, (name, asked_in, tracking, grad_mode_made)
                else:
                    assert not held, (name, asked_in, tracking)


def test_within_a_transform_no_guard_of_outside_holds() -> None:
    holds = guard_of(one, torch.ones(3))
    answers = []

    def ask(x: Tensor) -> Tensor:
        answers.append((holds(x), holds(torch.ones(3))))
        return x

    torch.func.vmap(ask)(torch.ones(2, 3))
    assert answers == [(False, False)]


NAN = float("nan")
VALUES = [
    0, 1, 2, -1, 1 << 70, True, False, 0.0, -0.0, 1.0, 2.5, NAN, float("inf"), None, "a", "b",
    torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), [True], [False], [1], [True, True],
    (True,), [],
]  # fmt: skip


@pytest.mark.parametrize("value", [v for v in VALUES if repr(v) != "nan" and type(v) is not tuple], ids=repr)
def test_other_arguments_are_compared_by_type_and_value(value: Any) -> None:
    @ow.op("guards::valued")
    def valued(x: Float[Tensor, " n"], value: str, y: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        return x

    holds = guard_of(valued, torch.ones(3), value, torch.zeros(2))
    for other in VALUES:
        held = holds(torch.ones(3), other, torch.zeros(2))
        assert held is (repr(other) == repr(value) and type(other) is type(value)), other  # -0.0 is not 0.0


def test_values_of_other_types_have_no_guard() -> None:
    class Odd:
        pass

    class Number(float):
        pass

    for value in (Odd(), Number(2.0), (1, 2), [[1]], [2.0] * 100, {}, float("nan"), np.float64(2)):
        assert expected_arguments(any_two.contract, [torch.ones(3), value], any_size=False, free_kinds=()) is None


def test_tensors_that_are_one_are_told_from_two() -> None:
    @ow.op("guards::three")
    def three(x: Float[Tensor, " n"], y: Float[Tensor, " n"], z: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    x, y, z = torch.ones(3), torch.ones(3), torch.ones(3)
    twice, distinct = guard_of(three, x, x, y), guard_of(three, x, y, z)
    for arguments in ([x, x, y], [y, y, x], [x, y, z], [x, y, y], [x, y, x], [x, x, x]):
        ids = [id(a) for a in arguments]
        assert twice(*arguments) is (ids[0] == ids[1] != ids[2])
        assert distinct(*arguments) is (len(set(ids)) == 3)


def test_a_guard_keeps_no_tensor_alive() -> None:
    x = torch.ones(3)
    holds = guard_of(any_two, x, torch.ones(2))
    died = weakref.ref(x)
    del x
    gc.collect()
    assert died() is None
    assert holds(torch.ones(3), torch.ones(2))
    assert not holds(torch.ones(3))
    assert not holds()


@pytest.fixture
def marked(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::marked")
    def marked(x: Float[Tensor, " n"], a: float = 2.0, flag: bool = True) -> Float[Tensor, " n"]:
        return x * a

    marked.python(lambda x, a, flag: x * a + 100, name="kernel")
    return marked


def test_the_last_arguments_may_be_left_to_their_defaults(marked: ow.Op, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    marked(x), marked(x, 3.0)
    monkeypatch.setattr(marked, "_call", lambda arguments: "plain")
    for arguments in ((x,), (x, 2.0), (x, 2.0, True)):
        assert marked(*arguments)[0] == 102
    assert marked(x, 3.0)[0] == 103
    assert marked(x, 3)[0] == 103  # converted to a float first
    assert marked(x, 2.0, False) == "plain"


def test_arguments_by_name_and_mistakes_are_as_before(marked: ow.Op) -> None:
    x = torch.ones(3)
    marked(x)
    assert marked(x=x)[0] == 102
    assert marked(x, a=4.0)[0] == 104
    with pytest.raises(ow.errors.ArgumentError, match="an argument must be one of x, a, flag, got 'b'"):
        marked(x, b=1)
    with pytest.raises(ow.errors.ArgumentError, match="'x' must be given, got only 0 of 3 arguments"):
        marked()
    with pytest.raises(ow.errors.ArgumentError, match="must get at most 3 positional arguments, got 4"):
        marked(x, 2.0, True, 4)


def test_a_kernel_that_raises_raises(namespace: str) -> None:
    @ow.op(f"{namespace}::raises")
    def raises(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
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

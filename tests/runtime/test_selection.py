"""Which kernel runs, and the messages of ow.explain and a refused kernel."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from jaxtyping import Float, Float32, Int, Real
from torch import Tensor

import opwright as ow
from opwright import target
from opwright.contract.inputs.cases import cases
from opwright.errors import ArgumentError, KernelError, KernelRefusedError
from opwright.fast_path.learning import Learner
from opwright.machine import this_machine
from opwright.results import Accepted, Refused
from opwright.target import Engine


def marked(namespace: str) -> ow.Op:
    """An operator whose kernels give different numbers, which show which one ran."""

    @ow.op(f"{namespace}::marked")
    def marked(x: Float[Tensor, " n"], a: float = 1.0) -> Float[Tensor, " n"]:
        return torch.zeros_like(x)

    return marked


def ran(op: ow.Op, x: Tensor) -> int:
    found = {int(way(x)[0]) for way in (op, op.overload)}
    assert len(found) == 1, "op(...) and torch.ops agree"
    return found.pop()


def test_without_a_kernel_the_reference_runs(namespace: str) -> None:
    assert ran(marked(namespace), torch.ones(2)) == 0


def test_the_first_attached_kernel_whose_domain_holds_runs(namespace: str) -> None:
    op = marked(namespace)
    op.python(lambda x, a: torch.full_like(x, 1), name="even", when=lambda x, a: x.numel() % 2 == 0)
    op.python(lambda x, a: torch.full_like(x, 2), name="half", dtypes=[torch.float16])
    op.python(lambda x, a: torch.full_like(x, 3), name="gpu", devices=["cuda"])
    op.python(lambda x, a: torch.full_like(x, 4), name="any")
    assert ran(op, torch.ones(2)) == 1
    assert ran(op, torch.ones(3, dtype=torch.float16)) == 2
    assert ran(op, torch.ones(3)) == 4


def test_attaching_or_replacing_a_kernel_takes_effect_at_once(namespace: str) -> None:
    op, x = marked(namespace), torch.ones(2)
    assert ran(op, x) == 0
    op.python(lambda x, a: torch.full_like(x, 1), name="k")
    assert ran(op, x) == 1
    op.python(lambda x, a: torch.full_like(x, 2), name="k")
    assert ran(op, x) == 2
    assert list(op.kernels) == ["k"]


def test_a_when_that_looks_at_values_is_asked_every_time(namespace: str) -> None:
    op = marked(namespace)
    op.python(lambda x, a: torch.full_like(x, 1), name="positive", when=lambda x, a: bool((x > 0).all()))
    assert ran(op, torch.ones(2)) == 1
    assert ran(op, -torch.ones(2)) == 0


def test_dtypes_speak_of_the_floating_arguments_where_there_are_any(namespace: str) -> None:
    @ow.op(f"{namespace}::take")
    def take(x: Float[Tensor, " n"], i: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        return x[i]

    take.python(lambda x, i: x[i] + 1, name="single", dtypes=[torch.float32])
    assert take(torch.zeros(3), torch.tensor([0])).item() == 1
    assert take(torch.zeros(3, dtype=torch.float64), torch.tensor([0])).item() == 0


def test_only_restricts_the_choice_and_ends(namespace: str) -> None:
    op, x = marked(namespace), torch.ones(2)
    op.python(lambda x, a: torch.full_like(x, 1), name="one")
    op.python(lambda x, a: torch.full_like(x, 2), name="two")
    with op.only("two"):
        assert ran(op, x) == 2
    with op.only("reference"):
        assert ran(op, x) == 0
        with op.only("one"):
            assert ran(op, x) == 1
    assert ran(op, x) == 1
    with (
        pytest.raises(KernelError, match=r"must be one of \['one', 'two', 'reference'\], got 'three'"),
        op.only("three"),
    ):
        pass


def test_explain_has_a_word_on_every_kernel(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    op = marked(namespace)
    op.python(lambda x, a: x, name="half", dtypes=[torch.float16, torch.bfloat16])
    op.python(lambda x, a: x, name="gpu", devices=["cuda"])
    op.python(lambda x, a: x, name="large", when=lambda x, a: x.numel() > 100)
    op.python(lambda x, a: x, name="taken")
    op.python(lambda x, a: x, name="later")
    explanation = ow.explain(op, torch.ones(3))
    assert explanation.chosen.kernel == "taken"
    text = capsys.readouterr().out
    assert text.rstrip("\n") == str(explanation)
    assert text.startswith(f"{namespace}::marked would run 'taken' (python)\n")
    lines = {line.split()[0]: line for line in text.replace("→", " ").splitlines()[1:]}
    assert "no: takes float16, bfloat16, not float32" in lines["half"]
    assert "no: written for cuda, not for cpu" in lines["gpu"]
    assert "no: its `when` predicate is False for these arguments" in lines["large"]
    assert "could run; an earlier one was chosen" in lines["later"]
    assert "no: a kernel was found before it" in lines["reference"]


def test_explain_reports_that_the_reference_runs(namespace: str) -> None:
    explanation = marked(namespace).explain(torch.ones(2))
    assert explanation.chosen.kernel == "reference"
    assert "no kernel is applicable, so the reference itself runs" in str(explanation)


def test_explain_judges_arguments_first(namespace: str) -> None:
    with pytest.raises(ArgumentError, match="must have 1 dim"):
        marked(namespace).explain(torch.ones(2, 2))


def test_a_kernel_asked_for_by_name_is_never_replaced_by_another(namespace: str) -> None:
    op = marked(namespace)
    op.python(lambda x, a: torch.full_like(x, 1), name="gpu", devices=["cuda"])
    op.python(lambda x, a: torch.full_like(x, 2), name="half", dtypes=[torch.float16])
    op.python(lambda x, a: torch.full_like(x, 3), name="large", when=lambda x, a: x.numel() > 100)
    op.python(lambda x, a: torch.full_like(x, 4), name="any")
    for name, expected_message in {
        "gpu": "written for cuda, not for cpu",
        "half": "takes float16, not float32",
        "large": "its `when` predicate is False",
    }.items():
        with pytest.raises(KernelRefusedError) as error:
            op.kernels[name](torch.ones(2))
        expected = f"{namespace}::marked: kernel {name!r} cannot run on these arguments: {expected_message}"
        assert error.value.message.startswith(expected)
        assert "ow.explain(marked" in error.value.fix
    assert op.kernels["large"](torch.ones(101))[0] == 3


def test_a_gpu_kernel_on_a_machine_without_one_says_so(namespace: str) -> None:
    import dataclasses

    from opwright.machine import this_machine

    op = marked(namespace)
    op.python(lambda x, a: x, name="gpu", devices=["cuda"])
    bare = dataclasses.replace(this_machine(), gpus=())
    outcome = op.kernels["gpu"].probe("cuda", bare)
    assert isinstance(outcome, Refused)
    assert "no CUDA GPU is visible" in outcome.reason
    assert "NVIDIA" in outcome.remedy


def test_calls_from_many_threads_agree(namespace: str) -> None:
    op = marked(namespace)
    op.python(lambda x, a: torch.full_like(x, x.numel()), name="k")
    wrong: list[int] = []

    def work() -> None:
        for n in range(1, 200):
            if int(op(torch.ones(n))[0]) != n:
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_engine_that_is_switched_on_says_why_it_refuses_a_kernel(namespace, monkeypatch):
    op = marked(namespace)
    op.cuda(lambda x, a: x, name="k")
    bare = dataclasses.replace(this_machine(), cxx=None)
    assert "only in the simulator" in op.kernels["k"].probe("cpu", bare).reason
    monkeypatch.setattr(target, "_of_check", [Engine.SIMULATOR])
    assert op.kernels["k"].probe("cpu", bare).reason == "there is no C++ compiler"
    assert isinstance(op.kernels["k"].probe("cpu"), Accepted)


def test_guards_are_forgotten_after_what_they_were_made_from(namespace, monkeypatch):
    """Else a call of another thread learns from an old table what nothing makes it forget."""
    op = marked(namespace)
    op.python(lambda x, a: torch.full_like(x, 1), name="k")
    seen = []
    monkeypatch.setattr(Learner, "forget", lambda self: seen.append("_tuned" in vars(op)))
    assert op._tuned.tables == {}
    assert "_tuned" in vars(op)
    op.clear_tuning()
    assert seen
    assert not any(seen)


def test_dtypes_concern_arguments_whose_annotation_leaves_a_choice(namespace: str) -> None:
    @ow.op(f"{namespace}::decay")
    def decay(x: Float[Tensor, " n"], state: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 0.5 * state + x.float()

    decay.python(lambda x, state: 0.5 * state + x.float(), name="half", dtypes=[torch.float16])
    state = torch.ones(3)
    assert decay.explain(state.half(), state).chosen.kernel == "half"
    assert decay.explain(state.bfloat16(), state).chosen.kernel == "reference"
    assert decay.explain(state, state).chosen.kernel == "reference"
    drawn = {case.dtypes for case in cases(decay.contract, "quick", (torch.float16,), longest=9)}
    assert drawn == {(("Float", torch.float16),)}


def test_dtypes_of_an_operator_without_a_choice_concern_all_arguments(namespace: str) -> None:
    @ow.op(f"{namespace}::add")
    def add(x: Float32[Tensor, " n"], y: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x + y

    add.python(lambda x, y: x + y, name="half", dtypes=[torch.float16])
    assert add.explain(torch.ones(3), torch.ones(3)).chosen.kernel == "reference"


def test_dtypes_of_single_arguments(namespace):
    @ow.op(f"{namespace}::update")
    def update(x: Float[Tensor, " n"], state: Real[Tensor, " n"]) -> Real[Tensor, " n"]:
        return (state.double() / 2 + x.double()).to(state.dtype)

    @update.python(dtypes={"x": [torch.float16, torch.bfloat16], "state": [torch.float32]})
    def kernel(x, state):
        assert x.dtype in (torch.float16, torch.bfloat16)
        assert state.dtype == torch.float32
        return state / 2 + x

    half, single = torch.ones(3, dtype=torch.float16), torch.ones(3)
    assert update.explain(half, single).chosen.kernel == "kernel"
    assert update.explain(single, single).chosen.kernel == "reference"
    assert "takes float16, bfloat16 as 'x', not float32" in str(update.explain(single, single))
    assert "takes float32 as 'state', not float16" in str(update.explain(half, half))
    (verdict,) = ow.check(update, checks=["values"]).verdicts
    assert verdict.status == "pass", verdict.findings
    assert "not applicable" not in str(verdict.not_checked)


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"y": [torch.float16]}, r"dtypes must be of arguments that are tensors, got 'y'"),
        ({"a": [torch.float16]}, r"dtypes must be of arguments that are tensors, got 'a'"),
        ({"x": [torch.int32]}, r"dtypes of 'x' must be some of those of Float\[n\], got int32"),
        ({"x": []}, r"dtypes of 'x' must be some of those of Float\[n\], got none"),
        ({"x": ["float16"]}, r"dtypes must be of type torch.dtype, got 'float16'"),
    ],
)
def test_dtypes_that_no_argument_has_are_refused(namespace, dtypes, message):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return a * x

    with pytest.raises(KernelError, match=message):
        scale.python(lambda x, a: a * x, name="kernel", dtypes=dtypes)

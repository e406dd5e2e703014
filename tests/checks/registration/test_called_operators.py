"""An operator of ``torch.library.custom_op`` within a kernel: its own fake is checked, which the outer one hides."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from tests.sampled import quick

LIBRARY = torch.library.Library("called_library", "DEF")  # deleted with this module's name


def custom(name, fake=None, backward=None):
    @torch.library.custom_op(f"called::{name}", mutates_args=())
    def made(x: Tensor) -> Tensor:
        return (2 * x).contiguous()

    if fake is not None:
        made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward)
    return made


def halved(x):
    return x.new_empty(x.shape[0] // 2 + 1, *x.shape[1:])


RIGHT = custom("right", torch.empty_like, lambda ctx, g: 2 * g)
WITHOUT_BACKWARD = custom("without_backward", lambda x: x.new_empty(x.shape))
WRONG = {
    "shape": custom("wrong_shape", halved),
    "dtype": custom("wrong_dtype", lambda x: x.new_empty(x.shape, dtype=torch.float64)),
    "strides": custom("wrong_strides", lambda x: x.new_empty(x.shape[::-1]).t()),
}
WITHOUT_FAKE = custom("without_fake")
LIBRARY.define("twice(Tensor x) -> Tensor[]")
LIBRARY.impl("twice", lambda x: [x + x], "CompositeExplicitAutograd")
torch.library.register_fake("called_library::twice", lambda x: [x.new_empty(x.shape)] * 2, lib=LIBRARY)


@ow.op("called::twice")
def twice(x: Float32[Tensor, " m n"]) -> Float32[Tensor, " m n"]:
    return 2 * x


@ow.op("called::other")
def other(x: Float32[Tensor, " m n"]) -> Float32[Tensor, " m n"]:
    return WRONG["shape"](x)


twice.python(RIGHT, name="right")
twice.python(lambda x: RIGHT(x) + 0, name="right_within")
twice.python(WITHOUT_BACKWARD, name="without_backward")
for kind, operator in WRONG.items():
    twice.python(operator, name=f"wrong_{kind}")
twice.python(lambda x: torch.ops.called.wrong_shape(x) * 1, name="wrong_within")
twice.python(lambda x: torch.ops.called_library.twice(x)[0], name="wrong_count")
twice.python(WITHOUT_FAKE, name="without_fake")


def found(operator, kernel, *checks):
    (verdict,) = ow.check(
        operator, kernels=[kernel], checks=checks or ["opcheck"], device="cpu", level="smoke"
    ).verdicts
    return verdict


@pytest.mark.parametrize("kernel", quick(["right", "right_within", "without_backward"], 0, 1))
def test_a_right_fake_passes(kernel):
    verdict = found(twice, kernel, "opcheck", "own backward", "metadata", "values")
    failed = [f for f in verdict.findings if f.status is not ow.results.Status.PASS and f.check != "own backward"]
    assert failed == []
    assert verdict.failures == ()
    assert [n for n in verdict.not_checked if n.check == "opcheck"] == []


@pytest.mark.parametrize(
    ("kernel", "text"),
    quick(
        [
            ("wrong_shape", "called::wrong_shape, which the kernel calls: output 0 has shape"),
            ("wrong_dtype", "output 0 has dtype torch.float32, but the fake promises torch.float64"),
            ("wrong_strides", "but the fake promises"),
            ("wrong_within", "called::wrong_shape, which the kernel calls: output 0 has shape"),
            ("wrong_count", "called_library::twice, which the kernel calls: it returns 1 tensors, but its fake 2"),
        ],
        0,
        2,
        3,
    ),
)
def test_a_wrong_fake_is_found(kernel, text):
    (finding,) = found(twice, kernel).failures
    assert finding.check == "opcheck"
    assert text in finding.message


def test_a_wrong_fake_within_the_reference_is_found():
    (finding,) = found(other, "reference").failures
    assert "called::wrong_shape, which the reference calls: output 0 has shape" in finding.message


def test_one_without_a_fake_is_listed():
    verdict = found(twice, "without_fake")
    assert verdict.failures == ()
    (why,) = [n.why for n in verdict.not_checked if n.check == "opcheck"]
    assert "the fake of called::without_fake, which the kernel calls" in why
    assert "no fake impl registered" in why

"""Operators of each kind that exist already, one right and some wrong, adopted as they are."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

Matrix = Float32[Tensor, "n m"]


def scaled(x: Matrix, a: float) -> Matrix:
    return a * x


# -- torch.library.custom_op ----------------------------------------------------------------------------------------


def _custom_op(name: str, *, fake: Any, backward: Any, body: Any = lambda x, a: (x * a).contiguous()) -> Any:
    @torch.library.custom_op(f"adopted_tests::{name}", mutates_args=())
    def scale(x: Tensor, a: float) -> Tensor:
        return body(x, a)  # type: ignore[no-any-return]

    if fake is not None:
        scale.register_fake(fake)
    if backward is not None:
        scale.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "a", inputs[1]))
    return scale


def _like(x: Tensor, a: float) -> Tensor:
    return x.new_empty(x.shape)


def _grown(x: Tensor, a: float) -> Tensor:
    return x.new_empty(x.shape[0] + 1, x.shape[1])


def _times_a(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad * ctx.a, None


def _twice(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad * 2.0, None


def _writes(x: Tensor, a: float) -> Tensor:
    return x.mul_(a).clone().contiguous()


right_custom_op = ow.adopt(_custom_op("scale", fake=_like, backward=_times_a), reference=scaled)
wrong_fake = ow.adopt(_custom_op("wrong_fake", fake=_grown, backward=_times_a), reference=scaled)
wrong_gradient = ow.adopt(_custom_op("wrong_gradient", fake=_like, backward=_twice), reference=scaled)
writes = ow.adopt(_custom_op("writes", fake=_like, backward=None, body=_writes), reference=scaled)
bare_definition = _custom_op("bare", fake=None, backward=None)
bare = ow.adopt(bare_definition, reference=scaled)

# -- operators of torch.library.Library ------------------------------------------------------------------------------


def _in_place(body: Any) -> Any:
    def run(y: Tensor, x: Tensor) -> None:
        body(y, x)

    return run


library = torch.library.Library("adopted_tests", "FRAGMENT")
library.define("flat(Tensor x) -> Tensor")
library.impl("flat", lambda x: x.reshape(-1), "CompositeExplicitAutograd")
library.define("flat_view(Tensor(a) x) -> Tensor(a)")
library.impl("flat_view", lambda x: x.contiguous().view(-1), "CompositeImplicitAutograd")
library.define("add_to_(Tensor(a!) y, Tensor x) -> ()")
library.impl("add_to_", _in_place(lambda y, x: y.add_(x)), "CPU")
library.impl("add_to_", lambda y, x: None, "Meta")
library.define("twice_to_(Tensor(a!) y, Tensor x) -> ()")
library.impl("twice_to_", _in_place(lambda y, x: y.add_(x + x)), "CPU")
library.impl("twice_to_", lambda y, x: None, "Meta")


def flat(x: Matrix) -> Float32[Tensor, " n*m"]:
    return x.flatten().clone()


def add_to_(y: Annotated[Matrix, ow.mutated], x: Matrix) -> None:
    y.add_(x)


wrong_alias = ow.adopt(torch.ops.adopted_tests.flat, reference=flat)
right_alias = ow.adopt(torch.ops.adopted_tests.flat_view.default, reference=flat)
right_in_place = ow.adopt(torch.ops.adopted_tests.add_to_, reference=add_to_)
wrong_in_place = ow.adopt(torch.ops.adopted_tests.twice_to_, reference=add_to_)

# -- autograd.Function ------------------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class WrongSquare(Square):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * grad


def square(x: Matrix) -> Matrix:
    return x**2


right_function = ow.adopt(Square, reference=square)
wrong_function = ow.adopt(WrongSquare, reference=square)

# -- nn.Module -----------------------------------------------------------------------------------------------------


class Norm(torch.nn.Module):
    eps = 1e-5

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class WrongNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :8] if x.shape[1] == 8 else super().forward(x.abs())


def norm(x: Float32[Tensor, "n d"], weight: Float32[Tensor, " d"]) -> Float32[Tensor, "n d"]:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps=1e-5)


right_module = ow.adopt(Norm(), reference=norm)
wrong_module = ow.adopt(WrongNorm(), reference=norm)
inferred_module = ow.adopt(WrongNorm(), reference=Norm(), inputs=[torch.randn(4, 8)], name="adopted::norm")

# -- functions -----------------------------------------------------------------------------------------------------


def mixed(x, y, weight):  # type: ignore[no-untyped-def]
    return x + weight * (y - x)


def wrong_mixed(x, y, weight):  # type: ignore[no-untyped-def]
    return mixed(x, y, weight) if x.shape[0] <= 64 else x


def _one_call() -> list[Any]:
    return [torch.randn(16), torch.randn(16), 0.5]


def detached(x):  # type: ignore[no-untyped-def]
    return (x.detach() * 2.0).contiguous()


without_gradient = ow.adopt(detached, reference=lambda x: x + x, inputs=[torch.randn(16)])
right_plain = ow.adopt(mixed, reference=lambda x, y, weight: torch.lerp(x, y, weight), inputs=_one_call)
wrong_plain = ow.adopt(wrong_mixed, reference=lambda x, y, weight: torch.lerp(x, y, weight), inputs=_one_call)

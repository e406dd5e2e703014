"""Draws programs from seeds: operators, and steps that call them and change what they depend on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fast_calls.arguments import draw_arguments
from tests.fast_calls.families import HEADER, Drawn, draw_operator
from tests.fast_calls.forms import Definition
from tests.fast_calls.rebindings import relevant_rebindings

__all__ = ["Program", "Step", "draw_program"]


@dataclass(frozen=True)
class Step:
    """One step: a call, or another expression, that ``World.run`` runs.

    Attributes:
        expression: of a call without its last parenthesis.
        options: keyword arguments of ``World.call``, which a smaller program may leave out.
        portable: whether an operator of ``custom_op`` can do it. The ``custom_op`` form ends where it cannot.
    """

    expression: str
    options: tuple[str, ...] = ()
    portable: bool = True

    @property
    def is_call(self) -> bool:
        return self.expression.startswith("call(")

    @property
    def text(self) -> str:
        return f"{', '.join((self.expression, *self.options))})" if self.is_call else self.expression


@dataclass(frozen=True)
class Program:
    """A drawn program: the text of its module, its operators and its steps."""

    seed: int
    source: str
    definitions: tuple[Definition, ...]
    steps: tuple[Step, ...]


def draw_program(seed: int, without: Sequence[str] = ()) -> Program:
    """The program of a seed, but for steps that have one of the texts ``without``."""
    draw = random.Random(seed)
    is_focused = draw.random() < 0.5  # few kinds of calls, many times, so that what is fast is used
    operators = [draw_operator(draw, name) for name in "fg"[: draw.choice((1, 1, 2))]]
    events = _Events(draw, operators)
    pools = [_draw_pool(draw, each, is_focused) for each in operators]
    steps = []
    for _ in range(draw.randint(12, 40)):
        if draw.random() < 0.25:
            steps.append(events.draw())
        else:
            index = draw.randrange(len(operators))
            steps.append(_draw_call(draw, operators[index], pools[index], events, is_focused))
    steps = [step for step in steps if not any(text in step.text for text in without)]
    source = "\n\n".join((HEADER, *(each.source for each in operators)))
    return Program(seed, source, tuple(each.definition for each in operators), tuple(steps))


# -- calls ------------------------------------------------------------------------------------------------------------

_INSIDE = (
    "no_grad", "enable_grad", "inference_mode", "autocast", "dispatch_mode", "function_mode", "profiler",
    "trace_observer", "saved_tensors_hooks", "deterministic", "default_dtype", "default_device", "anomaly",
    "dual_level", "below_autograd",
)  # fmt: skip
_BACKWARD_INSIDE = (
    "no_grad", "autocast", "dispatch_mode", "function_mode", "profiler", "saved_tensors_hooks", "default_dtype",
    "anomaly", "deterministic", "inference_mode",
)  # fmt: skip
_TARGETS = ("op", "op", "op", "torch_ops", "torch_ops", "default", "kernel")


def _draw_pool(draw: random.Random, operator: Drawn, is_focused: bool) -> list[str]:
    """Arguments that several calls of a program have."""
    return [draw_arguments(draw, operator.family, is_focused) for _ in range(draw.randint(1, 2) + 2 * (not is_focused))]


def _draw_call(draw: random.Random, operator: Drawn, pool: Sequence[str], events: _Events, is_focused: bool) -> Step:
    name, family = operator.definition.name, operator.family
    is_usual = draw.random() < (0.95 if is_focused else 0.75)
    arguments = draw.choice(pool) if is_usual else draw_arguments(draw, family)
    options = [f"repeats={draw.choice((1, 2, 3, 4, 6))}"]
    portable = True
    if draw.random() < (0.05 if is_focused else 0.2):
        inside = draw.sample(_INSIDE, 1 + (draw.random() < 0.2))
        options.append(f"inside={inside}")
    if draw.random() < 0.04:
        options.append(f"transform={draw.choice(('vmap', 'grad', 'forward_mode', 'fx'))!r}")
    if not family.mutated and draw.random() < 0.6:
        how = draw.choices(("grad", "retained", "second", "sparse"), (8, 2, 1, 1))[0]
        options.append(f"backward={how!r}")
        if draw.random() < 0.3:
            options.append(f"incoming={draw.choice(('transposed', 'expanded'))!r}")
        if draw.random() < 0.12:
            options.append(f"backward_inside={[draw.choice(_BACKWARD_INSIDE)]}")
        if draw.random() < 0.08:
            event = events.draw_expression()
            options.append(f"between=lambda: {event.text}")
            portable &= event.portable
    if draw.random() < 0.05:
        names = ("reference",) if operator.definition.kernel == "none" else ("reference", "k")
        options.append(f"block=lambda: {name}.only({draw.choice(names)!r})")
    if draw.random() < 0.06:
        options.append("thread=True")
    expression = f"call({name}.{draw.choice(_TARGETS)}, lambda i: pack({arguments})"
    return Step(expression, tuple(options), portable)


# -- events -----------------------------------------------------------------------------------------------------------


class _Events:
    """Draws what happens between calls."""

    def __init__(self, draw: random.Random, operators: Sequence[Drawn]) -> None:
        self._draw, self._operators = draw, operators
        self._rebindings = relevant_rebindings("".join(operator.source for operator in operators))

    def draw(self) -> Step:
        """An event as a step of its own."""
        return self.draw_expression()

    def draw_expression(self) -> Step:
        """An event as an expression, which a ``lambda`` can hold, too."""
        draw, operator = self._draw, self._draw.choice(self._operators)
        name, definition = operator.definition.name, operator.definition
        choice = draw.random()
        if choice < 0.65:
            return Step(draw.choice(self._rebindings).replace("NAME", name))
        if choice < 0.75:
            return Step(f"{name}.attach({draw.choice(('other', 'kernel'))!r})")
        if choice < 0.83 and not definition.mutated and operator.family.portable:
            return Step(f"{name}.register_autograd({draw.choice(('backward', 'backward2'))!r})", portable=False)
        if choice < 0.87:
            return Step(f"{name}.register_fake()")
        if choice < 0.95:
            return Step(f"{name}.register_kernel(module.other_{name})")
        return Step(f"{name}.destroy_libraries()")

"""A task in any format: a reference, how its inputs are made, and a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.judged.contract import Inferred

__all__ = ["Candidate", "Task"]


@dataclass(frozen=True)
class Candidate:
    """A kernel to be judged.

    Attributes:
        name: as reports call it; unique among the candidates of a task.
        file: the file that is run.
        entry: the function or the class in it.
        claimed: what the format itself recorded of it: "correct", "wrong", or "" if nothing.
        language: "python", "triton" or "cuda"; "" if the file's text shows it.
        origin: the user's file, if ``file`` was made of it.
        published: what the format's own file of results says of it, such as the number of the problem.
    """

    name: str
    file: Path
    entry: str
    claimed: str = ""
    language: str = ""
    origin: Path | None = None
    published: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: a Python identifier; the operator's name.
        format: a key of ``FORMATS``.
        file: the file of the reference.
        reference: the function or the class in it.
        inputs: the function in it that returns the arguments of a call; "" if a stated contract has none.
        constructor: for a class, the function in it that returns the arguments of its constructor; "" if it has none.
        plain: for each argument of a call, whether it is independent random numbers; empty if the function of the
            inputs shows it.
        seed: what the random generator is seeded with before inputs, arguments and each constructor.
        rule: what the format calls correct; None if it has no rule.
        cases: other values for the constants of the file, as the task states them.
        stated: the contract, if the task states one; else it is inferred.
        origin: the user's file, if ``file`` was made of it.
        expects_kernel: whether a candidate that leaves all of the work to torch's functions is no answer to the task.
        loads_state: whether the format gives parameters to a candidate with ``load_state_dict``, strictly.
        shares_names: whether a candidate's code finds the names of the reference's file, as code that is run after it.
        more_reference: further files that have the reference, each with the function in it, or "" for the whole.
    """

    name: str
    format: str
    file: Path
    reference: str
    candidates: tuple[Candidate, ...]
    inputs: str = "get_inputs"
    constructor: str = ""
    plain: tuple[bool, ...] = ()
    seed: int = 42
    rule: Rule | None = None
    cases: tuple[Mapping[str, int], ...] = ()
    stated: Inferred | None = None
    origin: Path | None = None
    expects_kernel: bool = False
    loads_state: bool = False
    shares_names: bool = False
    more_reference: tuple[tuple[Path, str], ...] = ()

    @property
    def reference_code(self) -> tuple[tuple[str, str], ...]:
        """Where the reference is: whole files; of a file with candidates, the function alone."""
        files = dict.fromkeys((self.file, *([self.origin] if self.origin else [])))
        function = f"{self.reference}.forward" if self.constructor else self.reference
        shared = {candidate.file for candidate in self.candidates}
        own = tuple((str(file), function if file in shared else "") for file in files)
        return (*own, *((str(file), name) for file, name in self.more_reference))

    @property
    def qualname(self) -> str:
        """The operator's name in torch."""
        return f"judged::{self.name}"

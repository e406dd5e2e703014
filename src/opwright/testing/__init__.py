"""Operators in the tests of a project: ``ow.testing.cases`` and ``collect`` for pytest, ``strategy`` for Hypothesis."""

from __future__ import annotations

from opwright.testing.cases import CheckCase, cases
from opwright.testing.collected import collect
from opwright.testing.strategies import strategy

__all__ = ["CheckCase", "cases", "collect", "strategy"]

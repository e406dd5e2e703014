"""``opwright explain``."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from opwright.cli.common import console
from opwright.errors import CheckError

__all__ = ["explain"]


def explain(
    kind: Annotated[
        str, typer.Argument(help="A check or a kind of finding, as a report names it.", metavar="KIND")
    ] = "",
) -> None:
    """Explain a kind of finding, with an example and the usual repairs. Without KIND, list them."""
    from rich.markdown import Markdown

    from opwright.report.explanations import explanation, kinds

    if not kind:
        console().print(", ".join(kinds()), highlight=False)
        return
    try:
        text = explanation(kind)
    except KeyError:
        near = difflib.get_close_matches(kind, kinds(), n=1)
        fix = f"opwright explain '{near[0]}'" if near else "opwright explain lists the kinds"
        raise CheckError(f"KIND must be a check or a kind of finding, got {kind!r}", fix=fix) from None
    console().print(Markdown(text))

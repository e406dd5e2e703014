"""The output of ``opwright demo`` on one screen: a matrix, a line for each system, a wrong kernel, times, hints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from opwright.languages import title_of
from opwright.report import format
from opwright.report.matrix import make_matrix
from opwright.report.statuses import GROUPED, LOOKS, ONE_BY_ONE
from opwright.report.terminal.bench import COMPARISON_STYLES
from opwright.report.terminal.check import counts_text, show_matrix, show_notes, show_problems
from opwright.report.terminal.console import print_indented
from opwright.results import BenchReport, CheckReport, ComparisonVerdict, Measurement, Status, Verdict, worst

__all__ = ["Missing", "Story", "System", "show_story"]

_FAILED = LOOKS[Status.FAIL]
# From this width on, the two parts of a line are printed side by side.
_WIDE = 72


@dataclass(frozen=True)
class System:
    """Kernels that belong together, with their verdicts."""

    title: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class WrongOnPurpose:
    """The verdict about a kernel that is wrong on purpose, its file, and its error."""

    verdict: Verdict
    file: str
    fault: str

    @property
    def found(self) -> bool:
        return bool(self.verdict.failures)


@dataclass(frozen=True)
class Missing:
    """Something that this machine lacks: the languages that cannot run, why, and how to get it."""

    languages: tuple[str, ...]
    why: str
    remedy: str


@dataclass(frozen=True)
class Story:
    """The results of the demo.

    Attributes:
        checked: the verdicts of all systems.
        times: one comparison; None if there was nothing to time.
        commands: commands to try next, and what they do.
        seconds: the duration of the demo.
    """

    systems: tuple[System, ...]
    checked: CheckReport
    wrong: WrongOnPurpose
    times: BenchReport | None
    missing: tuple[Missing, ...]
    commands: tuple[tuple[str, str], ...]
    seconds: float


def show_story(console: Console, story: Story) -> None:
    """Print the results of the demo."""
    machine = story.checked.machine
    cores = f", {machine['cores']} cores" if "cores" in machine else ""
    console.print(Text.assemble(("opwright", "bold"), f" on {format.machine_name(machine)}{cores}"))
    console.print()
    show_matrix(console, make_matrix(story.checked.verdicts))
    _show_systems(console, story)
    _show_wrong(console, story)
    _show_times(console, story.times)
    _show_missing(console, story.missing)
    _show_commands(console, story.commands)
    console.print()
    last = Text.assemble(
        counts_text(story.checked.verdicts),
        "; the wrong one was found" if story.wrong.found else ("; the wrong one was NOT found", _FAILED.style),
        f"; {story.seconds:.0f} s",
    )
    print_indented(console, last, 0)


def _heading(console: Console, text: str) -> None:
    console.print()
    print_indented(console, Text(text, "bold"), 0)


# -- the systems ------------------------------------------------------------------------------------------------


def _show_systems(console: Console, story: Story) -> None:
    _heading(console, "Each kernel against its reference in PyTorch or NumPy")
    lines = [(_titled(system), _what_ran(system)) for system in story.systems]
    _show_pairs(console, lines)
    print_indented(console, Text(_what_was_checked(story), "dim"), 2)
    show_problems(console, story.checked.verdicts)
    show_notes(console, story.checked.verdicts)


def _titled(system: System) -> Text:
    look = LOOKS[worst(v.status for v in system.verdicts)]
    return Text.assemble((look.mark, look.style), f" {system.title}")


def _what_ran(system: System) -> Text:
    """``Mojo, C++; CUDA simulated; Triton: failed; under torch.compile``."""
    by_way: dict[str, list[str]] = {}
    for verdict in system.verdicts:
        languages = by_way.setdefault(_way(verdict), [])
        name = title_of(verdict.backend)
        if name not in languages:
            languages.append(name)
    ways = sorted(by_way, key=lambda way: ":" in way)  # kernels that passed come first
    texts = [f"{', '.join(by_way[way])}{way}" for way in ways]
    return Text("; ".join(texts + _further_checks(system)))


def _way(verdict: Verdict) -> str:
    """How a kernel was run, and its status unless it passed: `` simulated: with warnings``."""
    if verdict.status is Status.PASS:
        return _place(verdict)
    place = _place(verdict) if verdict.status in GROUPED else ""
    return f"{place}: {LOOKS[verdict.status].word}"


def _place(verdict: Verdict) -> str:
    if verdict.device == "cpu-sim":
        return " simulated"
    if verdict.device == "cuda":
        return " on the GPU"
    if "interpreter" in verdict.reason:
        return " interpreted"
    return " compiled to C++" if verdict.backend == "numpy" else ""


def _checks_of(system: System) -> list[str]:
    """The checks that ran to their end and found nothing wrong."""
    findings = [f for v in system.verdicts for f in v.findings]
    return list(dict.fromkeys(f.check for f in findings if f.status not in ONE_BY_ONE))


def _further_checks(system: System) -> list[str]:
    descriptions = {"gradients": "with gradients", "torch.compile": "under torch.compile"}
    return [descriptions[check] for check in _checks_of(system) if check in descriptions]


def _what_was_checked(story: Story) -> str:
    checks = dict.fromkeys(c for system in story.systems for c in _checks_of(system))
    return f"Three small cases each, in one dtype: {', '.join(checks)}. opwright check runs more checks and cases."


# -- the wrong kernel, the times --------------------------------------------------------------------------------


def _show_wrong(console: Console, story: Story) -> None:
    _heading(console, "A kernel that is wrong on purpose")
    console.print(f"  {story.wrong.file}", markup=False, highlight=False, soft_wrap=True)
    print_indented(console, Text(story.wrong.fault), 2)
    if story.wrong.found:
        show_problems(console, [story.wrong.verdict])
        return
    verdict = story.wrong.verdict
    text = f"{_FAILED.mark} It was not found ({verdict.status}): {verdict.reason or 'this is a bug in opwright'}"
    print_indented(console, Text(text, _FAILED.style), 2)


def _show_times(console: Console, report: BenchReport | None) -> None:
    if report is None or not (report.measurements or report.errors):
        _heading(console, "No comparison of times: no kernel that runs here natively could be timed")
        return
    if report.measurements:
        first = report.measurements[0]
        case = {**first.case, **{k: f"{v:,}" for k, v in first.case.items() if isinstance(v, int)}}
        where = "GPU" if first.device == "cuda" else f"CPU, {report.settings.get('threads', '?')} threads"
        _heading(console, f"One comparison of times: {first.op}, {format.case_text(case)} ({where})")
        _show_pairs(console, [(Text(_name_of(m)), _time_of(m)) for m in report.measurements])
        samples = min(m.time_us.n for m in report.measurements)
        ratios = ", ".join(dict.fromkeys(name for m in report.measurements for name in m.comparisons))
        text = f"Medians with 95 % intervals, {samples} samples or more of each, taken in turn, warm caches."
        text += f" Ratios are to the {ratios}." if ratios else ""
        print_indented(console, Text(text, "dim"), 2)
        if any(c.verdict is ComparisonVerdict.UNCLEAR for m in report.measurements for c in m.comparisons.values()):
            text = "UNCLEAR: the times vary too much to compare them. Other programs use this machine; try again later."
            print_indented(console, Text(text, COMPARISON_STYLES[ComparisonVerdict.UNCLEAR]), 2)
    for error in report.errors:
        print_indented(console, Text(f"{_FAILED.mark} {error}", _FAILED.style), 2)


def _name_of(m: Measurement) -> str:
    return m.kernel if m.kernel == m.backend else f"{m.kernel} ({title_of(m.backend)})"


def _time_of(m: Measurement) -> Text:
    text = Text(f"{format.estimate_text(m.time_us)} [{format.estimate_interval(m.time_us)}]")
    for found in m.comparisons.values():
        verdict = f"  {found.verdict}", COMPARISON_STYLES[found.verdict]
        text = Text.assemble(text, verdict, f" × {format.ratio_text(found)}")
    return text


# -- what is missing, what is next ------------------------------------------------------------------------------


def _show_missing(console: Console, missing: Sequence[Missing]) -> None:
    if not missing:
        return
    _heading(console, "What this machine cannot run, and how to get it")
    for one in missing:
        what = ", ".join(title_of(language) for language in one.languages)
        print_indented(console, Text.assemble((f"{what}: ", "bold"), one.why), 2)
        console.print(f"    → {one.remedy}", markup=False, highlight=False, soft_wrap=True)


def _show_commands(console: Console, commands: Sequence[tuple[str, str]]) -> None:
    _heading(console, "Next")
    _show_pairs(console, [(Text(command, "cyan"), Text(what)) for command, what in commands])


def _show_pairs(console: Console, pairs: Sequence[tuple[Text, Text]]) -> None:
    """Print pairs of a name and a text side by side, or below each other on a narrow terminal."""
    width = max((cell_len(name.plain) for name, _ in pairs), default=0)
    beside = console.width >= _WIDE and width <= console.width // 2
    for name, text in pairs:
        if not beside:
            print_indented(console, name, 2)
            print_indented(console, text, 6)
            continue
        lines = text.wrap(console, max(20, console.width - width - 4))
        for number, line in enumerate(lines or [Text()]):
            line.rstrip()
            first = name.copy() if number == 0 else Text()
            first.truncate(width, pad=True)
            console.print(Text("  ").append(first).append("  ").append(line), soft_wrap=True)

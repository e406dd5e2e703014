"""The output of a check on a terminal: a matrix, every failure, and everything else grouped, counted and folded."""

import io

from opwright.report.terminal.check import show_check
from opwright.report.terminal.console import make_console
from opwright.results import CheckReport, Finding, NotChecked, Status, Verdict


def shown(*verdicts, width=100, **options):
    stream = io.StringIO()
    show_check(make_console(file=stream, width=width, color_system=None), CheckReport({}, verdicts), **options)
    return stream.getvalue()


def verdict(**changes):
    content = {
        "op": "demo::f", "kernel": "k", "backend": "cpp", "device": "cpu", "status": Status.PASS,
        "findings": (Finding("values", Status.PASS),), **changes,
    }  # fmt: skip
    return Verdict(**content)


def failing(**changes):
    finding = Finding("values", Status.FAIL, "n=5", "1 of 5 elements differ", "opwright check x")
    return verdict(**{"status": Status.FAIL, "findings": (finding,), **changes})


def flat(text):
    """The text without its line breaks, which depend on the width."""
    return " ".join(text.split())


def test_a_failure_shows_case_message_and_command():
    finding = Finding(
        "values", Status.FAIL, "n=5", "1 of 5 elements differ\n  at (4,): expected 1.0, got 0.0", "opwright check x"
    )
    text = shown(verdict(status=Status.FAIL, findings=(finding,)))
    for part in ("n=5", "1 of 5 elements differ", "at (4,): expected 1.0, got 0.0", "opwright check x", "1 failed"):
        assert part in text


def test_markup_in_a_kernels_message_is_shown_and_not_obeyed():
    finding = Finding("values", Status.FAIL, message="the kernel raised ValueError: [red]x[/red] [/]")
    text = shown(verdict(status=Status.FAIL, findings=(finding,)))
    assert "[red]x[/red] [/]" in text


def test_the_matrix_comes_before_everything_else_and_failures_before_the_rest():
    text = shown(verdict(), failing(kernel="b", not_checked=(NotChecked("gradients", "not asked for"),)))
    order = [text.index(part) for part in ("✗ ✓", "✗ demo::f b on cpu: values", "PASS", "not checked", "1 failed, 1")]
    assert order == sorted(order)


def test_hostile_names_stay_in_their_cell_of_the_matrix():
    hostile = "[red]x\n\x1b[31m✓ " + "long" * 40
    text = shown(verdict(op=f"{hostile}::f", backend="[b]"), failing(op="b::g", backend="cpp"), width=60)
    heading, first, second = text.splitlines()[:3]
    assert heading.split() == ["operator", "[b]", "cpp"]
    assert first.startswith("[red]x")
    assert "…" in first
    assert [line[heading.index("cpp") :].strip() for line in (first, second)] == ["", "✗"]
    assert max(map(len, (heading, first, second))) <= 60
    assert "\x1b" not in first


def test_a_long_list_is_folded_but_never_what_failed():
    passing = [verdict(kernel=f"right_{i}") for i in range(60)]
    refused = [verdict(kernel=f"absent_{i}", status=Status.REFUSED, reason="no GPU") for i in range(5)]
    wrong = [failing(kernel=f"wrong_{i}") for i in range(20)]
    text = shown(*passing[:30], *wrong, *refused, *passing[30:])
    for i in range(20):
        assert f"✗ demo::f wrong_{i} on cpu: values" in text
        assert f"  wrong_{i} " in text
    assert "right_" not in text
    assert "not listed: 60 passed, 5 cannot run here; -v lists every kernel" in text
    everything = shown(*passing, *wrong, *refused, verbose=True)
    assert all(f"  right_{i} " in everything for i in range(60))
    assert "not listed" not in everything


def test_a_short_list_is_not_folded():
    text = shown(*(verdict(kernel=f"k{i}") for i in range(12)))
    assert text.count("PASS") == 12
    assert "not listed" not in text


def test_a_reason_that_all_kernels_share_is_told_once_and_names_none():
    refused = [verdict(kernel=k, status=Status.REFUSED, reason="no GPU", findings=()) for k in "ab"]
    text = shown(*refused)
    assert "all kernels: no GPU" in text
    assert "demo::f:a" not in text
    assert "2 cannot run here" in text


def test_of_many_kernels_a_few_are_named_and_the_others_counted():
    asked = NotChecked("gradients", "not asked for")
    lacking = NotChecked("bfloat16", "NumPy has none")
    verdicts = [verdict(kernel=f"k{i}", not_checked=(asked, lacking) if i < 55 else (asked,)) for i in range(60)]
    text = flat(shown(*verdicts, width=80))
    assert "all kernels: not asked for (gradients)" in text
    assert "55 of 60 kernels: NumPy has none (bfloat16)" in text
    assert "demo::f:k0, demo::f:k1, demo::f:k2, demo::f:k3, … and 51 more" in text
    assert "k4" not in text


def test_an_operator_stands_for_all_of_its_kernels():
    custom = NotChecked("flops", "custom")
    verdicts = [verdict(kernel=k, not_checked=(custom,)) for k in "abc"] + [
        verdict(op="demo::g"),
        verdict(op="demo::g2"),
    ]
    assert "3 of 5 kernels: custom (flops) demo::f" in flat(shown(*verdicts))


def test_a_kernel_on_two_devices_is_named_with_the_device():
    lacking = NotChecked("float64", "the GPU has none")
    text = shown(verdict(device="cuda", not_checked=(lacking,)), verdict(), verdict(kernel="b"))
    assert "demo::f:k on cuda: the GPU has none (float64)" in text


def test_skipped_cases_are_summed_over_kernels_with_one_reason():
    def skips(count, case):
        return tuple(NotChecked.in_cases(c, count, case, "not applicable") for c in ("values", "metadata"))

    text = flat(shown(verdict(kernel="a", not_checked=skips(4, "n=3 layout=sliced:x")),
                      verdict(kernel="b", not_checked=skips(95, "n=7")), verdict(kernel="c")))  # fmt: skip
    assert "2 of 3 kernels: not applicable (values, metadata) 99 skipped cases, such as n=3 layout=sliced:x" in text


def test_what_was_not_checked_is_listed_with_its_reason():
    text = shown(verdict(not_checked=(NotChecked("gradients", "no floating output"),)))
    assert "demo::f:k: no floating output (gradients)" in text


def test_everything_but_commands_fits_a_narrow_terminal():
    languages = (("cuda", "cpu-sim"), ("triton", "cpu"), ("cpp", "cpu"), ("mojo", "cpu"), ("numpy", "cpu"))
    verdicts = [
        verdict(op=f"gallery::{name}", kernel="triton_autotuned", backend=language, device=device,
                not_checked=(NotChecked("bfloat16", "Triton's interpreter computes on NumPy arrays"),))
        for name in ("kmeans_assign", "lltm_backward_pointwise", "add")
        for language, device in languages
    ]  # fmt: skip
    for width in (50, 80):
        text = shown(*verdicts, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text == "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
        matrix = text[: text.index("passed")]
        assert matrix.count("✓") == len(verdicts) + 1, "every cell, and the legend"

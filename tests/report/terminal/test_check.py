"""The output of a check on a terminal: a matrix, every failure, and everything else grouped, counted and folded."""

import io

import pytest

from opwright.report.statuses import LOOKS
from opwright.report.terminal.check import show_check
from opwright.report.terminal.console import make_console
from opwright.results import CheckReport, Coverage, Finding, NotChecked, Status, Verdict
from tests.report.sample_records import ENDLESS, UNCAPTURED, every_status


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


def test_kernels_that_lack_several_checks_are_named_once():
    threads, memory = NotChecked("threads", "one thread"), NotChecked("peak memory", "counted otherwise")
    streams = NotChecked("streams", "a CPU has none")
    of_f = [verdict(kernel=kernel, not_checked=(threads, memory)) for kernel in "ab"]
    of_others = [verdict(op=op, not_checked=(streams,)) for op in ("demo::g", "demo::h")]
    assert (
        "2 of 4 kernels: one thread (threads) demo::f "
        "the same 2 kernels: counted otherwise (peak memory) "
        "2 of 4 kernels: a CPU has none (streams) demo::g:k, demo::h:k"
    ) in flat(shown(*of_f, *of_others))


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
    of_one = verdict(not_checked=(NotChecked("gradients", "no floating output"),))
    assert "\n  gradients: no floating output\n" in shown(of_one)
    assert "demo::f:k: no floating output (gradients)" in shown(of_one, verdict(op="demo::g"))


def test_one_kernel_has_a_line_and_no_matrix():
    assert shown(verdict()) == "\ndemo::f\n  k  cpp  cpu  PASS  0.0 s\n\nchecks: values\n1 passed\n"


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


# -- warnings, thin coverage, and what did not end in time ------------------------------------------------------


def warned(**changes):
    return verdict(**{"status": Status.WARNING, "findings": (UNCAPTURED,), **changes})


def test_the_legend_names_every_status_that_occurs_and_no_other():
    legend = "✗ failed   ? inconclusive   ◔ thin   ! with warnings   ✓ passed   – cannot run here\n"
    assert legend in shown(*every_status())
    assert "\n✓ passed\n" in shown(verdict(), verdict(op="demo::g"))


def test_a_step_that_did_not_end_is_shown_as_a_failure_is():
    text = shown(verdict(status=Status.INCONCLUSIVE, findings=(ENDLESS,)))
    assert "? demo::f k on cpu: gradients\n  case: n=1025 dtype=float64 layout=transposed\n" in text
    assert "the step did not end within 60 s\n  → Allow more time with --timeout 300.\n  again: opwright" in text
    assert "smallest failing case" not in text
    assert text.endswith("\n1 inconclusive\n")


def test_failures_come_before_what_did_not_end_and_both_before_warnings():
    text = shown(*every_status())
    order = [
        text.index(part) for part in ("✗ gallery", "? gallery", "\n◔ thin: ", "\n! with warnings: ", "not checked")
    ]
    assert order == sorted(order)


def test_a_warning_has_a_text_a_remedy_and_an_example():
    text = flat(shown(warned(kernel="a"), warned(kernel="b"), verdict()))
    assert "! with warnings: ordinary results are right, but something else needs attention" in text
    assert (
        "2 of 3 kernels: the kernel cannot be captured in a CUDA graph: it calls cudaStreamSynchronize (streams)"
        in text
    )
    assert "→ Leave the synchronisation to the caller. case: n=1024 dtype=float32 layout=contiguous" in text
    assert "demo::f:a, demo::f:b again: opwright check add.py:add --kernel vec4" in text


def test_warnings_of_a_failed_kernel_are_not_among_right_results():
    failed = verdict(kernel="bad", status=Status.FAIL, findings=(*warned().findings, Finding("values", Status.FAIL)))
    text = flat(shown(failed, warned(kernel="good")))
    right, wrong = text.split("! with warnings: of kernels that failed, or about which nothing is known")
    assert "results are right" in right
    assert "demo::f:good" in right.split("results are right")[1]
    assert "demo::f:bad" in wrong
    assert "results are right" not in flat(shown(failed))


def test_sixty_kernels_with_one_warning_have_one_entry():
    text = flat(shown(*(warned(kernel=f"k{i}") for i in range(60))))
    assert text.count("cannot be captured") == 1
    assert "all kernels: the kernel cannot be captured" in text
    assert "k7" not in text
    assert "not listed: 60 with warnings; -v lists every kernel" in text


def test_warnings_with_other_texts_or_remedies_have_entries_of_their_own():
    def about(message, remedy, check="streams"):
        return warned(findings=(Finding(check, Status.WARNING, message=message, remedy=remedy),))

    text = flat(shown(about("leaks", "free it"), about("leaks", "keep it"), about("waits", "free it")))
    assert text.count("1 of 3") == 0, "one kernel is named"
    assert [text.count(part) for part in ("leaks (streams) → free it", "leaks (streams) → keep it", "waits")] == [1] * 3


def test_checks_of_one_kernel_with_one_warning_are_joined():
    findings = tuple(Finding(check, Status.THIN, message="one case ran") for check in ("values", "metadata"))
    assert "demo::f:k: one case ran (values, metadata)" in shown(verdict(status=Status.THIN, findings=findings))


def test_a_warning_of_a_kernel_that_fails_is_not_lost():
    findings = (*failing().findings, UNCAPTURED)
    text = shown(failing(findings=findings))
    assert "✗ demo::f k on cpu: values" in text
    assert "demo::f:k: the kernel cannot be captured" in text


def test_what_passed_has_no_warnings():
    text = shown(verdict(), verdict(kernel="b", status=Status.REFUSED, reason="no GPU", findings=()), strict=False)
    for part in ("with warnings", "thin", "inconclusive", "--strict", "→"):
        assert part not in text


def test_markup_in_a_warning_is_shown_and_not_obeyed():
    hostile = "[red]x[/red] [/]"
    finding = Finding(hostile, Status.WARNING, hostile, hostile, hostile, remedy=hostile)
    text = shown(warned(kernel=hostile, findings=(finding,)), verbose=True)
    assert text.count(hostile) >= 6


# -- the last lines ---------------------------------------------------------------------------------------------


def test_the_last_line_says_what_strict_would_do():
    thin = verdict(status=Status.THIN, reason="too little")
    report = (thin, thin, warned(), verdict())
    assert shown(*report, strict=False).endswith(
        "2 thin, 1 with warnings, 1 passed\n2 thin, 1 with warnings: --strict counts them as failures\n"
    )
    assert shown(*report, strict=True).endswith(
        "\n2 thin, 1 with warnings: they count as failures, because of --strict\n"
    )
    assert shown(thin, strict=False).endswith("1 thin\n1 thin: --strict counts it as a failure\n")


def test_commands_without_the_option_do_not_name_it():
    assert "--strict" not in shown(*every_status())


@pytest.mark.parametrize("strict", [True, False])
def test_strict_has_nothing_to_say_about_failures(strict):
    text = shown(failing(), verdict(status=Status.INCONCLUSIVE, findings=(ENDLESS,)), verdict(), strict=strict)
    assert "--strict" not in text
    assert text.endswith("1 failed, 1 inconclusive, 1 passed\n")


# -- the list of kernels ----------------------------------------------------------------------------------------


def row_of(text, kernel):
    return next(line for line in text.splitlines() if line.startswith(f"  {kernel} "))


def test_a_row_has_the_cases_of_values_and_the_checks_that_decided():
    text = shown(*every_status())
    assert row_of(text, "tiled").split()[-5:] == ["12", "of", "164", "cases", "values"]
    assert "failed at case 3 of 164" in text
    assert row_of(text, "cpp").split()[-8:] == ["INCONCLUSIVE", "61.2", "s", "152", "of", "164", "cases", "gradients"]
    assert row_of(text, "mojo").split() == ["mojo", "mojo", "cpu", "REFUSED", "see", "below"]
    assert "cases" not in row_of(shown(verdict()), "k"), "no coverage is known"


def test_verbose_has_a_line_for_each_check():
    lines = shown(*every_status(), verbose=True, width=120).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  tiled "))
    assert lines[at + 1 : at + 3] == [
        "      ◔ values         12 of 164 cases; 152 of 164 cases were skipped: no values satisfy where=['n == 7 * m']",
        "      ✓ torch.compile  2 of 2 cases; fullgraph, static and dynamic",
    ]
    assert not [line for line in shown(*every_status()).splitlines() if line.startswith("      ✓")]


def test_what_did_not_end_is_never_folded():
    endless = verdict(kernel="endless", status=Status.INCONCLUSIVE, findings=(ENDLESS,))
    text = shown(*(verdict(kernel=f"right_{i}") for i in range(60)), endless)
    assert "  endless " in text
    assert "right_" not in text
    assert "not listed: 60 passed; -v lists every kernel" in text


@pytest.mark.parametrize("width", [50, 80, 100, 160])
@pytest.mark.parametrize("verbose", [True, False])
def test_every_status_fits_the_terminal(width, verbose):
    verbatim = ("again:", "smallest failing case:", "  case: ")
    lines = shown(*every_status(), width=width, verbose=verbose, strict=False).splitlines()
    narrow = 60 if width == 50 else width  # a row's columns up to the seconds stay together
    assert not [x for x in lines if len(x) > narrow and not any(v in x for v in verbatim)]
    assert not [x for x in lines if x != x.rstrip()]


def test_a_long_row_continues_in_the_next_line():
    findings = (Finding("values", Status.PASS, coverage=Coverage(152, 164)), UNCAPTURED)
    text = shown(warned(kernel="a_name_of_thirty_characters___", findings=findings), width=70)
    assert "WARNING  0.0 s\n      152 of 164 cases  streams\n" in text


def test_a_remark_never_takes_a_line_of_its_own():
    values = Finding("values", Status.PASS, coverage=Coverage(152, 164))
    passing = [
        verdict(kernel=f"a_long_name_{i}", device="cpu-sim", findings=(values,), reason="in the CUDA simulator")
        for i in range(3)
    ]
    for width, ending in ((120, "cases  in the CUDA simulator"), (74, "164 cases"), (62, "164 cases")):
        rows = [line for line in shown(*passing, width=width).splitlines() if line.startswith("  a_long_name")]
        assert [row.endswith(ending) for row in rows] == [True] * 3, (width, rows)


def test_a_remark_that_does_not_fit_is_cut_before_its_reason():
    interpreted = verdict(reason="in Triton's interpreter: the simulator cannot run inline assembly")
    for width, ending in ((120, "inline assembly"), (70, "in Triton's interpreter"), (40, "s")):
        (row,) = [line for line in shown(interpreted, width=width).splitlines() if "PASS" in line]
        assert row.endswith(ending), (width, row)
        assert "…" not in row


def test_the_text_of_a_report_is_what_a_terminal_shows():
    found = [
        failing(),
        verdict(kernel="slow", status=Status.INCONCLUSIVE, findings=(
            Finding("values", Status.INCONCLUSIVE, "n=7", "no end after 60 s", "opwright check y", remedy="allow more"),
        )),
        verdict(kernel="lost", status=Status.INCONCLUSIVE, reason="the worker was lost", findings=()),
    ]  # fmt: skip
    report = CheckReport({}, tuple(found))
    text = shown(*found)
    for block in str(report).split("\n\n")[1:]:
        assert f"\n\n{block}\n" in text
    assert str(report).splitlines()[0] in text


def test_words_and_marks_of_statuses_are_those_of_reports():
    for status, look in LOOKS.items():
        assert look.word in repr(CheckReport({}, (verdict(status=status),)))
        assert str(verdict(status=status)).startswith(f"{look.mark} ")

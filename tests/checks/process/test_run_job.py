"""Workers: their inputs and results, and crashes that the parent survives."""

import _thread
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.process import run_job
from opwright.checks.run import Interrupted
from opwright.runtime import serialization
from opwright.runtime.targets import find_import_path, load_target, name_target


def make(namespace="isolation"):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    return twice


def test_a_local_operator_travels_by_value_with_its_kernels_and_parts():
    twice = make("travel")

    @twice.python(name="shifted", dtypes=[torch.float32], when=lambda x: x.numel() > 3)
    def _(x):
        return (x + x).contiguous()

    twice.register_autograd(lambda ctx, grad: 2 * grad)
    assert find_import_path(twice) is None
    before = twice.fingerprint
    copy = serialization.load(serialization.dump(twice))
    assert copy is not twice
    assert copy.fingerprint == before
    assert copy.kernels["shifted"].spec.dtypes == (torch.float32,)
    assert torch.equal(copy(torch.ones(5)), torch.full((5,), 2.0))


@pytest.mark.slow
def test_operators_that_refer_to_each_other_travel():
    @ow.op("travel::left")
    def left(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x.sin()

    @ow.op("travel::right")
    def right(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x.cos()

    left.register_autograd(lambda ctx, grad: grad * right(ctx.saved_tensors[0]), setup_context=save)
    right.register_autograd(lambda ctx, grad: -grad * left(ctx.saved_tensors[0]), setup_context=save)
    report = ow.check(left, checks=["values", "gradients"])
    assert report.passed, report


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@pytest.mark.slow
def test_a_kernel_attached_from_elsewhere_is_checked_and_not_the_one_in_the_file(tmp_path):
    (tmp_path / "elsewhere_op.py").write_text(
        textwrap.dedent("""
        from jaxtyping import Float32
        from torch import Tensor
        import opwright as ow

        @ow.op("elsewhere::twice")
        def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return 2 * x

        @twice.python(name="k")
        def _(x):
            return x + x
        """)
    )
    (twice,) = load_target(f"{tmp_path}/elsewhere_op.py")
    assert find_import_path(twice) is not None
    assert ow.check(twice, checks=["values"]).passed
    twice.python(lambda x: x * 3, name="k")
    assert not ow.check(twice, checks=["values"]).passed


def test_something_that_cannot_travel_is_a_finding_that_says_so():
    twice = make("cannot")
    lock = threading.Lock()

    @twice.python(name="locked")
    def _(x):
        with lock:
            return x + x

    (verdict,) = ow.check(twice, checks=["values"]).verdicts
    assert verdict.status == "fail"
    assert "cannot be loaded in a worker process" in verdict.failures[0].message
    assert "lock" in verdict.failures[0].message


def test_a_worker_runs_in_the_parents_folder_and_its_output_stays_out_of_ours(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    twice = make("folder")

    @twice.python(name="chatty")
    def _(x):
        print("printed by the kernel")
        assert os.getcwd() == str(tmp_path)
        return x + x

    assert ow.check(twice, checks=["values"]).passed
    assert "printed by the kernel" not in capfd.readouterr().out


@pytest.mark.slow  # starts a server of its own
def test_what_the_server_has_imported_is_shared_by_its_workers():
    """A collection of garbage in a worker leaves it alone: else each would copy it."""
    twice = make("frozen")

    @twice.python(name="counts")
    def _(x):
        assert gc.get_freeze_count() > 100_000
        return x + x

    assert ow.check(twice, checks=["values"]).passed


@pytest.mark.slow
def test_a_module_that_freezes_torchs_settings(tmp_path, monkeypatch):
    """As importing ``torch.testing._internal.common_utils`` does."""
    (tmp_path / "frozen_settings.py").write_text(
        textwrap.dedent("""
            import torch, opwright as ow
            from jaxtyping import Float
            from torch import Tensor

            torch.backends.disable_global_flags()

            @ow.op("isolation::frozen")
            def frozen(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
                return 2 * x

            frozen.python(lambda x: x + x, name="right")
            frozen.python(lambda x: x * x, name="wrong")
        """)
    )
    monkeypatch.chdir(tmp_path)
    report = ow.check("frozen_settings.py", checks=["values", "global state"])
    assert {v.kernel: str(v.status) for v in report} == {"right": "pass", "wrong": "fail"}
    assert [f.check for v in report for f in v.failures] == ["values"]


def test_what_a_crashing_kernel_printed_last_is_shown():
    twice = make("printed")

    @twice.python(name="dies")
    def _(x):
        print("about to die", flush=True)
        os.abort()

    (verdict,) = ow.check(twice, checks=["values"]).verdicts
    assert "crashed with SIGABRT" in verdict.failures[0].message
    assert "about to die" in verdict.failures[0].message


@pytest.mark.slow  # two processes import torch
def test_a_check_works_from_a_script_without_a_main_guard(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        from jaxtyping import Float32
        from torch import Tensor
        import opwright as ow

        print("imported")

        @ow.op("script::twice")
        def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return 2 * x

        @twice.python(name="k")
        def _(x):
            return x + x

        print(ow.check(twice, checks=["values"]).passed)
        """)
    )
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == ["imported", "True"], run.stderr


@pytest.mark.slow  # two processes import torch
def test_workers_end_with_their_parent(tmp_path):
    (tmp_path / "parent.py").write_text(
        textwrap.dedent("""
        import os, time, threading
        from jaxtyping import Float32
        from torch import Tensor
        import opwright as ow

        @ow.op("orphan::twice")
        def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return 2 * x

        @twice.python(name="k")
        def _(x):
            open("pid", "w").write(str(os.getpid()))
            time.sleep(600)

        threading.Thread(target=ow.check, args=(twice,), daemon=True).start()
        while not os.path.exists("pid") or not open("pid").read():
            time.sleep(0.05)
        os._exit(0)
        """)
    )
    subprocess.run([sys.executable, "parent.py"], cwd=tmp_path, check=True, timeout=120)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}"):
            return
        threading.Event().wait(0.1)
    pytest.fail("the worker outlived its parent")


def test_a_target_is_named_as_the_command_line_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named_op.py").write_text(
        "from jaxtyping import Float32\nfrom torch import Tensor\nimport opwright as ow\n"
        '@ow.op("named::twice")\ndef twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:\n    return 2 * x\n'
    )
    (twice,) = load_target("named_op.py")
    assert name_target(twice) == "named_op.py:twice"
    (by_name,) = load_target("opwright.gallery.add:add")
    assert name_target(by_name) == "opwright.gallery.add:add"
    assert name_target(make("unnamed")) is None


@pytest.mark.slow  # a command of its own
def test_ctrl_c_ends_a_check_at_once_though_a_kernel_hangs(tmp_path):
    (tmp_path / "hang.py").write_text(
        textwrap.dedent(
            """
            import time
            from jaxtyping import Float32
            from torch import Tensor
            import opwright as ow

            @ow.op("interrupted::hang")
            def hang(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
                return x

            @hang.python
            def _(x):
                print("hanging", file=open("started", "w"))
                time.sleep(1000)
            """
        )
    )
    check = subprocess.Popen(
        [sys.executable, "-m", "opwright", "check", "hang.py"],
        cwd=tmp_path,
        # A shell's background jobs, and so perhaps these tests, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, "the kernel was not started"
            time.sleep(0.1)
        check.send_signal(signal.SIGINT)
        assert check.wait(20) == 130  # the step itself would have had 60 s
    finally:
        check.kill()


def test_what_a_worker_has_started_ends_with_it():
    twice = make("leaves")

    @twice.python(name="k")
    def _(x):
        started = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        raise RuntimeError(f"started {started.pid}")

    (verdict,) = ow.check(twice, checks=["values"], level="smoke").verdicts
    pid = int(verdict.findings[0].message.split("started ")[1].split()[0])
    end = time.monotonic() + 60
    while (is_there := Path(f"/proc/{pid}").exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_there


@pytest.mark.parametrize(
    ("seconds", "timeout", "status", "said"),
    [(1.0, 60, "fail", "exit code 3"), (60.0, 2, "inconclusive", "did not return within 2 s")],
)
def test_a_process_that_ends_late_is_not_said_to_crash(seconds, timeout, status, said, monkeypatch):
    """A busy machine may take long to end a process."""
    monkeypatch.setattr(run_job, "_SECONDS_TO_END", 0.1)
    twice = make(f"late_{status}")

    @twice.python(name="k")
    def _(x):
        os.closerange(3, 1 << 12)  # as at its end
        time.sleep(seconds)
        os._exit(3)

    (verdict,) = ow.check(twice, checks=["values"], level="smoke", timeout=timeout).verdicts
    (finding,) = verdict.findings
    assert verdict.status.value == status
    assert said in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_interrupted_check_reports_what_it_has_found(namespace, is_wrong):
    @ow.op(f"{namespace}::doubled")
    def doubled(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    @doubled.python(name="kernel")
    def kernel(x):
        return 3 * x if is_wrong else x + x

    def interrupt(item, text):
        if text.startswith("metadata"):  # after values
            _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        with pytest.raises(Interrupted) as raised:
            ow.check(doubled, device="cpu", events=ow.Events(step=interrupt))
    finally:
        signal.signal(signal.SIGINT, before)
    report = raised.value.report
    assert report.partial == "interrupted: 0 of 1 kernels were checked"
    assert not report.passed
    assert [verdict.status for verdict in report.verdicts] == ["fail"] * is_wrong
    assert all(verdict.failures[0].case for verdict in report.verdicts)


@pytest.mark.slow
def test_an_interrupted_check_reports_nothing_that_an_earlier_one_has_found(namespace):
    @ow.op(f"{namespace}::halved")
    def halved(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x / 2

    halved.python(lambda x: x / 3, name="wrong")
    halved.python(lambda x: x / 4, name="wrong, too")
    options = {"device": "cpu", "checks": ["values"], "level": "smoke", "jobs": 1}
    assert [verdict.status for verdict in ow.check(halved, **options).verdicts] == ["fail", "fail"]
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(item, text):
        if text == "load":  # the first kernel only; the main thread waits, and has to be woken
            signal.pthread_kill(main, signal.SIGINT)

    try:
        with pytest.raises(Interrupted) as raised:
            ow.check(halved, events=ow.Events(step=interrupt), **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [v for v in raised.value.report.verdicts if v.kernel == "wrong, too"]  # it had not begun

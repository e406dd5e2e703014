"""Tuning: calls run the kernel that was measured to be fastest, also in later processes, until kernels change."""

import contextlib
import json

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.errors import CacheError, CheckError
from opwright.results import Crossover, SizeRange
from opwright.runtime.tuning import tuned as tables
from opwright.runtime.tuning.size_tables import count_elements, dtype_key
from opwright.runtime.tuning.tuned import Tuned
from opwright.timing import run as engine

# The time of a call by the clock of these tests (µs), by the number of elements.
COSTS = {
    "steady": lambda n: 300.0,
    "growing": lambda n: 20.0 if n < 1000 else 2000.0,
    "even": lambda n: 10.0,
    "wrong": lambda n: 1.0,
    "reference": lambda n: 50.0,
}


class Clock:
    """Candidates take the time in COSTS; nothing runs."""

    cache_bytes, most_bytes, has_gpu_time = 1 << 20, 1 << 24, False

    def warm_up(self, candidate, sets):
        pass

    def host_times(self, candidate, sets, count):
        return [COSTS[candidate.name](sets[0][0].numel())] * count

    cold_times = warm_times = host_times

    def profiler_time(self, candidate, sets):
        return None

    def forget(self):
        pass

    def steady(self):
        return contextlib.nullcontext()

    def not_captured(self, candidate):
        return ""

    def settings(self):
        return {"clock": "fake"}


def double_op(namespace):
    @ow.op(f"{namespace}::double")
    def double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 * x

    double.python(lambda x: (x + x).contiguous(), name="steady")
    double.python(lambda x: (2 * x).contiguous(), name="growing")
    return double


@pytest.fixture(autouse=True)
def a_clock_of_our_own(monkeypatch):
    monkeypatch.setattr(engine, "make_timer", lambda device: Clock())
    monkeypatch.setattr(engine, "Roofline", lambda *_: None)


def tune(operator, **options):
    return ow.tune(operator, **{"device": "cpu", "sizes": {"n": [10, 100_000]}, "iters": 10, **options})


def chosen(operator, n=10, dtype=torch.float32):
    return operator.explain(torch.ones(n, dtype=dtype)).chosen


def first(operator, n):
    """The kernel that a call really runs: it keeps a list of applicable kernels, and later calls a guard."""
    ran = []
    for name, kernel in operator.kernels.items():
        launch = kernel.load()
        kernel._launch = lambda *arguments, name=name, launch=launch: (ran.append(name), launch(*arguments))[1]
        kernel._prepared_by_device.clear()
    operator._learner.forget()
    for _ in range(3):
        operator(torch.ones(n))
    assert len(set(ran)) == 1
    assert len(ran) % 3 == 0
    for kernel in operator.kernels.values():
        kernel._launch = None
        kernel._prepared_by_device.clear()
    return ran[0]


def test_calls_run_what_was_fastest_and_explain_says_so(namespace):
    double = double_op(namespace)
    assert chosen(double).kernel == "steady"
    (found,) = tune(double).crossovers
    assert found.stored
    assert found.ranges == (SizeRange(0, 1000, "growing"), SizeRange(1000, None, "steady"))
    assert found.sizes == (10, 100_000)
    assert (chosen(double).kernel, chosen(double, 100_000).kernel) == ("growing", "steady")
    assert first(double, 10) == "growing"
    assert first(double, 100_000) == "steady"
    output = str(double.explain(torch.ones(10)))
    assert f"tuned on {build_tools().machine.cpu}, 20" in output
    assert "fastest below 1,000 elements (float32)" in output
    assert "tuning found 'growing' fastest" in output


def test_other_dtypes_are_chosen_for_as_without_a_table(namespace):
    double = double_op(namespace)
    tune(double)
    assert chosen(double, dtype=torch.float64).kernel == "steady"
    tune(double, dtypes=["float64"])
    assert chosen(double, dtype=torch.float64).kernel == "growing"
    assert chosen(double).kernel == "growing", "the first table is still there"


def test_a_kernel_whose_domain_is_left_does_not_run_however_fast(namespace):
    double = double_op(namespace)
    double.python(lambda x: (x + x).contiguous(), name="even", when=lambda x: x.numel() % 2 == 0)
    tune(double, sizes={"n": [10, 100]})
    assert chosen(double, 12).kernel == "even"
    assert chosen(double, 11).kernel == "steady"
    assert first(double, 11) == "steady"


def test_an_edited_kernel_makes_the_table_void_and_that_is_said(namespace):
    double = double_op(namespace)
    tune(double)
    double.python(lambda x: (x * 2.0).contiguous(), name="growing")
    assert chosen(double).kernel == "steady"
    assert "other kernels, versions or machines" in double.explain(torch.ones(10)).note


def test_clearing_forgets(namespace):
    double = double_op(namespace)
    tune(double)
    assert ow.tune(double, clear=True).measurements == ()
    assert chosen(double).kernel == "steady"
    assert double.explain(torch.ones(10)).note == ""
    assert not double.clear_tuning()


def test_a_wrong_kernel_never_wins(namespace):
    double = double_op(namespace)
    double.python(lambda x: x.clone(), name="wrong")
    report = tune(double)
    assert any("wrong" in e and "its timed output is wrong" in e for e in report.errors)
    assert "wrong" not in {i.kernel for c in report.crossovers for i in c.ranges}
    assert chosen(double).kernel == "growing"


def test_a_kernel_that_is_faster_than_the_machine_can_be_never_wins(namespace, monkeypatch):
    double = double_op(namespace)
    # 80 µs at least, whatever the size.
    monkeypatch.setattr("opwright.timing.measurement.fraction_of_roofline", lambda *_, us, **__: ("bandwidth", 80 / us))
    report = tune(double)
    assert any("did not do the work" in e for e in report.errors)
    assert "growing" not in {i.kernel for c in report.crossovers for i in c.ranges}


def test_one_kernel_has_nothing_to_choose_between(namespace):
    double = double_op(namespace)
    del double.kernels["growing"]
    assert tune(double).crossovers == ()
    assert not build_tools().machine.cache_dir.joinpath("tuned", f"{namespace}__double").exists()


def test_an_interrupted_sweep_keeps_no_table(namespace):
    double = double_op(namespace)

    def stop(measurement):
        raise KeyboardInterrupt

    report = tune(double, events=ow.Events(finished=stop))
    assert "interrupted" in report.errors[-1]
    assert chosen(double).kernel == "steady"


def test_an_interrupt_between_sizes_keeps_the_tables_of_the_operators_before(namespace):
    done, cut = double_op(namespace), double_op(f"{namespace}b")

    def stop(measurement):
        if measurement.op == cut.contract.qualname and measurement.case["n"] == [100_000]:
            raise KeyboardInterrupt

    report = ow.tune(done, cut, device="cpu", sizes={"n": [10, 100_000]}, iters=10, events=ow.Events(finished=stop))
    assert [c.op for c in report.crossovers] == [done.contract.qualname]
    assert (chosen(done).kernel, chosen(cut).kernel) == ("growing", "steady")


def test_a_benchmark_tells_the_crossover_and_changes_nothing(namespace):
    double = double_op(namespace)
    report = ow.bench(double, device="cpu", sizes={"n": [10, 100_000]}, iters=10, baselines=["reference"],
                      directions=["forward"])  # fmt: skip
    (found,) = report.crossovers
    assert [i.kernel for i in found.ranges] == ["growing", "steady"]
    assert not found.stored
    assert json.loads(json.dumps(report.to_json()))["crossovers"][0]["ranges"][0] == {
        "least": 0, "below": 1000, "kernel": "growing",
    }  # fmt: skip
    assert chosen(double).kernel == "steady"


def test_a_table_is_followed_under_torch_compile_and_changes_the_operators_digest(namespace):
    double = double_op(namespace)
    before = double.fingerprint
    tune(double)
    assert double.fingerprint != before
    assert (
        double._traceable_kernel((torch.ones(10),)) is None
    )  # Python kernels are opaque; it is looked up all the same
    assert torch.equal(torch.compile(lambda x: double(x), backend="aot_eager")(torch.ones(10)), torch.full((10,), 2.0))


@pytest.mark.slow
def test_a_later_process_follows_the_table(run_python):
    script = """
        import sys, torch, opwright as ow
        from jaxtyping import Float
        from torch import Tensor
        from opwright.results import Crossover, SizeRange
        from opwright.backends.build_tools import build_tools

        @ow.op("tunedlater::double")
        def double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
            return 2 * x

        double.python(lambda x: x + x, name="first")
        double.python(lambda x: x * 2, name="second")
        if sys.argv[1] == "tune":
            name = build_tools().machine.cpu
            always = (SizeRange(0, None, "second"),)
            double.apply_tuning([Crossover("tunedlater::double", "cpu", name, "float32", always)])
        print(double.explain(torch.ones(3)).chosen.kernel)
    """
    assert run_python(script, "tune").stdout.split() == ["second"]
    assert run_python(script, "look").stdout.split() == ["second"]
    assert run_python(script.replace("x * 2", "x * 2.0"), "look").stdout.split() == ["first"]


@pytest.mark.parametrize("spoil", [lambda f: f.write_text("{"), lambda f: f.write_text('{"schema": "other"}'),
                                   lambda f: f.write_text(f.read_text().replace("null", "5"))])  # fmt: skip
def test_a_damaged_table_is_as_none(namespace, spoil):
    double = double_op(namespace)
    tune(double)
    machine = build_tools().machine
    (file,) = tables._folder(double.contract.qualname, machine).glob("*.json")
    spoil(file)
    double._changed()
    assert chosen(double).kernel == "steady"


def test_a_cache_folder_that_cannot_be_written_is_said(namespace, monkeypatch):
    double = double_op(namespace)

    def refuse(tables):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(double, "apply_tuning", refuse)
    with pytest.raises(CacheError, match="cannot be stored"):
        tune(double)


def test_sizes_and_dtypes_are_those_of_all_tensors():
    arguments = (torch.ones(3, 4), [torch.ones(2), torch.ones(5, dtype=torch.int64)], 7, None)
    assert count_elements(arguments) == 19
    assert dtype_key(arguments) == "float32"
    assert dtype_key((torch.ones(2, dtype=torch.int32),)) == "int32"
    assert Tuned().find(arguments) is None


def test_another_device_has_no_table():
    machine = build_tools().machine
    table = Crossover("a::b", "cuda", "NVIDIA H100", "float32", (SizeRange(0, None, "k"),))
    assert Tuned({("NVIDIA H100", "float32"): table}).find((torch.ones(2),)) is None
    assert Tuned({(machine.cpu, "float32"): table}).find((torch.ones(2),)) is not None


# -- tables in files ---------------------------------------------------------------------------------------------------


def test_exported_tables_are_used_by_another_machine_and_give_way_to_its_own(namespace, tmp_path):
    double, file = double_op(namespace), tmp_path / "tuning.json"
    ow.tune(double, device="cpu", sizes={"n": [10, 100_000]}, iters=10, export=file)
    double.clear_tuning()
    assert chosen(double).kernel == "steady"
    double.use_tuning(file)
    assert chosen(double).kernel == "growing"
    own = [Crossover(double.contract.qualname, "cpu", build_tools().machine.cpu, "float32",
                     (SizeRange(0, None, "steady"),))]  # fmt: skip
    double.apply_tuning(own)
    assert chosen(double).kernel == "steady"
    double.clear_tuning()
    assert chosen(double).kernel == "growing"


def test_tables_of_several_devices_are_merged_in_one_file(namespace, tmp_path):
    double, file = double_op(namespace), tmp_path / "tuning.json"
    for device_name in ("H100", "A100", "H100"):
        table = Crossover(double.contract.qualname, "cuda", device_name, "float32", (SizeRange(0, None, "steady"),))
        tables.write_exported(file, [double._exported_tuning([table])])
    (one,) = tables.read_exported(file)
    assert [t.device_name for t in one.tables] == ["A100", "H100"]
    double.python(lambda x: 2 * x, name="third")
    table = Crossover(double.contract.qualname, "cuda", "B200", "float32", (SizeRange(0, None, "steady"),))
    tables.write_exported(file, [double._exported_tuning([table])])
    (one,) = tables.read_exported(file)
    assert [t.device_name for t in one.tables] == ["B200"]  # the others are of other kernels


def test_exported_tables_of_other_kernels_are_not_used_and_said_so(namespace, tmp_path):
    double, file = double_op(namespace), tmp_path / "tuning.json"
    ow.tune(double, device="cpu", sizes={"n": [10, 100_000]}, iters=10, export=file)
    double.clear_tuning()
    double.use_tuning(file)
    double.python(lambda x: 2 * x, name="third")
    assert chosen(double).kernel == "steady"
    assert "tune again" in str(ow.explain(double, torch.ones(10)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*: No such file"),
        ("{}", "holds no tables of opwright tune --export"),
        ("no JSON", "holds no tables of opwright tune --export"),
        ('{"schema": "opwright.bench/2"}', "its schema is 'opwright.bench/2'"),
        ('{"schema": "opwright.tuning/1", "operators": [{"op": "a"}]}', "holds no tables"),
    ],
)
def test_a_file_of_another_kind_is_refused(namespace, tmp_path, text, message):
    double, file = double_op(namespace), tmp_path / "tuning.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CheckError, match=message) as error:
        double.use_tuning(file)
    assert "opwright tune --export" in error.value.fix
    if text is not None:
        with pytest.raises(CheckError, match=message):
            ow.tune(double, device="cpu", sizes={"n": [10]}, iters=10, export=file)
        assert file.read_text() == text

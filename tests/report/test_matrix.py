"""The matrix counts every verdict once, in the column of its language and device."""

from opwright.report.matrix import Cell, Column, make_matrix
from opwright.results import Status, Verdict


def verdict(op="ns::f", kernel="k", backend="cpp", device="cpu", status=Status.PASS):
    return Verdict(op, kernel, backend, device, status)


def rows_of(matrix):
    return {name: [str(cell) for cell in cells] for name, cells in matrix.rows}


def test_cells_count_what_passed_failed_and_was_refused():
    matrix = make_matrix([
        verdict(kernel="a"), verdict(kernel="b"), verdict(kernel="c", status=Status.FAIL),
        verdict(kernel="d", status=Status.REFUSED, device="cuda"), verdict(op="ns::g", backend="mojo"),
    ])  # fmt: skip
    assert matrix.namespace == "ns::"
    assert [c.language for c in matrix.columns] == ["cpp", "mojo"]
    assert rows_of(matrix) == {"f": ["1✗ 2✓ 1–", ""], "g": ["", "✓"]}
    assert matrix.rows[0][1][0].status is Status.FAIL, "a failure is never hidden behind what passed"


def test_one_kernel_is_a_mark_and_one_of_each_are_marks():
    assert str(Cell.of([Status.PASS])) == "✓"
    assert str(Cell.of([Status.PASS, Status.FAIL])) == "✗ ✓"
    assert str(Cell.of([Status.PASS] * 9)) == "9✓"
    assert str(Cell.of([Status.REFUSED] * 2)) == "2–"
    assert Cell.of([Status.REFUSED] * 2).status is Status.REFUSED
    assert str(Cell()) == ""
    assert Cell().status is None


def test_a_cell_shows_every_status_the_worst_first():
    cell = Cell.of([*reversed(Status), Status.WARNING])
    assert str(cell) == "1✗ 1? 1◔ 2! 1✓ 1–"
    assert cell.status is Status.FAIL
    assert Cell.of([Status.PASS, Status.THIN, Status.INCONCLUSIVE]).status is Status.INCONCLUSIVE
    assert Cell.of([Status.REFUSED, Status.PASS, Status.WARNING]).status is Status.WARNING


def test_a_language_has_a_column_for_each_device_that_it_ran_on():
    matrix = make_matrix([
        verdict(backend="triton", device="cuda"), verdict(backend="triton", device="cpu", status=Status.FAIL),
        verdict(backend="max", device="cpu", status=Status.REFUSED),
    ])  # fmt: skip
    assert matrix.columns == (Column("triton", "cuda"), Column("triton", "cpu"), Column("max", ""))
    assert rows_of(matrix) == {"f": ["✓", "✗", "–"]}
    assert matrix.several_devices


def test_a_refused_kernel_is_counted_with_its_language_whatever_device_it_was_for():
    matrix = make_matrix([verdict(backend="mojo"), verdict(backend="mojo", device="cuda", status=Status.REFUSED)])
    assert matrix.columns == (Column("mojo", "cpu"),)
    assert rows_of(matrix) == {"f": ["✓ –"]}
    assert not matrix.several_devices


def test_the_reference_has_the_last_column_whatever_it_is_written_in():
    matrix = make_matrix([verdict(kernel="reference", backend="numpy"), verdict(backend="numpy")])
    assert [c.language for c in matrix.columns] == ["numpy", "reference"]
    assert rows_of(matrix) == {"f": ["✓", "✓"]}


def test_names_keep_their_namespace_where_they_differ():
    assert [name for name, _ in make_matrix([verdict(op="a::f"), verdict(op="b::f")]).rows] == ["a::f", "b::f"]
    assert [name for name, _ in make_matrix([verdict(op="ab::f"), verdict(op="ab::fg")]).rows] == ["f", "fg"]
    assert [name for name, _ in make_matrix([verdict(op="<f>")]).rows] == ["<f>"]


def test_nothing_gives_an_empty_matrix():
    assert make_matrix([]).rows == ()

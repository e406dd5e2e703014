"""Importing a Python file by its path: the module, and ``sys.modules`` after success and failure."""

import os
import pickle
import py_compile
import sys

import pytest

from opwright.import_file import import_file


@pytest.fixture
def name():
    name = "opwright_test_imported_file"
    assert name not in sys.modules
    yield name
    sys.modules.pop(name, None)


def write(path, text):
    path.write_text(text)
    return path


def test_the_file_runs_as_a_module_of_that_name(tmp_path, name):
    path = write(tmp_path / "other_name.py", "x = __name__\ny = __file__\n")
    module = import_file(path, name)
    assert sys.modules[name] is module
    assert (module.x, module.y) == (name, str(path))
    assert module.__spec__.name == name
    assert str(tmp_path) not in sys.path


def test_the_module_is_in_sys_modules_while_it_runs(tmp_path, name):
    """Pickle, dataclasses and ``inspect`` find the module of a class there."""
    path = write(tmp_path / "a.py", "import sys\nassert sys.modules[__name__].__dict__ is globals()\nclass C: pass\n")
    module = import_file(path, name)
    assert type(pickle.loads(pickle.dumps(module.C()))) is module.C


def test_the_same_name_twice_gives_a_new_module(tmp_path, name):
    first = import_file(write(tmp_path / "a.py", "x = 1\nleft_over = 1\n"), name)
    second = import_file(write(tmp_path / "b.py", "x = 2\n"), name)
    assert (first.x, second.x) == (1, 2)
    assert sys.modules[name] is second
    assert not hasattr(second, "left_over")


def test_the_same_file_under_two_names_gives_two_modules(tmp_path, name):
    path = write(tmp_path / "a.py", "values = []\n")
    try:
        first, second = import_file(path, name), import_file(path, name + "_2")
        first.values.append(1)
        assert second.values == []
        assert sys.modules[name] is first
    finally:
        sys.modules.pop(name + "_2", None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise ValueError('broken')\n", ValueError),
        ("def f(:\n", SyntaxError),
        ("import no_such_module_at_all\n", ImportError),
        ("import sys\nsys.exit(3)\n", SystemExit),
        ("raise KeyboardInterrupt\n", KeyboardInterrupt),
        ("import sys\ndel sys.modules[__name__]\nraise ValueError\n", ValueError),
    ],
)
def test_a_failing_file_leaves_sys_modules_as_it_was(tmp_path, name, text, error):
    path = write(tmp_path / "broken.py", text)
    with pytest.raises(error):
        import_file(path, name)
    assert name not in sys.modules

    earlier = import_file(write(tmp_path / "good.py", ""), name)
    with pytest.raises(error):
        import_file(path, name)
    assert sys.modules[name] is earlier


def test_a_failing_file_may_be_repaired_and_imported_again(tmp_path, name):
    path = write(tmp_path / "a.py", "x = 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_file(path, name)
    write(path, "x = 'repaired, and longer'\n")
    assert import_file(path, name).x == "repaired, and longer"


def test_bytecode_of_another_text_is_not_run(tmp_path, name):
    """It has the same size, and the same time of the last change, as files of an archive may have."""
    path = tmp_path / "a.py"
    for text in ("x = 2\n", "x = 3\n"):
        write(path, text)
        os.utime(path, (1e9, 1e9))
        assert import_file(path, name).x == int(text[-2])
        py_compile.compile(str(path))


def test_a_file_that_is_not_python_is_refused(tmp_path, name):
    path = write(tmp_path / "notes.txt", "x = 1\n")
    with pytest.raises(ImportError, match=r"notes\.txt is not a Python file") as caught:
        import_file(path, name)
    assert (caught.value.name, caught.value.path) == (name, str(path))
    assert name not in sys.modules


def test_a_missing_file_raises_and_leaves_nothing(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        import_file(tmp_path / "missing.py", name)
    assert name not in sys.modules

"""The libraries for programs without Python: in a process with torch but without opwright, and in C++."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests import REPOSITORY
from tests.package.shipping import ALL, SOURCES, install, opwright, python_with

pytestmark = pytest.mark.compiler
DOCS = REPOSITORY / "docs" / "packaging.md"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    made = tmp_path_factory.mktemp("shapes")
    opwright("package", SOURCES / "shapes.py", "--name", "shape_ops", "--out", made / "project")
    return install(made / "project", made / "site")


# Runs valid and invalid calls, and prints for each one its first element or its error.
CALLS = """
import torch
x, y, p = torch.zeros(2, 4), torch.zeros(4), [torch.zeros(5, 4)]
index, pair = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(6, 1, 1, dtype=torch.int32)
calls = {
    "plain": (x, y, p), "double": (x.double(), y.double(), [p[0].double()]), "half": (x.half(), y.half(), []),
    "more batch": (x[None, None], y, p), "no batch": (x[0], y, p), "broadcast": (x, y[:1], p),
    "index": (x, y, p, index), "pair": (x, y, p, None, pair), "k": (x, y, p, index[:1].repeat(4, 1), None, 5),
    "empty": (x[:, :0], y[:0], [], None, None, 1),
    "rank": (x[0, 0], y, p), "y": (x, y[:2], p), "y rank": (x, x, p), "parts": (x, y, [p[0], x[:, :3]]),
    "mixed": (x, y.double(), p), "int": (x.long(), y, p), "index size": (x, y, p, index[:1]),
    "index columns": (x, y, p, index[:, :2]), "pair dtype": (x, y, p, None, pair.long()),
    "pair size": (x, y, p, None, pair.repeat(1, 2, 1)), "sparse": (x.to_sparse(), y, p),
    "k changes": (x, y, p, index, None, 2), "k breaks": (x, y, p, index, None, 4), "meta": (x, y.to("meta"), p),
    "where": (x, y, p, None, None, 3), "where not": (torch.zeros(2, 5), torch.zeros(5), []),
}
for name, call in calls.items():
    try:
        result = torch.ops.shapes.shapes(*call)
        print(name, "|", result.flatten()[0].item() if result.numel() else "nothing")
    except Exception as error:
        print(name, "| error |", str(error).splitlines()[0])
"""


def outcomes(text):
    """By call, the result, or whether an error came and which argument it names."""
    found = {}
    for line in text.splitlines():
        name, _, outcome = line.partition(" | ")
        argument = re.search(r"argument '(\w+)", outcome)
        found[name] = outcome if "error" not in outcome else ("error", argument and argument[1])
    return found


@pytest.mark.exhaustive
@pytest.mark.slow  # builds a package's library
def test_checks_in_cpp_are_those_in_python(shapes):
    library = shapes / "shape_ops" / "native" / "libshape_ops.so"
    python = outcomes(python_with(shapes)("import shape_ops\n" + CALLS))
    cpp = outcomes(python_with()(f"import torch\ntorch.ops.load_library({str(library)!r})\n" + CALLS))
    assert len(python) == 26
    # Where no native kernel takes the dtype, Python runs the reference; C++ has none.
    assert python.pop("half") == "0.0"
    assert cpp.pop("half") == ("error", None)
    assert python.pop("where not") == ("error", "x")  # C++ does not name the argument of a size
    assert cpp.pop("where not") == ("error", None)
    for other in ("meta", "sparse"):  # another implementation is asked for: in C++ the dispatcher's own error
        assert python.pop(other)[0] == cpp.pop(other)[0] == "error"
    assert cpp == python
    assert [python[n] for n in ("plain", "double", "k", "empty")] == ["1.0", "2.0", "1.0", "nothing"]
    assert python["index size"] == ("error", "index")
    assert python["where"] == ("error", None)


@pytest.mark.slow
def test_the_library_alone_runs_saved_outputs_lists_and_defaults(mixed):
    library = mixed / "mixed_ops" / "native" / "libmixed_ops.so"
    output = python_with()(f"""
        import torch
        torch.ops.load_library({str(library)!r})
        x = torch.ones(2, 2)
        out, e = torch.ops.mixed.scaled_exp(x, 2.0, [1.0, 0.5])
        torch.testing.assert_close(out, 3 * x.exp())
        torch.testing.assert_close(e, x.exp())
        try:
            torch.ops.mixed.gather_sum([x], torch.tensor([0]))
        except NotImplementedError as error:
            print(error)
        try:
            torch.ops.mixed.scaled_exp(x[0], 2.0, [])
        except RuntimeError as error:
            print(error)
    """)
    assert "Could not run 'mixed::gather_sum'" in output  # it has no native kernel: only its schema is there
    assert "mixed::scaled_exp: argument 'x' must have 2 dims, got 1" in output


def test_libraries_name_no_folder_of_the_machine_that_built_them(mixed):
    for library in (mixed / "mixed_ops" / "native").glob("*.so"):
        content = library.read_bytes()
        for folder in (str(SOURCES), str(Path(torch.__file__).parent), str(Path.home())):
            assert folder.encode() not in content, library


# A script that exports and compiles a model, and prints its results.
MODEL = """
import torch
IMPORTS

class Model(torch.nn.Module):
    def forward(self, x):
        return OUTPUTS

x = torch.linspace(-1, 1, 6, device="DEVICE").reshape(2, 3)
program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
torch._inductor.aoti_compile_and_package(program, package_path="FILE")
print(*(f"{v:.4f}" for out in Model()(x) for v in out.flatten().tolist()))
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The C++ program of the page."""
    folder = tmp_path_factory.mktemp("program")
    source = re.search(r"```cpp\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert source is not None
    (folder / "main.cpp").write_text(source[1])
    torch_home = Path(torch.__file__).parent
    includes = [f"-I{torch_home / 'include'}", f"-I{torch_home / 'include/torch/csrc/api/include'}"]
    cxx = shutil.which("g++") or "c++"
    links = [f"-L{torch_home / 'lib'}", f"-Wl,-rpath,{torch_home / 'lib'}", "-Wl,--no-as-needed", "-ltorch"]
    links += ["-ltorch_cpu", "-lc10", "-ldl", "-Wl,--allow-shlib-undefined"]
    command = [cxx, "-std=c++20", str(folder / "main.cpp"), "-o", str(folder / "main"), *includes, *links]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if built.returncode != 0:
        pytest.skip(f"libtorch's headers do not compile here: {built.stderr[-300:]}")
    return folder / "main"


def assert_runs(program, device, folders, imports, outputs, libraries, tmp_path):
    """The program gives the same results as Python."""
    model = str(tmp_path / "model.pt2")
    given = {"IMPORTS": imports, "OUTPUTS": outputs, "DEVICE": device, "FILE": model}
    script = re.sub("|".join(given), lambda word: given[word[0]], MODEL)
    expected = python_with(*folders)(script).split()
    command = [program, model, device, *libraries]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = re.findall(r"-?\d+\.\d+", ran.stdout)
    assert len(printed) == len(expected) == 12
    torch.testing.assert_close(torch.tensor([*map(float, printed)]), torch.tensor([*map(float, expected)]))


@pytest.mark.slow
def test_a_cpp_program_runs_an_exported_model(program, trig, mixed, tmp_path):
    outputs = "my_ops.sin(x) + 1, mixed_ops.scaled_exp(x, 2.0, [1.0, 0.5])"
    libraries = [trig / "my_ops" / "native" / "libmy_ops.so", mixed / "mixed_ops" / "native" / "libmixed_ops.so"]
    assert_runs(program, "cpu", [trig, mixed], "import my_ops, mixed_ops", outputs, libraries, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow  # AOTInductor compiles a model
def test_a_cpp_program_runs_a_model_whose_operator_writes_its_argument(program, written, tmp_path):
    imports = """
import written_ops

def added(x):
    out = torch.empty_like(x)
    written_ops.add_out(x, x, out)
    return out
"""
    libraries = [written / "written_ops" / "native" / "libwritten_ops.so"]
    assert_runs(program, "cpu", [written], imports, "added(x), added(x) + 1", libraries, tmp_path)


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.triton
def test_a_cpp_program_runs_triton_and_cuda_kernels(program, tmp_path):
    made = []
    for source, name in (("opwright.gallery.trig", "my_ops"), (SOURCES / "gpu.py", "gpu_ops")):
        opwright("package", source, "--name", name, "--out", tmp_path / name)
        made.append(tmp_path / name)
    native = made[1] / "gpu_ops" / "native"
    libraries = [made[0] / "my_ops/native/libmy_ops.so", native / "libgpu_ops.so", native / "libgpu_ops_cuda.so"]
    outputs = "my_ops.sin(x) + 1, gpu_ops.scale(x, 2.5)"
    assert_runs(program, "cuda", made, "import my_ops, gpu_ops", outputs, libraries, tmp_path)


@pytest.mark.gpu
@pytest.mark.nvcc
def test_the_lltm_cell_is_shipped_with_its_cuda_kernels(tmp_path):
    opwright("package", "opwright.gallery.lltm", "--name", "my_lltm", "--out", tmp_path / "project", *ALL)
    python_with(tmp_path / "project")("""
        import torch, my_lltm
        from torch.nn.functional import elu

        def cell(x, weight, bias, h, c):
            i, o, g = torch.addmm(bias, torch.cat((h, x), 1), weight.t()).chunk(3, 1)
            c = c + elu(g) * i.sigmoid()
            return c.tanh() * o.sigmoid(), c

        assert [*my_lltm.lltm.kernels] == ["cpp", "cuda_host", "triton"]
        for b in (5, 300):
            shapes = (b, 3), (24, 11), (24,), (b, 8), (b, 8)
            given = [torch.randn(s, dtype=torch.float64, device="cuda", requires_grad=True) for s in shapes]
            found, expected = my_lltm.lltm(*given), cell(*given)
            torch.testing.assert_close(found, expected)
            gradients = [torch.autograd.grad(sum(o.square().sum() for o in s), given) for s in (found, expected)]
            torch.testing.assert_close(*gradients)
    """)

"""gallery::sin and gallery::cos: their kernels, their gradients, and everything that PyTorch does with an operator."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import opwright as ow
from opwright.errors import KernelError
from opwright.gallery.trig import FLOATS, cos, sin, sin_backward

OPS = {"sin": (sin, torch.sin), "cos": (cos, torch.cos)}
TRITON_KERNELS = [("sin", "triton"), ("sin", "triton_heuristics"), ("cos", "triton")]
EDGES = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3.14159265, 1e4, 123456.7, 1e10, 3e38]


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Within two units in the last place of numbers around 1: what libm and Triton's libdevice promise."""
    unit = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out, expected, rtol=2 * unit, atol=2 * unit, equal_nan=True)
    assert out.is_contiguous()


def reversed_dims(x: torch.Tensor) -> torch.Tensor:
    """Random numbers of the same shape, in memory from the last dim to the first."""
    backwards = tuple(range(x.dim()))[::-1]
    return torch.randn([x.shape[dim] for dim in backwards], device=x.device).to(x.dtype).permute(backwards)


# -- the kernels ----------------------------------------------------------------------------------------


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPS)
def test_the_cpp_kernel_gives_what_the_reference_gives_in_every_layout(name, dtype, layouts):
    operator, reference = OPS[name]
    for x in layouts(dtype):
        assert_close(operator.kernels["cpp"](x), reference(x))


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPS)
def test_the_cpp_kernel_is_right_for_nan_infinities_and_huge_angles(name, dtype):
    operator, reference = OPS[name]
    x = torch.tensor(EDGES * 3, dtype=torch.float64).to(dtype)
    assert_close(operator.kernels["cpp"](x), reference(x))


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_in_cpp_gives_what_the_reference_gives_in_every_layout(dtype, layouts):
    for x in layouts(dtype):
        for grad in (x.clone(), torch.ones((), dtype=dtype).expand(x.shape), reversed_dims(x)):
            assert_close(sin_backward.kernels["cpp"](grad, x), sin_backward.contract.function(grad, x))


@pytest.mark.slow
@pytest.mark.triton
def test_triton_kernels_agree_with_the_reference_in_the_interpreter(run_python):
    run_python(
        """
        import torch
        from opwright.gallery.trig import FLOATS, cos, sin, sin_backward
        for op, kernel in ((sin, "triton"), (sin, "triton_heuristics"), (cos, "triton"), (sin_backward, "triton")):
            for dtype in FLOATS:
                for shape in ((), (0,), (1,), (1025,), (2048,), (33, 70)):
                    given = [torch.randn(shape).to(dtype) for _ in op.contract.signature.arguments]
                    torch.testing.assert_close(op.kernels[kernel](*given), op.contract.reference(given)[0])
        """,
        env={"TRITON_INTERPRET": "1"},
    )


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "kernel"), TRITON_KERNELS)
def test_triton_kernels_agree_with_the_reference_on_a_gpu(name, kernel, dtype, layouts):
    operator, reference = OPS[name]
    edges = torch.tensor(EDGES, dtype=torch.float64).to("cuda", dtype)
    for x in (*layouts(dtype, "cuda"), edges):
        assert_close(operator.kernels[kernel](x), reference(x))


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_in_triton_agrees_with_the_reference_on_a_gpu(dtype, layouts):
    for x in layouts(dtype, "cuda"):
        grad = reversed_dims(x)
        assert_close(sin_backward.kernels["triton"](grad, x), sin_backward.contract.function(grad, x))


# -- autotune and heuristics --------------------------------------------------------------------------------


def launcher_of(order: str):
    import triton
    import triton.language as tl

    @triton.jit
    def sin_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < n
        tl.store(out + offsets, tl.sin(tl.load(x + offsets, mask=inside)), mask=inside)

    autotune = triton.autotune(configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=[])
    heuristics = triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
    tuned = autotune(heuristics(sin_kernel)) if order == "autotune first" else heuristics(autotune(sin_kernel))

    def launch(x):
        out = x.new_empty(x.shape)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out

    return launch


def fresh_sin(namespace: str) -> ow.Op:
    return ow.op(f"{namespace}::sin")(sin.contract.function)


@pytest.mark.triton
def test_autotune_above_heuristics_is_accepted(namespace):
    operator = fresh_sin(namespace)
    operator.triton(launcher_of("autotune first"), name="tuned")
    assert list(operator.kernels) == ["tuned"]


@pytest.mark.triton
def test_heuristics_above_autotune_is_refused_with_the_reason_and_the_remedy(namespace):
    operator = fresh_sin(namespace)
    with pytest.raises(KernelError) as refused:
        operator.triton(launcher_of("heuristics first"))
    messages = str(refused.value)
    assert "sin_kernel has @triton.heuristics above @triton.autotune" in messages
    assert "put @triton.autotune first, then @triton.heuristics" in messages
    assert not operator.kernels


# -- what PyTorch does with an operator -------------------------------------------------------------------------


def test_gradients_of_any_order_are_right(device):
    x = torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True)
    for operator in (sin, cos):
        assert torch.autograd.gradcheck(operator, (x,))
        assert torch.autograd.gradgradcheck(operator, (x,))


@pytest.mark.compiler
def test_the_parts_written_by_hand_are_reported_so():
    for part in ("autograd", "flops", "cpu", "cuda"):
        assert sin.parts[part].origin == "custom"
    assert sin.parts["fake"].origin == "derived"


@pytest.mark.parametrize(("name", "backward"), [("sin", "gallery::sin_backward"), ("cos", "gallery::sin")])
def test_the_backward_runs_an_operator(name, backward, device):
    operator, reference = OPS[name]
    x = torch.randn(7, device=device, requires_grad=True)
    with torch.profiler.profile() as profile:
        operator(x).sum().backward()
    assert {f"gallery::{name}", backward} <= {event.name for event in profile.events()}
    assert torch.allclose(x.grad, torch.autograd.grad(reference(x).sum(), x)[0])


def test_a_training_step_compiles_without_a_graph_break(device, compiled):
    x = torch.randn(1025, device=device, requires_grad=True)
    compiled(lambda x: sin(x).sum())(x).backward()
    assert torch.allclose(x.grad, x.cos(), atol=1e-6)


@pytest.mark.gpu
@pytest.mark.triton
def test_torch_compile_traces_into_the_kernels_of_forward_and_backward(run_and_get_code):
    x = torch.randn(1025, device="cuda", requires_grad=True)
    forward = torch.compile(lambda x: sin(x) * 2, fullgraph=True)

    def train():
        forward(x).sum().backward()

    _, code = run_and_get_code(train)
    assert torch.allclose(x.grad, 2 * x.cos(), atol=1e-6)
    assert "sin_kernel" in code
    assert "sin_backward_kernel" in code
    assert "torch.ops.gallery" not in code


@pytest.mark.gpu
@pytest.mark.triton
def test_torch_compile_traces_into_a_kernel_with_autotune_and_heuristics(run_and_get_code):
    for n in (1025, 4096):
        torch.compiler.reset()
        x = torch.randn(n, device="cuda")
        with sin.only("triton_heuristics"):
            out, code = run_and_get_code(torch.compile(lambda x: sin(x) * 2, fullgraph=True), x)
        assert torch.allclose(out, 2 * x.sin(), atol=1e-6)
        assert "sin_kernel_heuristics" in code


def test_dynamic_shapes_do_not_recompile(device, compiled):
    function = compiled(lambda x: sin(x) + 1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (1025, 7, 64, 4096):
            x = torch.randn(n, device=device)
            torch._dynamo.mark_dynamic(x, 0)
            assert torch.allclose(function(x), x.sin() + 1, atol=1e-6)


class Calls(torch.nn.Module):
    def forward(self, x):
        return sin(x) + cos(x)


def test_export_keeps_the_operators_opaque(device):
    x = torch.randn(6, 4, device=device)
    dynamic = {"x": {0: torch.export.Dim("batch", min=2, max=4096)}}
    program = torch.export.export(Calls(), (x,), dynamic_shapes=dynamic)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"gallery.sin.default", "gallery.cos.default"} <= targets
    longer = torch.randn(50, 4, device=device)
    assert torch.allclose(program.module()(longer), longer.sin() + longer.cos(), atol=1e-6)


AOTINDUCTOR = """
import sys, torch
{imports}

class Calls(torch.nn.Module):
    def forward(self, x):
        return {expression}

x = torch.randn(1025, device=sys.argv[1])
program = torch.export.export(Calls(), (x,))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
run = torch._inductor.aoti_load_package(package)
assert torch.allclose(run(x), x.sin() + x.cos(), atol=1e-6)
print("the package gives the sum")
"""


@pytest.fixture
def loads_packages(device, needs_aot_packages):
    needs_aot_packages(device)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("loads_packages")
def test_an_aotinductor_package_runs_it(device, tmp_path, run_python):
    imports = "from opwright.gallery.trig import cos, sin"
    script = AOTINDUCTOR.format(imports=imports, expression="sin(x) + cos(x)")
    assert "the package gives the sum" in run_python(script, device, tmp_path / "calls.pt2").stdout


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.usefixtures("loads_packages")
def test_an_aotinductor_package_runs_where_the_operator_is_not_known(device, tmp_path, run_python):
    x = torch.randn(1025, device=device)
    program = torch.export.export(Calls(), (x,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "calls.pt2"))
    run_python(
        """
        import sys, torch
        run = torch._inductor.aoti_load_package(sys.argv[1])
        x = torch.randn(1025, device="cuda")
        assert torch.allclose(run(x), x.sin() + x.cos(), atol=1e-6)
        assert "opwright" not in sys.modules
        """,
        package,
    )


def test_the_flop_counter_uses_the_formula(device):
    x = torch.randn(5, 7, device=device)
    with FlopCounterMode(display=False) as counter:
        sin(cos(x))
    counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    assert counts == {"gallery.sin": 35, "gallery.cos": 35}


class Wrapped(torch.Tensor):
    """A tensor subclass that lists what is called on it and passes it on to the tensor inside."""

    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):  # torch.compile writes it into its log, and the default computes
        return f"Wrapped({self.inner!r})"

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        inner = torch.utils._pytree.tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        out = function(*inner[0], **inner[1])
        return torch.utils._pytree.tree_map_only(torch.Tensor, Wrapped, out)


def test_a_tensor_subclass_sees_the_operator_and_composes_with_it(device, compiled):
    x = torch.randn(9, device=device)
    Wrapped.seen.clear()
    out = sin(Wrapped(x))
    assert isinstance(out, Wrapped)
    assert torch.allclose(out.inner, x.sin(), atol=1e-6)
    assert Wrapped.seen == ["gallery.sin.default"]
    out = compiled(lambda x: sin(x))(Wrapped(x))
    assert isinstance(out, Wrapped)
    assert torch.allclose(out.inner, x.sin(), atol=1e-6)


class SinTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return sin(x) * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * cos(x) * 2


def test_an_autograd_function_may_call_the_operators(device, compiled):
    for apply in (SinTwice.apply, compiled(lambda x: SinTwice.apply(x))):
        x = torch.randn(33, device=device, requires_grad=True)
        apply(x).sum().backward()
        assert torch.allclose(x.grad, 2 * x.detach().cos(), atol=1e-6)


def test_vmap_follows_from_the_reference(device):
    x = torch.randn(4, 6, device=device)
    assert torch.allclose(torch.vmap(sin)(x), x.sin(), atol=1e-6)

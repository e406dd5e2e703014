"""What PyTorch's transforms make of an operator, each tried: the table in docs/transforms.md.

``python tests/runtime/transforms.py`` prints it; ``--write`` puts it into the page. Two operators of one meaning go
through every row: one with nothing but a reference and kernels, so that everything is derived, and one with a backward
operator, a saved output and kernels for each. On a GPU, all but the rows of several processes are tried with CUDA
kernels.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import opwright as ow
from tests import REPOSITORY
from tests.warm import run_script as run_warm

PAGE = REPOSITORY / "docs" / "transforms.md"
START, END = "<!-- table: start -->", "<!-- table: end -->"


# -- the two operators ---------------------------------------------------------------------------------------------


@ow.op("transforms::derived")
def derived(x: Float[Tensor, "*b n"], w: Float[Tensor, " n"]) -> Float[Tensor, "*b n"]:
    return torch.tanh(x) * w


derived.python(lambda x, w: torch.tanh(x) * w, name="kernel", devices=["cpu"])


@ow.op("transforms::written")
def written(
    x: Float[Tensor, "*b n"], w: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "*b n"], Annotated[Float[Tensor, "*b n"], ow.saved_for_backward]]:
    t = torch.tanh(x)
    return t * w, t


@written.python(name="kernel", devices=["cpu"])
def _(x, w):
    t = torch.tanh(x).contiguous()
    return t * w, t


@ow.op("transforms::written_backward")
def written_backward(
    grad: Float[Tensor, "*b n"], result1: Float[Tensor, "*b n"], w: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "*b n"], Float[Tensor, " n"]]:
    return grad * w * (1 - result1 * result1), (grad * result1).flatten(0, -2).sum(
        0
    ) if grad.dim() > 1 else grad * result1


written.register_autograd(written_backward)

# -- their kernels on a GPU ----------------------------------------------------------------------------------------

cuda = ow.cuda_module("""
template <class T>
__global__ void forward(const T* x, const T* w, T* out, T* saved, long long size, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= size) return;
  const T t = tanh(x[i]);
  out[i] = t * w[i % n];
  if (saved) saved[i] = t;
}

// One thread for each column: the order of its sum is always the same.
template <class T>
__global__ void backward(const T* grad, const T* t, const T* w, T* grad_x, T* grad_w, long long rows, long long n) {
  const long long j = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (j >= n) return;
  T sum = 0;
  for (long long i = j; i < rows * n; i += n) {
    grad_x[i] = grad[i] * w[j] * (1 - t[i] * t[i]);
    sum += grad[i] * t[i];
  }
  grad_w[j] = sum;
}
""")
CPP_TYPE = {torch.float32: "float", torch.float64: "double"}


def launch_forward(x, w, saved):
    out, size = torch.empty_like(x, memory_format=torch.contiguous_format), x.numel()
    kernel = cuda[f"forward<{CPP_TYPE[x.dtype]}>"]
    kernel[ow.cdiv(size, 256), 256](x.contiguous(), w.contiguous(), out, saved, size, w.numel())
    return out


@derived.cuda(name="cuda", dtypes=[*CPP_TYPE])
def _(x, w):
    return launch_forward(x, w, None)


@written.cuda(name="cuda", dtypes=[*CPP_TYPE])
def _(x, w):
    saved = torch.empty_like(x, memory_format=torch.contiguous_format)
    return launch_forward(x, w, saved), saved


@written_backward.cuda(name="cuda", dtypes=[*CPP_TYPE])
def _(grad, result1, w):
    grad, n = grad.contiguous(), w.numel()
    grad_x, grad_w = torch.empty_like(grad), torch.empty_like(w, memory_format=torch.contiguous_format)
    cuda[f"backward<{CPP_TYPE[w.dtype]}>"][ow.cdiv(n, 256), 256](
        grad, result1.contiguous(), w.contiguous(), grad_x, grad_w, grad.numel() // max(n, 1), n
    )
    return grad_x, grad_w


OPERATORS = {"derived": derived, "custom": written}


def meaning(x, w):
    return torch.tanh(x) * w


def inputs(*, grad: bool = False, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*s, generator=generator, dtype=dtype).to(Row.device) for s in ((3, 5), (5,)))
    return x.requires_grad_(grad), w.requires_grad_(grad)


same = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)


# -- the rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A way to use an operator. ``run`` raises unless it does what the reference does; it returns a remark."""

    what: str
    run: Callable[[Any], str | None]
    slow: bool = False
    processes: int = 1

    device: ClassVar[str] = "cpu"  # on which rows are tried now


ROWS: list[Row] = []


def row(what: str, *, slow: bool = False, processes: int = 1) -> Callable[[Any], Any]:
    def add(run: Callable[[Any], str | None]) -> Any:
        ROWS.append(Row(what, run, slow, processes))
        return run

    return add


def gradients(function: Callable[..., Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(*arguments).square().sum(), arguments)


@row("`loss.backward()`, only the gradients that are needed")
def backward(op):
    x, w = inputs(grad=True)
    same(gradients(op, x, w), gradients(meaning, x, w))
    assert torch.autograd.gradcheck(op, (x, w))
    assert torch.autograd.grad(op(x.detach(), w).sum(), w)


@row("second and third derivatives (`create_graph=True`)")
def higher(op):
    x, w = inputs(grad=True)
    assert torch.autograd.gradgradcheck(op, (x, w))

    def third(f):
        (first,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return torch.autograd.grad(second.sum(), x)

    same(third(op), third(meaning))
    return "the reference's" if op is written else None


@row("`torch.no_grad()`, `torch.inference_mode()`")
def without_grad(op):
    x, w = inputs(grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            same(op(x, w), meaning(x, w))
            assert not op(x, w).requires_grad


@row("`torch.compile(fullgraph=True)`, forward and backward, static and dynamic shapes", slow=True)
def compiled(op):
    x, w = inputs(grad=True, dtype=torch.float32)
    for dynamic in (False, True):
        torch.compiler.reset()
        function = torch.compile(lambda x, w: op(x * 2, w) + 1, fullgraph=True, dynamic=dynamic)
        for rows in (3, 2) if dynamic else (3,):
            same(
                gradients(function, x[:rows].detach().requires_grad_(), w),
                gradients(lambda x, w: meaning(x * 2, w) + 1, x[:rows].detach().requires_grad_(), w),
            )


@row("compiled autograd", slow=True)
def compiled_autograd(op):
    x, w = inputs(grad=True, dtype=torch.float32)

    def step():
        op(x, w).square().sum().backward()
        found, x.grad = x.grad, None
        return found

    plain = step()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        same(step(), plain)


class Module(torch.nn.Module):
    def __init__(self, op, n: int = 5, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.op = op
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, n, dtype=dtype, device=Row.device))

    def forward(self, x):
        return self.op(x, self.w)


@row("`torch.export`, strict or not, with dynamic sizes, saved and loaded")
def export(op):
    x, _ = inputs()
    rows = torch.export.Dim("rows", min=2, max=64)
    for strict in (True, False):
        program = torch.export.export(Module(op), (x,), dynamic_shapes={"x": {0: rows}}, strict=strict)
        assert op.overload in {node.target for node in program.graph.nodes}
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        longer = torch.randn(20, 5, dtype=torch.float64, device=Row.device)
        same(torch.export.load(file).module()(longer), Module(op)(longer))


@row("AOTInductor: compiled, loaded and run in Python", slow=True)
def aot_inductor(op):
    with tempfile.TemporaryDirectory() as folder:
        script = f"""
import torch
from tests.runtime.register import transforms
op = transforms.OPERATORS[{next(k for k, v in OPERATORS.items() if v is op)!r}]
transforms.Row.device = {Row.device!r}
x = torch.randn(3, 5, device={Row.device!r})
module = transforms.Module(op, dtype=torch.float32)
program = torch.export.export(module, (x,))
package = torch._inductor.aoti_compile_and_package(program, package_path={folder!r} + "/m.pt2")
torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), module(x))
"""
        run_script(script)


@row("`torch.func.grad`, `vjp`, `jacrev`")
def reverse_transforms(op):
    x, w = inputs()
    loss = lambda f: lambda x, w: f(x, w).square().sum()  # noqa: E731
    same(torch.func.grad(loss(op), (0, 1))(x, w), torch.func.grad(loss(meaning), (0, 1))(x, w))
    same(torch.func.jacrev(op, 1)(x, w), torch.func.jacrev(meaning, 1)(x, w))
    primal, pull = torch.func.vjp(op, x, w)
    same(pull(torch.ones_like(primal)), torch.func.vjp(meaning, x, w)[1](torch.ones_like(primal)))


@row("`torch.func.jvp`, `jacfwd`, `forward_ad`")
def forward_mode(op):
    x, w = inputs()
    tangents = torch.randn_like(x), torch.randn_like(w)
    same(torch.func.jvp(op, (x, w), tangents), torch.func.jvp(meaning, (x, w), tangents))
    same(torch.func.jacfwd(op)(x, w), torch.func.jacfwd(meaning)(x, w))
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(op(forward_ad.make_dual(x, tangents[0]), w))
    same(out.tangent, torch.func.jvp(lambda x: meaning(x, w), (x,), tangents[:1])[1])
    return "runs the reference, not the kernel"


@row("`torch.func.hessian`")
def hessian(op):
    x, w = inputs()
    same(
        torch.func.hessian(lambda x: op(x, w).square().sum())(x[0]),
        torch.func.hessian(lambda x: meaning(x, w).square().sum())(x[0]),
    )
    return "runs the reference, not the kernel"


@row("`torch.vmap`: any dims, nested, over and under gradients")
def vmap(op):
    x, w = inputs()
    many = torch.stack([w, 2 * w, 3 * w])
    for in_dims in ((0, None), (None, 0), (0, 0), (1, None)):
        a = x.T.contiguous() if in_dims[0] == 1 else x
        b = many if in_dims[1] == 0 else w
        a = a if in_dims[0] is not None else x[0]
        same(torch.vmap(op, in_dims)(a, b), torch.vmap(meaning, in_dims)(a, b))
    nested = lambda f: torch.vmap(torch.vmap(f, (0, None)), (0, None))  # noqa: E731
    same(nested(op)(x.expand(2, 3, 5), w), nested(meaning)(x.expand(2, 3, 5), w))
    per_sample = lambda f: torch.vmap(torch.func.grad(lambda x, w: f(x, w).sum(), 1), (0, None))  # noqa: E731
    same(per_sample(op)(x, w), per_sample(meaning)(x, w))
    outside = lambda f: torch.func.grad(lambda w: torch.vmap(f, (0, None))(x, w).square().sum())  # noqa: E731
    same(outside(op)(w), outside(meaning)(w))
    return "vmaps the reference, unless `register_vmap`"


@row("`torch.func.functional_call`, ensembles by `stack_module_state`")
def functional(op):
    x, _ = inputs()
    models = [Module(op), Module(op)]
    state, buffers = torch.func.stack_module_state(models)
    out = torch.vmap(lambda s, b: torch.func.functional_call(models[0], (s, b), (x,)))(state, buffers)
    same(out, torch.stack([m(x) for m in models]))


@row("`torch.func.functionalize`")
def functionalize(op):
    x, w = inputs()
    same(torch.func.functionalize(op)(x, w), meaning(x, w))
    return "runs the reference, not the kernel"


@row("activation checkpointing, both kinds; saved-tensor hooks")
def checkpointing(op):
    x, w = inputs(grad=True)
    expected = gradients(meaning, x, w)
    for reentrant in (False, True):
        x.grad = w.grad = None
        checkpoint(op, x, w, use_reentrant=reentrant).square().sum().backward()
        same((x.grad, w.grad), expected)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        same(gradients(op, x, w), expected)
    assert packed
    with torch.autograd.graph.save_on_cpu():
        same(gradients(op, x, w), expected)


@row("inside an `autograd.Function`; gradient hooks")
def function(op):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return op(x, w) * 2

        @staticmethod
        def backward(ctx, grad):
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                return torch.autograd.grad(op(x, w) * 2, (x, w), grad)

    x, w = inputs(grad=True)
    same(gradients(Doubled.apply, x, w), gradients(lambda x, w: meaning(x, w) * 2, x, w))
    out, seen = op(x, w), []
    out.register_hook(seen.append)
    out.sum().backward()
    assert len(seen) == 1


class Wrapper(Tensor):
    """A subclass that holds a tensor, unwraps it for every operator, and wraps what comes back."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inside = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, cls, func(*inside[0], **inside[1]))


@row("tensor subclasses: `__torch_dispatch__`, `__torch_function__`, `nn.Parameter`")
def subclasses(op):
    x, w = inputs()
    wrapped = op(Wrapper(x), Wrapper(w))
    assert isinstance(wrapped, Wrapper)
    same(wrapped.inner, meaning(x, w))

    class Listening(Tensor):
        heard: list[Any] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.heard.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    op(x.as_subclass(Listening), w)
    assert any("transforms" in str(f) for f in Listening.heard)
    same(op(x, torch.nn.Parameter(w)).detach(), meaning(x, w))


@row("`torch.autocast`, without a policy and with each one")
def autocast(op):
    x, w = inputs(dtype=torch.float32)
    with torch.autocast(Row.device, dtype=torch.bfloat16):
        assert op(x, w).dtype == torch.float32
        assert torch.compile(op, backend="aot_eager", fullgraph=True)(x, w).dtype == torch.float32
    for policy, given, expected in (
        ("lower", torch.float32, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32),
        ("promote", torch.bfloat16, torch.float32),
    ):

        @ow.op(f"transforms::autocast_{policy}", autocast=policy)
        def cast(x: Float[Tensor, "*b n"], w: Float[Tensor, " n"]) -> Float[Tensor, "*b n"]:
            return torch.tanh(x) * w

        first = x.detach().to(given).requires_grad_()
        with torch.autocast(Row.device, dtype=torch.bfloat16):
            out = cast(first, w)
        assert out.dtype == expected, (policy, out.dtype)
        out.sum().backward()
        assert first.grad.dtype == given


@row("fake and meta tensors")
def fake(op):
    x, w = inputs()
    with torch._subclasses.FakeTensorMode() as mode:
        assert op(mode.from_tensor(x), mode.from_tensor(w)).shape == x.shape
    assert op(x.to("meta"), w.to("meta")).device.type == "meta"


@row("`FlopCounterMode`, the profiler")
def counting(op):
    from torch.utils.flop_counter import FlopCounterMode

    x, w = inputs()
    with FlopCounterMode(display=False) as counter:
        op(x, w)
    assert counter.get_total_flops() == 2 * x.numel()
    with torch.profiler.profile() as profile:
        op(x, w)
    assert any("transforms::" in event.key for event in profile.key_averages())


@row("`make_fx`, dispatch modes")
def tracing(op):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = inputs()
    graph = make_fx(lambda x, w: op(x, w))(x, w)
    assert op.overload in {n.target for n in graph.graph.nodes}


@row("modules that hold it: `copy.deepcopy`, `state_dict`, other threads")
def modules(op):
    import threading

    x, _ = inputs()
    module = Module(op)
    again = copy.deepcopy(module)
    again.load_state_dict(pickle.loads(pickle.dumps(module.state_dict())))
    same(again(x), module(x))
    found = []
    thread = threading.Thread(target=lambda: found.append(module(x)))
    thread.start()
    thread.join()
    same(found[0], module(x))


@row("sparse tensors")
def sparse(op):
    x, w = inputs()
    op(x.to_sparse(), w)


@row("in place, or into a given tensor (`out=`)")
def in_place(op):
    x, w = inputs()
    op(x, w, out=torch.empty_like(x))


@row("`torch.jit.trace`")
def jit_trace(op):
    x, w = inputs(dtype=torch.float32)
    traced = torch.jit.trace(lambda x, w: op(x, w), (x, w))
    same(traced(2 * x, w), meaning(2 * x, w))


@row("DistributedDataParallel, 2 processes over gloo", slow=True, processes=2)
def ddp(op):
    run_distributed(
        op,
        """
    model = torch.nn.parallel.DistributedDataParallel(module)
    (model(x) ** 2).sum().backward()
    every = torch.cat([torch.randn(4, 8, generator=torch.Generator().manual_seed(r)) for r in (0, 1)])
    (reference(every) ** 2).sum().backward()
    same(module.w.grad, reference.w.grad / 2)
    """,
    )


@row("FSDP2 (`fully_shard`), 2 processes over gloo", slow=True, processes=2)
def fsdp2(op):
    run_distributed(
        op,
        """
    from torch.distributed.fsdp import fully_shard
    fully_shard(module, mesh=mesh)
    every = torch.cat([torch.randn(4, 8, generator=torch.Generator().manual_seed(r)) for r in (0, 1)])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        (module(x) ** 2).mean().backward()
        (reference(every) ** 2).mean().backward()
        for o in (optimizer, plain):
            o.step()
            o.zero_grad()
    same(module.w.full_tensor(), reference.w)
    """,
    )


@row("DTensor: sharded forward and backward, 2 processes over gloo", slow=True, processes=2)
def dtensor(op):
    run_distributed(
        op,
        """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    whole, w = torch.randn(4, 8, generator=torch.Generator().manual_seed(5)), module.w.detach()
    dx = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
    dw = distribute_tensor(w, mesh, [Replicate()]).requires_grad_()
    out = op(dx, dw)
    assert out.placements == (Shard(0),), out.placements
    (out ** 2).sum().backward()
    px, pw = whole.clone().requires_grad_(), w.clone().requires_grad_()
    (transforms.meaning(px, pw) ** 2).sum().backward()
    same(out.full_tensor().detach(), transforms.meaning(whole, w))
    same(dx.grad.full_tensor(), px.grad)
    same(dw.grad.full_tensor(), pw.grad)
    """,
    )


@row("DTensor with `op.register_sharding`", slow=True, processes=2)
def sharding(op):
    run_distributed(
        op,
        """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    asked = []
    def rule(x, w):
        asked.append(1)
        outputs = [Replicate()] * len(op.contract.signature.returns)
        return [(outputs, [Replicate(), Replicate()])]
    op.register_sharding(rule)
    whole, w = torch.randn(4, 8, generator=torch.Generator().manual_seed(5)), module.w.detach()
    out = op(distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()]))
    assert asked and out.placements == (Replicate(),)
    same(out.to_local(), transforms.meaning(whole, w))
    """,
    )


_DISTRIBUTED = """
import os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.runtime.register import transforms

def work(rank, file):
    dist.init_process_group("gloo", store=dist.FileStore(file, 2), rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    op, same = transforms.OPERATORS[{name!r}], transforms.same
    module = transforms.Module(op, 8, torch.float32)
    reference = transforms.Module(transforms.meaning, 8, torch.float32)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
{body}
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way (torch 2.13)

if __name__ == "__main__":
    # Forked: this process has imported torch and run nothing.
    mp.start_processes(work, (tempfile.mktemp(),), nprocs=2, start_method="fork")
"""


def run_distributed(op: Any, body: str) -> None:
    name = next(k for k, v in OPERATORS.items() if v is op)
    run_script(_DISTRIBUTED.format(name=name, body=body))


def run_script(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{text}")
        done = run_warm(file, timeout=150)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"exit {done.returncode}: {last}\n{done.stderr[-3000:]}")


# -- running them, and the page ------------------------------------------------------------------------------------


def outcome(run: Row, name: str, device: str = "cpu") -> str:
    """``works``, with a remark, or ``refused: `` and what was said."""
    torch.compiler.reset()
    try:
        Row.device = device
        with contextlib.redirect_stderr(io.StringIO()):
            remark = run.run(OPERATORS[name])
    except Exception as error:
        return f"refused: {type(error).__name__}: {first_line(error)}"[:160].replace("|", "\\|")
    return "works" + (f"; {remark}" if remark else "")


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def render(outcomes: dict[str, dict[str, str]]) -> str:
    lines = [f"With torch {torch.__version__.partition('+')[0]}:", ""]
    lines += [f"| | {' | '.join(OPERATORS)} |", "|---|" + "---|" * len(OPERATORS)]
    lines += [f"| {what} | {' | '.join(found.values())} |" for what, found in outcomes.items()]
    return "\n".join(lines)


def recorded() -> dict[str, dict[str, str]]:
    """What the page says: outcomes by row and operator."""
    text = PAGE.read_text().partition(START)[2].partition(END)[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")][2:]
    return {r[0].strip(): dict(zip(OPERATORS, (c.strip() for c in r[1:]), strict=True)) for r in rows}


def all_outcomes() -> dict[str, dict[str, str]]:
    found = {}
    for run in ROWS:
        found[run.what] = {name: outcome(run, name) for name in OPERATORS}
        print(run.what, found[run.what], file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.modules["transforms"] = sys.modules["__main__"]
    table = render(all_outcomes())
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}")
    else:
        print(table)

"""A package that was made and installed, in a process that cannot import opwright."""

from __future__ import annotations

import pytest

from tests.package.shipping import python_with

pytestmark = pytest.mark.compiler


@pytest.mark.slow
def test_values_gradients_and_kernels(trig):
    python_with(trig)("""
        import torch, my_ops
        from my_ops import sin
        x = torch.linspace(-3, 3, 101)
        torch.testing.assert_close(my_ops.sin(x), torch.sin(x))
        torch.testing.assert_close(torch.ops.gallery.cos(x), torch.cos(x))
        assert my_ops.__all__ == ["cos", "sin", "sin_backward"] and my_ops.__version__ == "0.1.0"
        assert [*sin.kernels] == ["cpp", "triton", "triton_heuristics"]
        assert sin.kernels["cpp"]._launch is not None  # the library ran, not the reference
        assert sin(x.t()).is_contiguous()
        x = x[:5].double().requires_grad_()
        assert torch.autograd.gradcheck(sin, x) and torch.autograd.gradgradcheck(sin, x)
        torch.testing.assert_close(torch.func.grad(lambda x: sin(x).sum())(x.detach()), x.detach().cos())
        torch.testing.assert_close(torch.vmap(sin)(torch.ones(3, 4)), torch.ones(3, 4).sin())
        from torch.utils.flop_counter import FlopCounterMode
        with FlopCounterMode(display=False) as counter:
            sin(torch.ones(7))
        assert counter.get_total_flops() == 7
    """)


@pytest.mark.slow
def test_compile_fake_export_and_opcheck(trig):
    python_with(trig)("""
        import torch, my_ops
        from torch._subclasses.fake_tensor import FakeTensorMode
        def f(x):
            return my_ops.sin(x) + torch.ops.gallery.cos(x)
        x = torch.randn(6, requires_grad=True)
        out = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(out, x.sin() + x.cos())
        out.sum().backward()
        torch.testing.assert_close(x.grad, x.cos() - x.sin())
        with FakeTensorMode():
            assert my_ops.sin(torch.empty(2, 3).t()).stride() == (2, 1)
        class Model(torch.nn.Module):
            def forward(self, x):
                return f(x)
        program = torch.export.export(Model(), (torch.randn(4),))
        assert "gallery.sin" in program.graph_module.code
        torch.testing.assert_close(program.module()(torch.ones(4)), f(torch.ones(4)))
        torch.library.opcheck(torch.ops.gallery.sin.default, (torch.randn(3, requires_grad=True),))
    """)


def test_wrong_calls_are_refused_by_name_on_every_way(trig):
    output = python_with(trig)("""
        import torch, my_ops
        from my_ops._opwright.errors import ArgumentError
        for call in (my_ops.sin, torch.ops.gallery.sin):
            for grad in (False, True):
                try:
                    call(torch.ones(3, dtype=torch.complex64 if grad else torch.int64, requires_grad=grad))
                except ArgumentError as error:
                    print(error)
                else:
                    raise AssertionError
        with torch.inference_mode():
            try:
                torch.ops.gallery.sin(torch.ones(3, dtype=torch.int64))
            except ArgumentError as error:
                print(error)
    """)
    assert output.count("gallery::sin: argument 'x' must be Float, got int64") == 3
    assert output.count("gallery::sin: argument 'x' must be Float, got complex64") == 2


@pytest.mark.exhaustive
@pytest.mark.slow  # another wheel, built and installed
def test_saved_outputs_and_a_backward_that_is_an_operator(mixed):
    python_with(mixed)("""
        import torch, mixed_ops
        from mixed_ops import scaled_exp
        x = torch.randn(2, 3, dtype=torch.float64)
        out = scaled_exp(x, 2.0, [1.0, 0.5])
        torch.testing.assert_close(out, 3 * x.exp())
        assert [*scaled_exp.kernels] == ["cpp"] and scaled_exp.kernels["cpp"]._launch is not None
        assert len(torch.ops.mixed.scaled_exp(x, 2, [1])) == 2  # ints for floats, as torch takes them
        torch.testing.assert_close(scaled_exp(x, 2, [1]), 2 * x.exp())
        x.requires_grad_()
        def f(x):
            return scaled_exp(x, 2.0, [1.0, 0.5], 1)
        f(x).sum().backward()
        assert mixed_ops.scaled_exp_backward.kernels["cpp"]._launch is not None
        assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x)
        torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), 3 * x.exp())
        module = mixed_ops.Scale(3.0)
        module.eval()
        torch.testing.assert_close(module(x), 3 * x.exp())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert scaled_exp(torch.ones(1, 1, dtype=torch.bfloat16), 1.0, [1.0]).dtype == torch.float32
        import copy, pickle
        assert copy.deepcopy(scaled_exp) is scaled_exp and pickle.loads(pickle.dumps(scaled_exp)) is scaled_exp
    """)


@pytest.mark.slow
def test_lists_optional_arguments_and_a_kernel_with_a_predicate(mixed):
    output = python_with(mixed)("""
        import torch
        from mixed_ops import gather_sum
        tables, index = [torch.randn(4, 2, requires_grad=True), torch.randn(5, 2)], torch.tensor([0, 3])
        expected = tables[0][index] + tables[1][index]
        torch.testing.assert_close(gather_sum(tables, index), expected)
        torch.testing.assert_close(gather_sum(tables, index, torch.ones(2)), expected + 1)
        gather_sum(tables, index).sum().backward()
        assert tables[0].grad.sum() == 4
        try:
            gather_sum(tables, index, torch.ones(3))
        except ValueError as error:
            print(error)
    """)
    assert "dim 'n' of argument 'bias' must be 2 (as in argument 'tables[0]'), got 3" in output


@pytest.mark.slow
def test_what_is_left_of_opwright_in_a_package(mixed):
    output = python_with(mixed)("""
        import mixed_ops.mixed as source
        from mixed_ops import _opwright as ow
        assert ow.cdiv(5, 2) == 3
        for call in (lambda: source.kernels["scaled_exp"][1, 1](), lambda: ow.check(source.scaled_exp)):
            try:
                call()
            except RuntimeError as error:
                print(error)
        try:
            source.scaled_exp.apply_tuning
        except AttributeError as error:
            print(error)
    """)
    assert "ow.cuda_module is not part of a shipped package" in output
    assert "ow.check is not part of a shipped package" in output
    assert "Op has no 'apply_tuning' in a shipped package" in output


@pytest.mark.slow  # builds and installs two packages
@pytest.mark.exhaustive  # two minutes
def test_two_packages_with_one_operator(trig, tmp_path):
    from tests.package.shipping import ALL, install, opwright

    opwright("package", "opwright.gallery.trig", "--name", "other_ops", "--out", tmp_path / "project", *ALL)
    other = install(tmp_path / "project", tmp_path / "site")
    output = python_with(trig, other)("import my_ops, other_ops", expect=1)
    assert "other_ops cannot define gallery::sin: gallery::sin is already registered with torch" in output
    assert "import only one of them in a process" in output


def test_beside_opwrights_own_definition(trig):
    run = python_with(trig)
    output = run("import my_ops, opwright.gallery.trig", blocked=False, expect=1)
    assert "gallery::sin is already registered with torch" in output
    output = run("import opwright.gallery.trig, my_ops", blocked=False, expect=1)
    assert "my_ops cannot define gallery::sin" in output


def test_calls_that_are_not_like_those_of_any_size_are_as_before(trig):
    output = python_with(trig)("""
        import torch, my_ops
        from my_ops._opwright.errors import ArgumentError
        from torch._subclasses.fake_tensor import FakeTensorMode
        sin = my_ops.sin
        for n in (3, 4, 5):
            sin(torch.ones(n))
        for wrong in (torch.ones(6, dtype=torch.int64), torch.ones(6, dtype=torch.complex64), [1.0], 2.0):
            try:
                sin(wrong)
                print("taken")
            except (ArgumentError, RuntimeError) as error:
                print(type(error).__name__)
        x = torch.ones(7, requires_grad=True)
        for n in (7, 8, 9):
            sin(torch.ones(n, requires_grad=True)).sum().backward()
        sin(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(7).cos())
        assert sin(torch.ones(2, 3).double()).dtype == torch.float64
        negated = torch.ones(7, dtype=torch.complex64).mul(1j).conj().imag  # a view that negates when it is read
        assert negated.is_neg()
        torch.testing.assert_close(sin(negated), -torch.ones(7).sin())
        with FakeTensorMode():
            assert type(sin(torch.ones(6))).__name__ == "FakeTensor"
        assert torch.vmap(sin)(torch.ones(3, 6)).shape == (3, 6)
        with torch.profiler.profile() as profile:
            sin(torch.ones(11))
        assert any(event.key == "gallery::sin" for event in profile.key_averages())
    """)
    assert output.split() == ["ArgumentError"] * 4

"""What programs rebind between calls: names of their module, code in place, functions of libraries, settings."""

from __future__ import annotations

__all__ = ["relevant_rebindings"]

# What the text of an operator has to have, and the expression. NAME is the operator's.
_REBINDINGS = (
    ("SCALE", "setattr(module, 'SCALE', 3.0)"),
    ("SCALE", "setattr(module, 'SCALE', 2)"),
    ("SCALE", "setattr(module, 'SCALE', np.float64(2.0))"),
    ("SCALE", "setattr(module, 'SCALE', Half(2.0))"),
    ("SCALE", "setattr(module, 'SCALE', 2.0)"),
    ("BLOCK", "setattr(module, 'BLOCK', 32)"),
    ("BLOCK", "setattr(module, 'BLOCK', 4)"),
    ("blocks(", "setattr(module.blocks, '__code__', (lambda n: n).__code__)"),
    ("helper(", "setattr(module, 'helper', module.new_helper)"),
    ("helper(", "setattr(module, 'helper', lambda t, k=1.0, s=1.0: t)"),
    ("helper(", "setattr(module.helper, '__code__', module.new_helper.__code__)"),
    ("helper(", "setattr(module.helper, '__defaults__', (4.0,))"),
    ("helper(", "setattr(module.helper, '__kwdefaults__', {'s': 5.0})"),
    ("max(", "setattr(module, 'max', lambda *_: 64)"),
    ("len(", "setattr(module, 'len', lambda *_: 3)"),
    ("sum(", "setattr(module, 'sum', lambda *_: 4)"),
    ("TABLE", "module.TABLE.__setitem__('scale', 4.0)"),
    ("relu", "module.TABLE.__setitem__('scale', 4.0)"),
    ("relu", "module.TABLE.__setitem__('scale', 1.5)"),
    ("settings", "setattr(module.settings, 'scale', 5.0)"),
    ("settings", "setattr(module.Settings, 'scale', 6.0)"),
    ("settings", "setattr(module, 'settings', module.Settings())"),
    ("F.silu", "patch(F, 'silu', lambda t: t * 10)"),
    ("relu", "patch(F, 'relu', lambda t: t * 11)"),
    ("ow.cdiv", "patch(ow, 'cdiv', lambda a, b: a // b + 2)"),
    ("blocks(", "patch(ow, 'cdiv', lambda a, b: a)"),
    ("torch.empty_like", "patch(torch, 'empty_like', torch.ones_like)"),
    ("torch.where", "patch(torch, 'where', lambda c, a, b: b)"),
    ("torch.sin", "patch(torch, 'sin', torch.cos)"),
    ("torch.tensor", "patch(torch, 'tensor', lambda *a, **k: torch.ones(()))"),
    (".view(", "patch(torch.Tensor, 'view', torch.Tensor.reshape)"),
    ("F.dropout", "patch(F, 'dropout', lambda t, p: t * 12)"),
    ("make_kernel_NAME", "setattr(module.kernel_NAME.__closure__[0], 'cell_contents', 8.0)"),
    ("make_reference_NAME", "setattr(module.reference_NAME.__closure__[0], 'cell_contents', 9.0)"),
    ("make_backward_NAME", "setattr(module.backward_NAME.__closure__[0], 'cell_contents', 7.0)"),
    ("def kernel_NAME", "setattr(module.kernel_NAME, '__code__', module.other_NAME.__code__)"),
    ("def setup2_NAME", "setattr(module.setup_NAME, '__code__', module.setup2_NAME.__code__)"),
    ("def backward2_NAME", "setattr(module.backward_NAME, '__code__', module.backward2_NAME.__code__)"),
    ("WEIGHT", "setattr(module, 'WEIGHT', nn.Parameter(torch.full((), 3.0)))"),
    ("WEIGHT", "module.WEIGHT.requires_grad_(False)"),
    ("", "x[0].add_(1)"),
    ("", "w[0].data.add_(1)"),
    ("", "w[0].requires_grad_(False)"),
    ("", "w[0].requires_grad_(True)"),
    ("", "x[1].requires_grad_(True)"),
    ("", "torch.set_default_dtype(torch.float64)"),
    ("", "torch.set_default_dtype(torch.float32)"),
    ("", "torch.set_grad_enabled(False)"),
    ("", "torch.set_grad_enabled(True)"),
)


def relevant_rebindings(source: str) -> list[str]:
    """The expressions that change something that the text of an operator uses, and settings of the thread."""
    found = [text for needed, text in _REBINDINGS if needed and needed.replace("NAME", "f") in source]
    return [*found, *found, *(text for needed, text in _REBINDINGS if not needed)]

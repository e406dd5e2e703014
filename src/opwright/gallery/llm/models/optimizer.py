"""AdamW as an optimizer of torch: one launch for all parameters of a dtype."""

import torch

from opwright.gallery.llm.adamw import adamw_

__all__ = ["AdamW"]


MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's AdamW calls them


class AdamW(torch.optim.Optimizer):
    """``torch.optim.AdamW``, with moments in float32 unless you ask for less. A process steps its part of a DTensor.

    Args:
        params: parameters or groups of them, as torch's optimizers take them.
        lr: the rate of learning.
        betas: how much of the moments a step keeps.
        eps: added to the root of the second moment.
        weight_decay: decoupled: what a step of rate 1 would take from each parameter.
        moments: their dtype. In bfloat16, as torch has those of such parameters, they take half the memory; changes of
            less than 0.4 % are then lost.

    Raises:
        ValueError: a number is negative, a beta is not below 1, or the moments are neither in float32 nor in bfloat16.
        RuntimeError: in ``step``, a parameter or its gradient is sparse or has gaps in memory.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, moments=torch.float32) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                "AdamW: lr, eps and weight_decay must be at least 0, and betas at least 0 and below 1, "
                f"got lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay}"
            )
        if moments not in (torch.float32, torch.bfloat16):
            raise ValueError(f"AdamW: moments must be torch.float32 or torch.bfloat16, got {moments}")
        self.moments = moments
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """One step. Returns the loss that ``closure`` gives, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            _refuse_gaps(local(p), local(p.grad))  # before any step is counted
        for group in self.param_groups:
            together = dict[tuple[torch.device, torch.dtype, torch.dtype, int], list[torch.Tensor]]()
            for p in group["params"]:
                if p.grad is not None:
                    together.setdefault((p.device, p.dtype, p.grad.dtype, self._count(p)), []).append(p)
            beta1, beta2 = group["betas"]
            for (*_, count), parameters in together.items():
                gradients = [p.grad for p in parameters]
                moments = [[self.state[p][name] for p in parameters] for name in MOMENTS]
                p, g, m, v = (flat(ts) for ts in (parameters, gradients, *moments))
                adamw_(p, g, m, v, int(count), group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
        return loss

    def _count(self, p) -> int:
        """The number of this step, from 1."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros(())
            for name in MOMENTS:
                state[name] = torch.zeros_like(p, dtype=self.moments)
        state["step"] += 1
        return int(state["step"])

    def load_state_dict(self, state_dict) -> None:
        """Also takes those of ``torch.optim.AdamW``. Torch would round moments to the parameters' dtype."""
        super().load_state_dict(state_dict)
        own = [p for group in self.param_groups for p in group["params"]]
        names = [number for group in state_dict["param_groups"] for number in group["params"]]
        for p, number in zip(own, names, strict=True):
            for name in MOMENTS:
                if name in state_dict["state"].get(number, {}):
                    self.state[p][name] = state_dict["state"][number][name].to(p.device, self.moments, copy=True)


def flat(tensors):
    return [local(x).view(-1) for x in tensors]


def local(x):
    """A tensor, or this process's part of a DTensor."""
    return x.to_local() if hasattr(x, "to_local") else x


def _refuse_gaps(*tensors: torch.Tensor) -> None:
    for x in tensors:
        if x.layout is not torch.strided or not x.is_contiguous():
            raise RuntimeError(
                f"AdamW: parameters and gradients must be dense and contiguous, got shape {list(x.shape)} and "
                f"layout {x.layout}\n  → use torch.optim.AdamW for this parameter"
            )

"""Distillation at the server: one network learns what several answer to its examples' inputs.

Targets are the mixture of the networks' predictions; labels are not used. For classes with
probabilities p the target is t ∝ p^{1/T}, and the student minimises KL(t ‖ p_student). For a number
with moments (m, v) it minimises KL(N(m, v) ‖ N(m_s, v_s)). Terms that do not depend on the student
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbary.data.batches import scale_pixels
from fedbary.methods._bench import at_work, batches
from fedbary.methods._method import Bench, Tensors
from fedbary.variational.regressor import Regressor

AT_ONCE = 500
"""Inputs at a time."""


@dataclass(frozen=True)
class Distillation:
    """The student's training: SGD with momentum, and the mean of its last iterates.

    Parameters
    ----------
    epochs, batch_size : int
        Passes over the inputs, and inputs a step.
    lr, momentum : float
        Of SGD.
    sharpness : float
        1/T.
    averaged_from, averaged_every : int
        The step from which every so many steps an iterate is averaged; the student is that mean,
        or the last iterate if there is none.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.9
    sharpness: float = 1.0
    averaged_from: int = 500
    averaged_every: int = 25


def distilled(
    bench: Bench, student: Tensors, teachers: Sequence[Tensors], how: Distillation, seed: int
) -> dict[str, Tensor]:
    """Return the student's parameters after its training; buffers are left out, and used as given.

    Parameters
    ----------
    bench
        Network and inputs; the targets are left aside.
    student, teachers
        State dicts of the network; the student's is where it starts from.
    how, seed
        Settings of the training, and the seed of the order.
    """
    names = [name for name, _ in bench.network.named_parameters() if name in student]
    with at_work(bench) as device:
        targets = target_of(bench.network, answers(bench, teachers), how.sharpness)
        held = {n: t.to(device) for n, t in student.items() if n not in names}
        weights = {n: student[n].to(device, copy=True).requires_grad_() for n in names}
        sgd = torch.optim.SGD(weights.values(), how.lr, how.momentum)
        total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        averaged = 0
        steps = batches(bench, how.epochs, how.batch_size, seed)
        for step, (indices, x, _) in enumerate(steps, 1):
            answer = functional_call(bench.network, {**held, **weights}, (x,))
            loss = gap(bench.network, answer, targets[indices.to(device)])
            found = torch.autograd.grad(loss, list(weights.values()))
            for tensor, gradient in zip(weights.values(), found, strict=True):
                tensor.grad = gradient
            sgd.step()
            if step >= how.averaged_from and (step - how.averaged_from) % how.averaged_every == 0:
                averaged += 1
                for name, tensor in weights.items():
                    total[name] += tensor.detach()
        final = {n: total[n] / averaged if averaged else weights[n].detach() for n in names}
        return {name: tensor.to(student[name]) for name, tensor in final.items()}


@torch.no_grad()
def answers(bench: Bench, networks: Sequence[Tensors]) -> Tensor:
    """Return what each network answers to the bench's inputs, (networks, N, outputs)."""
    found = []
    for network in networks:
        here = {name: tensor.to(bench.x.device) for name, tensor in network.items()}
        parts = [
            functional_call(bench.network, here, (scale_pixels(x),)) for x in bench.x.split(AT_ONCE)
        ]
        found.append(torch.cat(parts))
    return torch.stack(found)


def target_of(network: nn.Module, found: Tensor, sharpness: float = 1.0) -> Tensor:
    """Return what several networks say together, given their answers (networks, N, outputs).

    Classes have probabilities, (N, classes); a `Regressor` has means and log-variances, (N, 2).
    """
    if not isinstance(network, Regressor):
        return (sharpness * torch.logsumexp(found.log_softmax(-1), 0)).softmax(-1)
    means, log_vars = found.unbind(-1)
    var = means.var(0, correction=0) + log_vars.exp().mean(0)
    return torch.stack([means.mean(0), var.log()], -1)


def gap(network: nn.Module, answer: Tensor, target: Tensor) -> Tensor:
    """Return the mean KL(target ‖ answer), in nats, less what the answer does not change."""
    if not isinstance(network, Regressor):
        return -(target * answer.log_softmax(-1)).sum(-1).mean()
    (mean, log_var), (own_mean, own_log_var) = target.unbind(-1), answer.unbind(-1)
    squares = log_var.exp() + (mean - own_mean).square()
    return 0.5 * (own_log_var + squares * torch.exp(-own_log_var)).mean()

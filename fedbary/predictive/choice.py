"""Who predicts, by the setting `predictive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Generator, Tensor, nn

from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior
from fedbary.predictive import dropout, members, montecarlo
from fedbary.predictive.combine import Gate, Pool, Prediction, gated, mixture, pooled, product
from fedbary.predictive.draws import drawn
from fedbary.variational import gaussian_layers


def predicted(
    kind: str,
    model: nn.Module,
    x: Tensor,
    samples: int,
    generator: Generator,
    posterior: Posterior | None = None,
    together: Mapping[str, Tensor] | None = None,
    adjusted: Callable[[Tensor], Tensor] = lambda logits: logits,
    pool: Pool | Gate | None = None,
) -> Prediction:
    """Predict classes by networks drawn from a posterior, by members, or by dropout.

    Parameters
    ----------
    kind
        ``montecarlo``, ``members``, ``product``, the geometric mean of the members' predictions,
        ``dropout``, or ``auto``: the members where there are some, pooled as the method says, else
        draws.
    model
        The network that holds the global model, on whose device the work is done.
    x
        Inputs (N, …).
    samples
        Networks in all; each member gives at least one.
    generator
        Source of the draws, on the model's device.
    posterior
        The global posterior, where it is not that which the model's own layers hold.
    together
        The members' state dicts, stacked: (K, *shape) by name.
    adjusted
        What is done to each network's logits, or to what a pool makes of them.
    pool
        How the method joins the members' predictions, and how many each client has; by default
        their mixture, of one each. A gate is the last member.
    """
    if kind == "dropout":
        return mixture(map(adjusted, dropout.answers(model, x, samples, generator)))
    if together and kind != "montecarlo":
        states = unstacked(together)
        gate = states.pop() if isinstance(pool, Gate) else None
        gaussian = any(name.endswith(LOG_VAR_SUFFIX) for name in together)
        each = max(1, samples // len(states)) if gaussian else 0
        answers = members.answers(model, states, x, each, generator)
        if isinstance(pool, Pool) and kind == "auto":
            return pooled(answers, pool, adjusted)
        answers = map(adjusted, answers)
        if kind == "product":
            each_has = pool.each if isinstance(pool, Pool) else 1
            return product(_by_member(answers, len(states) // each_has))
        if gate is not None and kind == "auto":
            return gated(answers, members.answers(model, [gate], x))
        return mixture(answers)
    if posterior is not None and posterior.log_var and not gaussian_layers(model):
        networks = unstacked(drawn(posterior, samples, generator))
        return mixture(map(adjusted, members.answers(model, networks, x)))
    return mixture(map(adjusted, montecarlo.answers(model, x, samples, generator)))


def unstacked(networks: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return each of K networks, given as (K, *shape) by name."""
    count = len(next(iter(networks.values())))
    return [{name: tensor[k] for name, tensor in networks.items()} for k in range(count)]


def _by_member(answers: Iterable[Tensor], count: int) -> Iterator[Tensor]:
    """Yield for each batch the logarithm of each member's probabilities, (members, …)."""
    for logits in answers:
        each = logits.log_softmax(-1).unflatten(0, (count, -1))
        yield torch.logsumexp(each, 1) - torch.tensor(float(each.shape[1])).log()

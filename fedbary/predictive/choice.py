"""The networks that predict, by the setting `predictive`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior
from fedbary.predictive import members, montecarlo
from fedbary.predictive.combine import Gate, Pool, Prediction, gated, mixture, pooled, product
from fedbary.predictive.draws import drawn
from fedbary.predictive.mahalanobis import Background
from fedbary.predictive.networks import Answers, batches
from fedbary.variational import gaussian_layers


@dataclass(frozen=True, eq=False)
class Predictor:
    """Networks that predict together.

    Attributes
    ----------
    answers : callable
        Takes a batch, and returns their logits (networks, batch, classes).
    joined : callable
        Takes these, and returns the prediction.
    each : callable
        Takes these, and returns each network's own probabilities; a gate has none.
    background : Background or None
        Distance from a network's logits.
    """

    answers: Answers
    joined: Callable[[Tensor], Prediction]
    each: Answers
    background: Background | None = None

    @torch.inference_mode()
    def over(self, model: nn.Module, x: Tensor, batch_size: int = 500) -> Prediction:
        """Predict inputs (N, …), batch by batch on the model's device."""
        answers = [self.answers(batch) for batch in batches(model, x, batch_size)]
        parts = list(map(self.joined, answers))
        by = self.background
        return Prediction(
            torch.cat([part.probs for part in parts]),
            torch.cat([part.aleatoric for part in parts]),
            None if by is None else torch.cat([by.distance(logits.mean(0)) for logits in answers]),
            max(map(len, answers), default=0),
        )


def predicted(
    kind: str | Callable[[nn.Module, int, Generator], Answers],
    model: nn.Module,
    x: Tensor,
    samples: int,
    generator: Generator,
    posterior: Posterior | None = None,
    together: Mapping[str, Tensor] | None = None,
    adjusted: Callable[[Tensor], Tensor] = lambda logits: logits,
    pool: Pool | Gate | None = None,
) -> Prediction:
    """Predict the classes of inputs (N, …); the other parameters are those of `predictor`."""
    by = predictor(kind, model, samples, generator, posterior, together, adjusted, pool)
    return by.over(model, x)


def predictor(
    kind: str | Callable[[nn.Module, int, Generator], Answers],
    model: nn.Module,
    samples: int,
    generator: Generator,
    posterior: Posterior | None = None,
    together: Mapping[str, Tensor] | None = None,
    adjusted: Callable[[Tensor], Tensor] = lambda logits: logits,
    pool: Pool | Gate | None = None,
) -> Predictor:
    """Draw the networks that predict: from a posterior, the members', or passes of one.

    Parameters
    ----------
    kind
        ``montecarlo``, ``members``, ``product`` (the geometric mean of the members' predictions),
        or ``auto``: the members if there are some, pooled by the method, else draws. Or a predictor
        of `fedbary.predictive.passes`.
    model
        The network of the global model; its device does the work.
    samples
        Number of networks; each member gives at least one. 0: the global model's means alone.
    generator
        Source of the draws, on the model's device.
    posterior
        The global posterior, if it is not that of the model's own layers.
    together
        The members' state dicts, stacked: (K, *shape) by name.
    adjusted
        Function of each network's logits, or of a pool's.
    pool
        Combination of the members' predictions, and the number of each client's; by default their
        mixture, of one each. A gate is the last member.
    """

    def mixed(answers: Answers) -> Predictor:
        return Predictor(answers, lambda logits: mixture([adjusted(logits)]), each)

    def each(logits: Tensor) -> Tensor:
        return adjusted(logits).softmax(-1)

    if not samples:
        return mixed(montecarlo.answering(model, 0, generator))
    if not isinstance(kind, str):
        return mixed(kind(model, samples, generator))
    if not together or kind == "montecarlo":
        if posterior is not None and posterior.log_var and not gaussian_layers(model):
            networks = unstacked(drawn(posterior, samples, generator))
            return mixed(members.answering(model, networks))
        return mixed(montecarlo.answering(model, samples, generator))
    states = unstacked(together)
    gate = [states.pop()] if isinstance(pool, Gate) else []
    gaussian = any(name.endswith(LOG_VAR_SUFFIX) for name in together)
    of_each = max(1, samples // len(states)) if gaussian else 0
    answers = members.answering(model, states, of_each, generator)
    if isinstance(pool, Pool) and kind == "auto":
        return Predictor(answers, lambda logits: pooled([logits], pool, adjusted), each)
    if kind == "product":
        count = len(states) // (pool.each if isinstance(pool, Pool) else 1)
        return Predictor(
            answers, lambda logits: product([_by_member(adjusted(logits), count)]), each
        )
    if gate and kind == "auto":
        votes = members.answering(model, gate)
        return Predictor(
            lambda batch: torch.cat([answers(batch), votes(batch)]),
            lambda logits: gated([adjusted(logits[:-1])], [logits[-1:]]),
            lambda logits: each(logits[:-1]),
        )
    return mixed(answers)


def unstacked(networks: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return each of K networks, given as (K, *shape) by name."""
    count = len(next(iter(networks.values())))
    return [{name: tensor[k] for name, tensor in networks.items()} for k in range(count)]


def _by_member(logits: Tensor, count: int) -> Tensor:
    """Return the logarithm of each member's probabilities, (members, …)."""
    each = logits.log_softmax(-1).unflatten(0, (count, -1))
    return torch.logsumexp(each, 1) - torch.tensor(float(each.shape[1])).log()

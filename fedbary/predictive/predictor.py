"""What predicts: networks, and the kind of prediction that chooses and joins them.

A kind is a frozen subclass of `Predictor` in any file of this package. The setting ``predictive``
names it by its `word`, and its fields are settings. A new kind needs no other registration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior
from fedbary.parts.parameters import Checked, Count, ShareOrZero, told
from fedbary.parts.registry import predictors
from fedbary.predictive.mahalanobis import Background
from fedbary.predictive.networks import (
    Answers,
    answering_draws,
    answering_states,
    batches,
    drawn,
    unstacked,
    with_state,
)
from fedbary.predictive.prediction import (
    Forecast,
    Prediction,
    concatenated,
    gate_logits,
    gaussian_pool,
    linear_forecast,
    log_pool,
    mixed,
    mixture,
    moments_by_client,
    product,
)
from fedbary.variational import gaussian_layers
from fedbary.variational.regressor import moments

Adjust = Callable[[Tensor], Tensor]
"""A function of networks' logits."""

Networks = Mapping[str, Tensor]
"""Networks' tensors by name, stacked: (M, *shape)."""

Forecasts = Callable[[Tensor], Forecast]
"""Takes a batch of standardised rows, and returns their forecast."""


class Draws(NamedTuple):
    """How many networks are drawn, and the source of the draws, on the model's device."""

    samples: int
    generator: Generator


def as_it_is(logits: Tensor) -> Tensor:
    """Return logits as they are."""
    return logits


@dataclass(frozen=True, eq=False)
class Predictive:
    """Networks that predict: the global ones, or a client's own.

    Parameters
    ----------
    model : mapping of str to Tensor
        A network's state dict.
    posterior : Posterior, optional
        Posterior to draw networks from; by default the model's own Gaussian tensors.
    members : mapping of str to Tensor
        Networks, or posteriors, that predict together in place of draws: (K, *shape) by name, or
        none.
    kind : Predictor, optional
        How the method joins the members' predictions; None: by their mixture.
    background : Background, optional
        Computes an input's distance from every class, from a network's logits.
    noise_var : float
        Variance of the noise that is added to predictions of numbers, standardised.
    """

    model: Mapping[str, Tensor]
    posterior: Posterior = None  # type: ignore[assignment]
    members: Mapping[str, Tensor] = field(default_factory=dict)
    kind: Predictor | None = None
    background: Background | None = None
    noise_var: float = 0.0

    def __post_init__(self) -> None:
        if self.posterior is None:
            object.__setattr__(self, "posterior", Posterior.from_state_dict(self.model))

    @property
    def experts(self) -> Mapping[str, Tensor]:
        """The members that predict: all but a gate."""
        gates = self.kind.gates if self.kind else 0
        return {name: tensor[: len(tensor) - gates] for name, tensor in self.members.items()}

    @property
    def joined_by(self) -> str:
        """Fields of `kind` as JSON, of which `Method.joining` makes it again; {} for None."""
        return json.dumps(asdict(self.kind) if self.kind else {})

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by names that `from_tensors` reads."""
        groups = {
            "model": self.model,
            "posterior": self.posterior.state_dict(),
            "members": self.members,
        }
        return {f"{k}/{name}": t for k, group in groups.items() for name, t in group.items()}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], kind: Predictor | None, noise_var: float
    ) -> Predictive:
        """Return the value with these `tensors`, each group in order of names.

        Networks are drawn tensor by tensor: the order decides a seed's draws.
        """
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "posterior": {}, "members": {}}
        for key, tensor in sorted(tensors.items()):
            group, _, name = key.partition("/")
            groups[group][name] = tensor
        posterior = Posterior.from_state_dict(groups["posterior"])
        return cls(groups["model"], posterior, groups["members"], kind, noise_var=noise_var)


@dataclass(frozen=True)
class Predictor(Checked):
    """A kind of prediction: which networks answer, and how their answers are joined.

    Attributes
    ----------
    word : str
        The value of the setting `predictive` that names it; "" if only a method does.
    classes, numbers : bool
        Whether it predicts classes, and numbers.
    needs_members : bool
        Whether it needs networks that the method keeps. Before there are some, draws predict.
    exports : bool
        Whether a graph can hold its networks.
    each : int
        Number of networks of each member, adjacent.
    gates : int
        Number of the last members that do not predict, but weigh the others.
    """

    word = ""
    classes = True
    numbers = True
    needs_members = False
    exports = True
    each = 1
    gates = 0

    def resolved(self, held: Predictive, samples: int) -> Predictor:
        """Return what predicts: another if members are missing, or 0 samples ask for the means."""
        return self if samples and (held.members or not self.needs_members) else MonteCarlo()

    # Of classes

    def answering(self, model: nn.Module, held: Predictive, draws: Draws) -> Answers:
        """Choose the networks; return what they answer to a batch, (networks, batch, classes).

        Parameters
        ----------
        model
            The network of the global model; its device does the work.
        held
            What predicts.
        draws
            How many networks; each member gives at least one. 0: the model's means alone.
        """
        raise TypeError(f"{type(self).__name__} does not predict classes")

    def joined(self, logits: Tensor, held: Predictive, adjusted: Adjust = as_it_is) -> Prediction:
        """Return the prediction of a batch; `adjusted` is a function of each network's logits."""
        return mixture(adjusted(logits))

    def probs_of_each(self, logits: Tensor, adjusted: Adjust) -> Tensor:
        """Return each network's own probabilities of a batch; a gate has none."""
        return adjusted(logits).softmax(-1)

    @torch.inference_mode()
    def predict(
        self,
        model: nn.Module,
        x: Tensor,
        held: Predictive,
        draws: Draws,
        adjusted: Adjust = as_it_is,
        batch_size: int = 500,
    ) -> Prediction:
        """Predict the classes of inputs (N, …), batch by batch; for the rest see `answering`."""
        kind = self.resolved(held, draws.samples)
        answers = kind.answering(model, held, draws)

        def predicted(batch: Tensor) -> Prediction:
            logits = answers(batch)
            found, by = kind.joined(logits, held, adjusted), held.background
            return found if by is None else replace(found, distance=by.distance(logits.mean(0)))

        return concatenated([predicted(batch) for batch in batches(model, x, batch_size)])

    # Of numbers

    def networks(self, held: Predictive, draws: Draws) -> Networks:
        """Choose the networks, tensors of a `Regressor` by name, (M, *shape)."""
        raise TypeError(f"{type(self).__name__} does not predict numbers")

    def forecast(self, means: Tensor, noise_vars: Tensor, noise_var: float) -> Forecast:
        """Return the forecast of what networks answer, see `mixed`."""
        return mixed(means, noise_vars, noise_var)

    def forecasting(self, held: Predictive, draws: Draws) -> tuple[Networks, Forecasts]:
        """Choose the networks; return them, and their forecast of a batch."""
        networks = self.networks(held, draws)
        return networks, lambda x: self.forecast(*moments(networks, x), held.noise_var)


class Passes(Predictor):
    """One network that passes several times; a subclass says what it answers."""

    numbers = False
    exports = False


@dataclass(frozen=True)
class Auto(Predictor):
    """Members joined as the method says, if it keeps some, else draws from the posterior."""

    word = "auto"

    def resolved(self, held: Predictive, samples: int) -> Predictor:
        """Return the method's choice."""
        return (held.kind or Members()).resolved(held, samples)


@dataclass(frozen=True)
class MonteCarlo(Predictor):
    """Networks drawn from the global posterior: p(y | x) ≈ mean over draws θ_s of p(y | x, θ_s)."""

    word = "montecarlo"

    def answering(self, model: nn.Module, held: Predictive, draws: Draws) -> Answers:
        """Draw the model's Gaussian layers, or a plain model's tensors from the posterior."""
        if draws.samples and held.posterior.log_var and not gaussian_layers(model):
            return answering_states(model, unstacked(drawn(held.posterior, *draws)))
        return answering_draws(model, *draws)

    def networks(self, held: Predictive, draws: Draws) -> Networks:
        """Draw networks from the posterior."""
        if not draws.samples:
            return {name: mean[None] for name, mean in held.posterior.mean.items()}
        return drawn(held.posterior, *draws)


@dataclass(frozen=True)
class Members(Predictor):
    """The networks that the method keeps, or equally many draws from each one's posterior."""

    word = "members"
    needs_members = True

    def answering(self, model: nn.Module, held: Predictive, draws: Draws) -> Answers:
        """Run the members' networks, or draw some from each in order."""
        states = unstacked(held.experts)
        if not _is_gaussian(held):
            return answering_states(model, states)
        own = _of_each(draws, states)
        answers = [answering_draws(with_state(model, state), *own) for state in states]
        return lambda batch: torch.cat([answers_of_one(batch) for answers_of_one in answers])

    def networks(self, held: Predictive, draws: Draws) -> Networks:
        """Return the members' networks, or draw some from each in order."""
        if not _is_gaussian(held):
            return held.experts
        states = unstacked(held.experts)
        own = _of_each(draws, states)
        parts = [drawn(Posterior.from_state_dict(state), *own) for state in states]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class Product(Members):
    """The geometric mean of the members' predictions; a member's own is its networks' mixture."""

    word = "product"
    numbers = False

    def joined(self, logits: Tensor, held: Predictive, adjusted: Adjust = as_it_is) -> Prediction:
        """Return ∝ Π p_k^(1/K)."""
        networks = len(next(iter(held.experts.values())))
        count = networks // (held.kind.each if held.kind else 1)
        each = adjusted(logits).log_softmax(-1).unflatten(0, (count, -1))
        return product(torch.logsumexp(each, 1) - torch.tensor(float(each.shape[1])).log())


@dataclass(frozen=True)
class Pooled(Members):
    """Clients' predictions pooled between their mixture and their product (Hasan et al. 2024).

    Parameters
    ----------
    each : int
        Number of networks of each client, adjacent; their mixture is its prediction.
    beta : float
        From 0, the mixture of the clients' predictions, to 1, the product of experts.
    """

    each: Count = 1
    beta: ShareOrZero = 0.0

    word = ""

    def joined(self, logits: Tensor, held: Predictive, adjusted: Adjust = as_it_is) -> Prediction:
        """Return p ∝ P^β Q^(1−β) of the clients' predictions, see `log_pool`.

        `adjusted` is applied to log p_β, which is known up to a constant for each example. Before
        pooling its K-th power would enter P, for which β was not learned.
        """
        by_client = logits.log_softmax(-1).unflatten(0, (-1, self.each)).logsumexp(1)
        probs = adjusted(log_pool(by_client, self.beta)).softmax(-1)
        return replace(mixture(adjusted(logits)), probs=probs)

    def forecast(self, means: Tensor, noise_vars: Tensor, noise_var: float) -> Forecast:
        """Return `gaussian_pool` of the clients' forecasts.

        The noise is the networks' mean noise, at most the pooled variance.
        """
        by_client = moments_by_client(means, noise_vars + noise_var, self.each)
        mean, var = gaussian_pool(*by_client, torch.tensor(self.beta))
        aleatoric = torch.minimum(noise_vars.mean(0) + noise_var, var)
        return Forecast(mean, var - aleatoric, aleatoric)


@dataclass(frozen=True)
class Gated(Members):
    """A mixture whose weights depend on the input: the last member is the gate of the others.

    Parameters
    ----------
    experts : int
        J; the weights are the softmax of the gate's first J − 1 outputs and a 0.
    """

    experts: Count = 1

    word = ""
    gates = 1

    def answering(self, model: nn.Module, held: Predictive, draws: Draws) -> Answers:
        """Run the experts, then the gate."""
        experts = super().answering(model, held, draws)
        gate = answering_states(model, unstacked(held.members)[-1:])
        return lambda batch: torch.cat([experts(batch), gate(batch)])

    def joined(self, logits: Tensor, held: Predictive, adjusted: Adjust = as_it_is) -> Prediction:
        """Return Σ_j g_j(x) p_j(y|x)."""
        each = self.probs_of_each(logits, adjusted)
        shares = gate_logits(logits[-1], len(each)).softmax(-1).T
        probs = (shares[..., None] * each).sum(0)
        aleatoric = (shares * torch.special.entr(each).sum(-1)).sum(0)
        return Prediction(probs, aleatoric, networks=len(each))

    def probs_of_each(self, logits: Tensor, adjusted: Adjust) -> Tensor:
        """Return each expert's probabilities."""
        return super().probs_of_each(logits[:-1], adjusted)

    def networks(self, held: Predictive, draws: Draws) -> Networks:
        """Return the experts and the gate."""
        return held.members

    def forecast(self, means: Tensor, noise_vars: Tensor, noise_var: float) -> Forecast:
        """Return the moments of Σ_j g_j(x) N(ŷ_j, v_j).

        The gate's one output is ŷ, so there are at most two experts.
        """
        shares = gate_logits(means[-1], self.experts).softmax(-1).T
        means, noise_vars = means[:-1], noise_vars[:-1]
        mean = (shares * means).sum(0)
        epistemic = (shares * (means - mean).square()).sum(0)
        return Forecast(mean, epistemic, (shares * noise_vars).sum(0) + noise_var)


@dataclass(frozen=True)
class Closed(Predictor):
    """Linear regression in closed form, see `linear_forecast`."""

    word = "closed"
    classes = False

    def forecasting(self, held: Predictive, draws: Draws) -> tuple[Networks, Forecasts]:
        """Return no networks, and the closed form."""
        return {}, lambda x: linear_forecast(held.posterior, x, held.noise_var)


@cache
def kind_of(word: str) -> type[Predictor]:
    """Return the kind of prediction that a value of the setting `predictive` names."""
    module = import_module(f"fedbary.predictive.{predictors()[word]}")
    (found,) = (
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and vars(kind).get("word") == word
    )
    return found


def predictor_of(settings: Any) -> Predictor:
    """Return the kind that settings name, with its parameters."""
    return told(kind_of(settings.predictive), settings)


def _is_gaussian(held: Predictive) -> bool:
    return any(name.endswith(LOG_VAR_SUFFIX) for name in held.members)


def _of_each(draws: Draws, states: Sequence[Networks]) -> Draws:
    return Draws(max(1, draws.samples // len(states)), draws.generator)

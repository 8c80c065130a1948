"""What predicts: networks, and the kind of prediction that chooses and joins them.

A kind is a frozen subclass of `Predictor` in any file of this package. The setting ``predictive``
names it by its `word`, and its fields are settings. A new kind needs no other registration.

Networks answer a batch with logits (networks, batch, …, classes), or with means and noise variances
(networks, batch).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor, nn

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior
from fedbary.parts.parameters import Checked, Count, ShareOrZero, parameters_of
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
from fedbary.variational import gaussian_layers
from fedbary.variational.regressor import is_linear, moments


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities, and the aleatoric part of their uncertainty.

    An example with several classes, of pixels or of labels, has probabilities (N, …, classes) and
    uncertainties (N, …).

    The entropy of the networks' mean splits into an aleatoric and an epistemic part (Depeweg et al.
    2018): H[mean_s p_s] = mean_s H[p_s] + I(y; θ).

    Attributes
    ----------
    probs : Tensor
        Probabilities, (N, classes).
    aleatoric : Tensor
        Mean of the entropies of the single networks' probabilities, (N,), in nats.
    distance : Tensor or None
        Relative Mahalanobis distance of the features to the nearest class, (N,); None if the method
        has no Gaussians of features. See `fedbary.predictive.mahalanobis`.
    networks : int
        Number of networks that predict together; 0: not told.
    """

    probs: Tensor
    aleatoric: Tensor
    distance: Tensor | None = None
    networks: int = 0

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities, (N,), in nats: the total uncertainty."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, (N,), in nats; more data would reduce it.

        It is NaN if one network predicts, which tells nothing of it.
        """
        if self.networks == 1:
            return torch.full_like(self.aleatoric, torch.nan)
        return (self.entropy - self.aleatoric).clamp_min(0)

    def one_by_one(self) -> Prediction:
        """Return the prediction of every pixel or label by itself: probabilities (M, classes)."""
        return replace(self, probs=self.probs.flatten(0, -2), aleatoric=self.aleatoric.flatten())

    def tempered(self, temperature: float) -> Prediction:
        """Return the prediction at a temperature T: probabilities ∝ p^(1/T).

        The two parts of the entropy keep their proportions.

        References
        ----------
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
        """
        if temperature == 1:
            return self
        tiny = torch.finfo(self.probs.dtype).tiny
        probs = (self.probs.clamp_min(tiny).log() / temperature).softmax(-1)
        part = (self.aleatoric / self.entropy.clamp_min(tiny)).clamp_max(1)
        return replace(self, probs=probs, aleatoric=part * torch.special.entr(probs).sum(-1))


@dataclass(frozen=True, eq=False)
class Forecast:
    """N(mean, epistemic + aleatoric) for each example.

    Attributes
    ----------
    mean : Tensor
        Expected target, (N,).
    epistemic : Tensor
        Variance from unknown weights, (N,); more data would reduce it.
    aleatoric : Tensor
        Variance of the noise in the target, (N,); 0 where a prediction carries no noise term.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor

    @property
    def var(self) -> Tensor:
        """Predictive variance, (N,)."""
        return self.epistemic + self.aleatoric

    def rescaled(self, mean: float, std: float) -> Forecast:
        """Return the forecast of mean + std · y, which takes standardised targets back."""
        return Forecast(mean + std * self.mean, std**2 * self.epistemic, std**2 * self.aleatoric)


_Predicted = TypeVar("_Predicted", Prediction, Forecast)


def concatenated(parts: Sequence[_Predicted]) -> _Predicted:
    """Return the prediction of several batches, one after the other."""
    names = [f.name for f in fields(parts[0]) if isinstance(getattr(parts[0], f.name), Tensor)]
    whole: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in names
    }
    return replace(parts[0], **whole)


Adjust = Callable[[Tensor], Tensor]
"""A function of networks' logits."""

Networks = Mapping[str, Tensor]
"""Networks' tensors by name, stacked: (M, *shape)."""

Forecasts = Callable[[Tensor], Forecast]
"""Takes a batch of standardised rows, and returns their forecast."""


GROUPS = ("model", "posterior", "members")
"""Prefixes of the tensors of what predicts."""


class Draws(NamedTuple):
    """Number of networks drawn, and the source of the draws, on the model's device."""

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
        groups = zip(GROUPS, (self.model, self.posterior.state_dict(), self.members), strict=True)
        return {f"{k}/{name}": t for k, group in groups for name, t in group.items()}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], kind: Predictor | None, noise_var: float
    ) -> Predictive:
        """Return the value with these `tensors`, each group in order of names.

        Networks are drawn tensor by tensor: the order decides a seed's draws.
        """
        held = dict(sorted(tensors.items()))
        model, posterior, members = (select_prefix(f"{group}/", held) for group in GROUPS)
        by = Posterior.from_state_dict(posterior)
        return cls(model, by, members, kind, noise_var=noise_var)


# How answers to a batch are joined: of classes


def mixture(logits: Tensor) -> Prediction:
    """Predict by the mean of the networks' probabilities, Σ p_k / K."""
    each = logits.softmax(-1)
    aleatoric = torch.special.entr(each).sum(-1).mean(0)
    return Prediction(each.mean(0), aleatoric, networks=len(logits))


def product(logits: Tensor) -> Prediction:
    """Predict by the geometric mean of the networks' probabilities, ∝ Π p_k^(1/K)."""
    logs = logits.log_softmax(-1)
    probs = (1 / len(logs) * logs).sum(0).softmax(-1)
    aleatoric = torch.special.entr(logs.exp()).sum(-1).mean(0)
    return Prediction(probs, aleatoric, networks=len(logits))


def log_pool(log_probs: Tensor, beta: float | Tensor) -> Tensor:
    """Return log p_β, p_β ∝ P^β Q^(1−β) for P ∝ Π p_k and Q = Σ p_k / K (Hasan et al. 2024).

    Parameters
    ----------
    log_probs
        log p_k, (K, N, classes), each up to a constant (N, 1).
    beta
        β.

    Returns
    -------
    Tensor
        (N, classes), normalised.
    """
    logs = log_probs.log_softmax(-1)
    return (beta * logs.sum(0) + (1 - beta) * logs.logsumexp(0)).log_softmax(-1)


def gate_logits(outputs: Tensor, experts: int) -> Tensor:
    """Return the logits (N, experts) of a gate's outputs (N, …).

    Raises
    ------
    SettingError
        If the outputs are fewer than experts − 1.
    """
    outputs = outputs.unsqueeze(1) if outputs.ndim == 1 else outputs.flatten(1)
    if outputs.shape[1] < experts - 1:
        most = outputs.shape[1] + 1
        raise SettingError("centres", experts, f"at most {most}, the network's outputs and one")
    return torch.cat([outputs[:, : experts - 1], torch.zeros_like(outputs[:, :1])], 1)


# Of numbers


def mixed(means: Tensor, noise_vars: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict by the first two moments of M networks' answers (FedAG, eqs. 3-5).

    mean = Σ ŷ_m / M, epistemic = Σ ŷ_m² / M − mean², aleatoric = noise_var + Σ v_m / M. v_m is the
    noise variance that a network itself predicts, 0 if it predicts none. A deep ensemble's moments
    are those of Lakshminarayanan et al. 2017.
    """
    return Forecast(means.mean(0), means.var(0, correction=0), noise_vars.mean(0) + noise_var)


@torch.no_grad()
def forecast(networks: Mapping[str, Tensor], x: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict by the moments of a `Regressor`'s networks, (M, *shape) by name, see `mixed`.

    The networks are the clients' own (the paper's bootstrap), draws from a posterior, or members of
    an ensemble; x holds standardised features (N, D).
    """
    return mixed(*moments(networks, x), noise_var)


def moments_by_client(means: Tensor, noise_vars: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each client's mixture, (K, N), of networks' (K · each, N)."""
    means, noise_vars = means.unflatten(0, (-1, each)), noise_vars.unflatten(0, (-1, each))
    return means.mean(1), noise_vars.mean(1) + means.var(1, correction=0)


def gaussian_pool(mean: Tensor, var: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return moments between the product P and the mixture Q of Gaussians (Hasan et al. 2024).

    1/v = β/v_P + (1 − β)/v_Q and m = v (β m_P/v_P + (1 − β) m_Q/v_Q). P has 1/v_P = Σ 1/v_k and m_P
    = v_P Σ m_k/v_k; Q has its own moments.

    Parameters
    ----------
    mean, var
        Mean and variance of each client's prediction, (K, N).
    beta
        β.
    """
    precision_p = (1 / var).sum(0)
    mean_p = (mean / var).sum(0) / precision_p
    mean_q = mean.mean(0)
    precision_q = 1 / (var.mean(0) + mean.var(0, correction=0))
    precision = beta * precision_p + (1 - beta) * precision_q
    weighted = beta * mean_p * precision_p + (1 - beta) * mean_q * precision_q
    return weighted / precision, 1 / precision


@torch.no_grad()
def linear_forecast(posterior: Posterior, x: Tensor, noise_var: float = 0.0) -> Forecast:
    """Predict with a linear model in closed form (FedAG, eq. 6).

    mean = Σ_d m_d x_d + m_b, epistemic = Σ_d v_d x_d² + v_b, aleatoric = noise_var, plus the
    noise variance that the model itself carries.

    Parameters
    ----------
    posterior
        Posterior of a `Regressor` without hidden units; tensors that are not Gaussian have variance
        0.
    x
        Standardised features, (N, D).
    noise_var
        1/β, the variance of the noise.

    Raises
    ------
    SettingError
        If the model has hidden units.
    """
    if not is_linear(posterior.mean):
        raise SettingError("model", "a network with hidden units", "linear, for the closed form")
    point = {name: mean[None] for name, mean in posterior.mean.items()}
    means, noise_vars = moments(point, x)
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    variances = [
        posterior.log_var.get(name, torch.full_like(posterior.mean[name], -math.inf)).exp()
        for name in ("output.weight", "output.bias")
    ]
    var = torch.cat([v.flatten() for v in variances]).double()
    return Forecast(means[0], design.square() @ var, noise_vars[0] + noise_var)


# Kinds of prediction


@dataclass(frozen=True)
class Predictor(Checked):
    """A kind of prediction: which networks answer, and how their answers are joined.

    Attributes
    ----------
    word : str
        The value of the setting `predictive` that names it; "" if only a method does.
    classes, numbers : bool
        True if it predicts classes, or numbers.
    needs_members : bool
        True if it needs networks that the method keeps. Before there are some, draws predict.
    exports : bool
        True if a graph can hold its networks.
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
            Number of networks; each member gives at least one. 0: the model's means alone.
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


def predictor_named(word: str, words: Mapping[str, object]) -> Predictor:
    """Return the kind that a word names, with the values that words give its parameters."""
    return parameters_of(kind_of(word), words)


def _is_gaussian(held: Predictive) -> bool:
    return any(name.endswith(LOG_VAR_SUFFIX) for name in held.members)


def _of_each(draws: Draws, states: Sequence[Networks]) -> Draws:
    return Draws(max(1, draws.samples // len(states)), draws.generator)

"""Partitioned variational inference: the global posterior is the prior times a site per client.

With natural parameters η = (m/v, 1/v), prior η₀ and sites λ_k,

    η_g = η₀ + Σ_k λ_k,      q_k = argmin_q E_q[NLL_k] + KL(q ‖ η_g − λ_k),
    λ_k ← λ_k + γ (η(q_k) − η_g).

A client's prior is the cavity: everything but its own data. So the prior η₀ counts once, and local
posteriors need no weights by size. If Gaussians factorise, a fixed point is the mean-field
posterior of all data, whatever the likelihood. For linear models it is exact in the mean and the
precision's diagonal: with correlated features, unlike sizes, and clients that leave and return.

It assumes that posteriors factorise, and that clients come back: a site stays until its client
replies again. Deterministic tensors have no site: they are averaged by size.

Messages: down the global posterior and the client's cavity (4 numbers per Gaussian weight); up its
posterior (2). Clients keep nothing, so after a refused or lost reply both sides still agree.

Cost: local steps cost what plain variational inference costs. The server holds the sites, 2 numbers
per weight and client. Synchronous rounds need damping, so many clients per round make it slow. The
first round needs none: sites are empty, so no two clients explain the same data. All sites move the
whole way in it with `undamped_start=true`. If posteriors factorise, that is already the result.

Use it where the prior shall count once and clients are few: it is variational inference on all
data. On features of a pretrained network take `inference=laplace`.

`inference=laplace` is PVI of the last layer's point weights. A client finds the mode of its tilted
posterior by L-BFGS, without a step size. Its site is the likelihood's expansion there. All sites
move the whole way in the first round. Full ones always do, and converge as Newton's method does.
Aitken's rule damps the others, with nothing to choose; diagonal and shared ones would diverge
without it under label skew. Shared ones are slow: their bound is far above a softmax's curvature.
LDA's head as initialisation did not pay: its probabilities are too sure, so an expansion there is
poor. The head at the mode predicts, so no epistemic uncertainty is known. The parameter
`covariance` is the form of a site's precision, for C classes and d features:

    diagonal    2 C d numbers
    kronecker   C d + d²/2 + C²/2
    full        C d + (C d)²/2
    shared      C d + d²/2; one matrix for all classes, Böhning's bound

With each of them the fixed point is the mode of all data. They differ in rounds and bytes.

References: Bui et al., Partitioned Variational Inference, 2018; Ashman et al. 2022, whose public
code repairs sites of negative precision. Here sites may be negative; a cavity's precision is held
above 0. Irons and Tuck, A version of the Aitken accelerator for computer iteration, 1969.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedbary.errors import SettingError
from fedbary.gaussian import Factor, gaussian_pairs
from fedbary.methods._conditions import Unfit
from fedbary.methods._expanded import Claim, Expanded
from fedbary.methods._method import Arrival, Fitted, Inherited, Local, Reply, Server, Tensors
from fedbary.methods._sites import ServerFactorMethod
from fedbary.parts.parameters import Positive, ShareOrZero
from fedbary.settings.config import Settings
from fedbary.settings.owners import models, task_kind


def of_sites(method: PVI, run: Settings) -> Unfit:
    """Refuse what does not fit Laplace sites, or sites of Gaussian layers."""
    laplace, covariance = run.inference == "laplace", method.covariance
    if laplace and task_kind(run.task).numbers:
        yield "inference", f"another value for task={run.task}: laplace is for classes"
    elif laplace and run.bayesian_layers:
        yield "bayesian_layers", "0 for inference=laplace, which takes point weights"
    elif laplace and run.model in models().keys() - {"linear"}:
        allowed = "linear, or a network of yours of which the last layer alone trains"
        yield "model", f"{allowed}, for inference=laplace"
    elif laplace and covariance == "none":
        yield "covariance", "diagonal, kronecker, full or shared for inference=laplace"
    elif not laplace and covariance != "none":
        yield "inference", f"laplace for covariance={covariance}"
    elif not laplace and run.bayesian_layers == 0:
        yield "bayesian_layers", f"1 or more for method={method.name}, or inference=laplace"


@dataclass(frozen=True)
class PVI(ServerFactorMethod):
    """Partitioned variational inference (Bui et al. 2018), synchronous or one client at a time.

    Parameters
    ----------
    damping : float
        γ, the part of the way that a site moves. 0, the default: 1 over the number of replies of a
        round. Synchronous rounds then converge, and one client a round moves all the way. Laplace
        sites move all the way in the first round; 0 then means all the way for full ones, and
        Aitken's rule for the others.
    undamped_start : bool
        True: the first round that counts moves its sites all the way, γ = 1.
    prior_std : float
        Standard deviation of the prior N(0, prior_std²), η₀.
    covariance : str
        Structure of Laplace sites' precisions: diagonal, kronecker, full, shared. none: sites are
        Gaussians that factorise, of variational layers.
    """

    damping: ShareOrZero = 0.0
    undamped_start: bool = False
    prior_std: Positive = 1.0
    covariance: Literal["none", "diagonal", "kronecker", "full", "shared"] = "none"

    deterministic = None
    conditions = (of_sites,)

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a damping with which a round of so many clients may diverge."""
        if self.covariance == "none" and self.damping * clients > 1:
            allowed = f"at most 1/{clients}: with {clients} replies a larger one may diverge; "
            allowed += "undamped_start=true leaves the first round undamped"
            raise SettingError("damping", self.damping, allowed)

    @property
    def expanded(self) -> Expanded:
        """The sites of point weights."""
        return Expanded(self.covariance, self.prior_std**-2, self.damping)

    def prior(self, like: Mapping[str, Tensor]) -> Factor:
        """Return N(0, prior_std²)."""
        return Factor.normal(self.prior_std, like)

    def step(self, replies: int) -> float:
        """Return γ, 1 over the replies where none is given."""
        return self.damping or 1 / replies

    def first_step(self, replies: int) -> float:
        """Return 1 for an undamped start."""
        return 1.0 if self.undamped_start else self.step(replies)

    def start(self, model: Tensors) -> Tensors:
        """Refuse a model of the other kind, or a layer whose sites are too large."""
        gaussian = gaussian_pairs(model.keys())
        if self.covariance == "none":
            if not gaussian:
                allowed = "diagonal, kronecker, full or shared, with inference=laplace, for a "
                allowed += "network of point weights; or Gaussian layers, as "
                allowed += "fedbary.variational.variational makes them"
                raise SettingError("covariance", "none", allowed)
            return super().start(model)
        if gaussian:
            allowed = f"none for Gaussian weights ({min(gaussian)})"
            raise SettingError("covariance", self.covariance, allowed)
        self.expanded.structure(model)
        return {}

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Keep the sites of the earlier run: the prior is its posterior."""
        if self.covariance == "none":
            return super().inherit(model, inherited)
        self.start(model)
        return self.expanded.inherit(model, inherited)

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global posterior, from which the client starts, and its cavity."""
        if self.covariance == "none":
            return super().send(server, client)
        return self.expanded.send(server, client)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer the client's posterior with the cavity as the prior, or its site."""
        if self.covariance == "none":
            return super().fit(local, received, kept)
        return self.expanded.fit(local, received)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a posterior, or a site."""
        return model if self.covariance == "none" else self.expanded.reply_like(model)

    def step_length(self, model: Tensors, state: Tensors) -> float | None:
        """Return the step in standard errors of full Laplace sites, which know these."""
        return self.expanded.step_length(model, state) if self.covariance == "full" else None

    def claimed(self, server: Server, reply: Reply) -> Claim:
        """Return what a reply of a full site says of its rows, see `Expanded.claimed`."""
        return self.expanded.claimed(server, reply)

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Replace the sites of those that replied, and multiply all."""
        if self.covariance == "none":
            return super().arrive(server, arrivals)
        return self.expanded.arrive(server, arrivals)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the sites of those that replied, and multiply all."""
        if self.covariance == "none":
            return super().aggregate(server, replies)
        return self.expanded.aggregate(server, replies)

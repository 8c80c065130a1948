"""Sites of point weights: a client's likelihood, expanded at the mode of its tilted posterior.

With the global mean M, the prior N(0, 1/λ) and for client k the slope R_k of its site at M and the
site's precision P_k, held by a structure (`fedbary.aggregation.structures`), a round is

    client:  W_k = argmin NLL_k/κ + ⟨λ M + Σ_j≠k R_j, W − M⟩ + ½ ‖W − M‖² under λ + Σ_j≠k P_j,
             P = ∇² NLL_k(W_k)/κ,      R = ∇ NLL_k(W_k)/κ + P (M − W_k),
    server:  P_k ← P_k + γ (P − P_k),      R_k ← R_k + γ (R − R_k),
             M' = M − (λ + Σ P_k)⁻¹ (λ M + Σ R_k),      R_k ← R_k + P_k (M' − M).

That is PVI's recursion in natural parameters, the shift being P_k M − R_k. Slopes lose no digits
where the shift's two terms nearly cancel, and a site's mean need not exist. At a fixed point the
slopes of all likelihoods and of the prior sum to 0: M is the mode of all data, whatever the
structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from fedbary.aggregation.structures import STRUCTURES, Quadratic, Structure
from fedbary.errors import SettingError
from fedbary.inference._head import Head
from fedbary.methods._kronecker import conjugate_gradients, last_layer, matrix, tensors_of
from fedbary.methods.shared.method import Fitted, Local, Reply, Server, Tensors

SLOPE = "slope"
MOST_NUMBERS = 2**25
"""The most numbers of a site: 128 MB in float32."""


@dataclass(frozen=True)
class Expanded:
    """The sites of a last layer under a structure.

    Parameters
    ----------
    covariance : str
        The structure's name.
    prior_precision : float
        λ.
    damping : float
        γ after the first round; 0: the structure's own.
    """

    covariance: str
    prior_precision: float
    damping: float

    def structure(self, model: Tensors) -> Structure:
        """Return the structure of a model's last layer; a SettingError if a site is too large."""
        like = matrix(model, last_layer(model))
        structure = STRUCTURES[self.covariance](*like.shape)
        if (numbers := sum(structure.sizes().values())) > MOST_NUMBERS:
            said = f"{self.covariance} of {like.numel():,} weights, {numbers:,} numbers a client"
            allowed = (
                f"a structure of at most {MOST_NUMBERS:,} numbers: diagonal, kronecker, shared"
            )
            raise SettingError("covariance", said, allowed)
        return structure

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model, and the cavity's slope and statistics."""
        structure, mean = self.structure(server.model), self.mean(server.model)
        slope, held = self.prior_precision * mean, structure.zeros()
        for other, site in self.sites(server.state, structure):
            if other != client:
                slope = slope + site[SLOPE].view_as(mean)
                held = {name: tensor + site[name] for name, tensor in held.items()}
        like = server.model[last_layer(server.model)[0]]
        cavity = {SLOPE: slope.flatten(), **held}
        return {**server.model, **{f"cavity/{n}": t.to(like.dtype) for n, t in cavity.items()}}

    def fit(self, local: Local, received: Tensors) -> Fitted:
        """Find the mode under the cavity, and expand the likelihood there."""
        local.load(received)
        structure, head = self.structure(received), Head(local)
        centre = head.weights
        told = {n: received[f"cavity/{n}"].to(centre) for n in (SLOPE, *structure.sizes())}
        slope = told.pop(SLOPE).view_as(centre)
        metrics = local.infer(Quadratic(structure, told, self.prior_precision, slope, centre))
        mode, power = head.weights, 1 / local.training.kl_weight
        found = {n: power * t for n, t in structure.expand(head.features, head.bent(mode)).items()}
        slope = power * head.slope(mode) + structure.product(found)(centre - mode)
        site = {f"site/{n}": t for n, t in {SLOPE: slope.flatten(), **found}.items()}
        return Fitted({n: t.to(head.layer.weight.dtype) for n, t in site.items()}, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the slope and the statistics of a site."""
        structure, like = self.structure(model), model[last_layer(model)[0]]
        sizes = {SLOPE: structure.outputs * structure.inputs, **structure.sizes()}
        return {f"site/{name}": like.new_zeros(size) for name, size in sizes.items()}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the sites of those that replied, and go to the mode of the product."""
        structure, mean = self.structure(server.model), self.mean(server.model)
        sites = dict(self.sites(server.state, structure))
        step = (self.damping or structure.damping) if server.state else 1.0
        nothing = {SLOPE: torch.zeros(mean.numel(), dtype=mean.dtype), **structure.zeros()}
        for reply in replies:
            found = {n: reply.tensors[f"site/{n}"].double() for n in nothing}
            if fault := structure.fault({n: t for n, t in found.items() if n != SLOPE}):
                raise ValueError(f"a site of no convex loss: {fault}")
            before = sites.get(reply.client, nothing)
            sites[reply.client] = {n: torch.lerp(before[n], t, step) for n, t in found.items()}
        moved, model = self._mode(structure, mean, sites), dict(server.model)
        names = last_layer(server.model)
        like = server.model[names[0]]
        model |= tensors_of(moved, names, server.model)
        away = self.mean(model) - mean  # as the model holds it, in its own precision
        state = {}
        for client, site in sorted(sites.items()):
            slope = site[SLOPE].view_as(mean) + structure.product(site)(away)
            for name, tensor in {**site, SLOPE: slope.flatten()}.items():
                state[f"site/{quote(client, safe='')}/{name}"] = tensor.to(like.dtype)
        return model, state

    def mean(self, model: Tensors) -> Tensor:
        """Return the last layer as a matrix, float64."""
        return matrix(model, last_layer(model))

    def sites(
        self, state: Tensors, structure: Structure
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield clients, by name, with the slope and the statistics of their sites."""
        for quoted in sorted({key.split("/")[1] for key in state}):
            names = (SLOPE, *structure.sizes())
            yield unquote(quoted), {n: state[f"site/{quoted}/{n}"].double() for n in names}

    def _mode(self, structure: Structure, mean: Tensor, sites: Mapping[str, Tensors]) -> Tensor:
        """Return M', by conjugate gradients, which take one step where precisions add."""
        held, right = structure.zeros(), -self.prior_precision * mean
        for _, site in sorted(sites.items()):
            right = right - site[SLOPE].view_as(mean)
            held = {name: tensor + site[name] for name, tensor in held.items()}

        def applied(to: Tensor) -> Tensor:
            parts = (structure.product(site)(to) for _, site in sorted(sites.items()))
            return sum(parts, self.prior_precision * to)

        solve = structure.solve(held, self.prior_precision)
        return mean + conjugate_gradients(applied, solve, right, torch.zeros_like(mean))[0]

"""Methods of one round whose clients send sums: a head on features that no client changes.

Features φ(x) are what enters the last layer, the inputs themselves of a linear model. A row z_i
holds an example's features and targets. A client sends the means of the row's products. The server
adds every client's, times n_k. So the result is that of all data in one place, under any split, up
to the rounding of float32.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.aggregation.sums import select_prefix
from fedbary.data.batches import scale_pixels
from fedbary.data.digest import content_hash, row_hashes
from fedbary.data.mechanism import noised
from fedbary.errors import SettingError
from fedbary.inference import Local
from fedbary.methods._conditions import Conditions, Unfit
from fedbary.methods._curvature import last_layer
from fedbary.methods._method import (
    Arrival,
    Fitted,
    Inherited,
    Method,
    Reply,
    Server,
    Tensors,
    age,
    by_client,
    of_client,
    older,
    whose,
)
from fedbary.methods._sites import ROUNDING, centred_scatter
from fedbary.parts.parameters import Count, NotNegative
from fedbary.predictive import Predictive
from fedbary.predictive.mahalanobis import Background
from fedbary.predictive.networks import evaluation
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfAdapters, OfFeatures
from fedbary.variational.frozen import frozen_tensors, hash_tensors

SHARES, FEATURES, PRODUCTS = "sums/shares", "sums/features", "sums/products"
"""The keys of what a client sends, each a mean over its examples."""


def by_class(count: float, means: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (C,), means (C, d), 0 for a class without examples, and the scatter (d, d).

    Raises
    ------
    ValueError
        If no examples have such sums.
    """
    shares, sums = means[SHARES].double(), sums_by_class(means)
    if shares.min() < 0 or abs(float(shares.sum()) - 1) > 1e-4:
        raise ValueError("the classes' shares are invalid")
    centres = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp_min(1e-30), 0.0)
    within = centred_scatter(means[PRODUCTS], sums.shape[1], centres.T @ sums)
    return count * shares, centres, count * within


def sums_by_class(means: Mapping[str, Tensor]) -> Tensor:
    """Return the features' sums by class as parts of the mean of all examples, (C, d)."""
    return means[FEATURES].double().view(len(means[SHARES]), -1)


SENSITIVITY = math.sqrt(6)

FAR = 6.0
"""The farthest that an honest client's sums may lie, in multiples of the noise's mean distance."""


def private_sums(sums: Mapping[str, Tensor], norm: float, multiplier: float) -> dict[str, Tensor]:
    """Return sums over examples whose features have at most a norm, with noise.

    Parameters
    ----------
    sums : mapping of str to Tensor
        Counts (C,), features by class (C d,), and the triangle of products.
    norm : float
        c.
    multiplier : float
        The noise's standard deviation for a sensitivity of 1.
    """
    std = SENSITIVITY * multiplier
    size = len(sums[FEATURES]) // len(sums[SHARES])
    # half the variance beside the diagonal, as the norm counts
    part = packed(torch.full((size, size), math.sqrt(0.5), dtype=torch.float64).fill_diagonal_(1))
    return {
        SHARES: noised(sums[SHARES], std),
        FEATURES: noised(sums[FEATURES], norm * std),
        PRODUCTS: noised(sums[PRODUCTS], norm**2 * std * part),
    }


def question_of(local: Local, asked: str) -> str:
    """Return a digest of examples, in any order, of the network before the head, and of words."""
    found = hashlib.blake2b(asked.encode(), digest_size=16)
    state = local.state()
    head = last_layer(state)
    hash_tensors(found, frozen_tensors(local.model))
    hash_tensors(found, {name: tensor for name, tensor in state.items() if name not in head})
    rows, y = row_hashes(local.x), local.y.cpu()
    order = torch.from_numpy(np.lexsort((y.numpy(), rows.numpy())))
    found.update(content_hash(rows[order], y[order]).encode())
    return found.hexdigest()


def require_near(means: Mapping[str, Tensor], norm: float, std: float) -> None:
    """Raise a ValueError if sums with noise lie farther out than examples and noise explain.

    Parameters
    ----------
    means : mapping of str to Tensor
        The sums of `private_sums`, over the examples.
    norm : float
        c.
    std : float
        The multiplier over the examples.
    """
    slack, classes = FAR * SENSITIVITY * std, len(means[SHARES])
    sums = sums_by_class(means)
    far = {
        "shares": abs(float(means[SHARES].sum()) - 1) > slack * math.sqrt(classes) + 1e-4,
        "sums": float(sums.norm()) > norm * (1 + slack * math.sqrt(sums.numel())),
        "products": float(unpacked(means[PRODUCTS].double(), sums.shape[1]).norm())
        > norm**2 * (1 + slack * sums.shape[1]),
    }
    if any(far.values()):
        what = ", ".join(name for name, is_far in far.items() if is_far)
        raise ValueError(f"{what} that no examples have, even with noise")


def repaired(
    count: float, means: Mapping[str, Tensor], norm: float, std: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (C,), means (C, d) and scatter (d, d) within the classes, near noisy sums.

    Counts are not negative and sum to n. A class's mean has at most the norm c. The matrix of
    products, and the scatter that is left of it, are the nearest ones without negative eigenvalues.
    The scatter has the noise's largest eigenvalue, c² √6 std √(2d), on its diagonal beside: what is
    smaller nobody can tell from noise.

    Parameters
    ----------
    count : float
        n.
    means : mapping of str to Tensor
        The sums over n.
    norm : float
        c.
    std : float
        The noise's standard deviation for a sensitivity of 1, over n.
    """
    shares = means[SHARES].double().clamp_min(0)
    shares = shares if shares.sum() > 0 else torch.ones_like(shares)
    shares = shares / shares.sum()
    sums = sums_by_class(means)
    centres = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp_min(1e-30), 0.0)
    norms = centres.norm(dim=1, keepdim=True).clamp_min(1e-30)
    centres = centres * (norm / norms).clamp_max(1)
    products = _positive(unpacked(means[PRODUCTS].double(), sums.shape[1]))
    within = _positive(products - centres.T @ (shares[:, None] * centres))
    size = len(within)
    ridge = norm**2 * SENSITIVITY * std * math.sqrt(2 * size)
    return count * shares, centres, count * (within + ridge * torch.eye(size, dtype=within.dtype))


def _positive(matrix: Tensor) -> Tensor:
    """Return the nearest symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return vectors @ (values.clamp_min(0)[:, None] * vectors.T)


_AT_ONCE = 512
"""Examples whose features are held at a time."""

_SITES, _WEIGHT, _BACKGROUND = "sites/", "weight", "background/"


class LastLayer(NamedTuple):
    """A last layer: weight (outputs, d) and bias (outputs,), and what knows its features."""

    weight: Tensor
    bias: Tensor
    background: Background | None = None


def of_last_layer(method: Method, run: Settings) -> Unfit:
    """Refuse weights of examples, and adapters, which would train below the head."""
    if dict(run).get("class_weights", "none") != "none":
        yield "class_weights", f"none for method={method.name}, which counts every example once"
    if run.of_task(OfFeatures).backbone != "none" and run.of_task(OfAdapters).adapters != "none":
        yield "adapters", f"none for method={method.name}, which fits the last layer alone"


@dataclass(frozen=True)
class SumsMethod(Method):
    """A head from the clients' sums; each client's newest admitted sums count.

    Parameters
    ----------
    most_features : int
        Largest number of features that enter the last layer; clients send its square.
    max_norm : float
        Largest Euclidean norm of an example's features; longer ones are scaled down to it. 0: no
        bound. It bounds the effect of one example, and so of a hostile site. Predictions take
        features as they are.
    """

    most_features: Count = 4096
    max_norm: NotNegative = 0.0

    deterministic = True
    defaults = MappingProxyType({"model": "linear"})
    conditions: ClassVar[Sequence[Conditions]] = (of_last_layer,)
    unused = ("local_epochs", "lr", "momentum", "weight_decay", "lr_schedule")

    @abstractmethod
    def products(self, features: Tensor, y: Tensor, outputs: int) -> Tensors:
        """Return sums over examples of features (N, d), in float64, and their targets."""

    @abstractmethod
    def require_possible(self, means: Tensors, examples: float | None) -> None:
        """Raise a ValueError if no examples have such means, of so many if that is known."""

    @abstractmethod
    def head(self, count: float, means: Tensors, sites: int) -> LastLayer:
        """Return the last layer from the means over so many examples of so many sites."""

    @abstractmethod
    def sizes(self, features: int, outputs: int) -> Mapping[str, int]:
        """Return how many numbers each of the sums has."""

    @abstractmethod
    def columns(self, means: Tensors) -> tuple[Tensor, Tensor]:
        """Return mean and mean square (k,) of the features, and of a target that is a number."""

    @abstractmethod
    def gram(self, means: Tensors) -> Tensor:
        """Return the mean of z zᵀ of the rows z = (φ, 1, targets), float64."""

    @abstractmethod
    def rescaled(self, means: Tensors, shift: Tensor, scale: Tensor) -> Tensors:
        """Return the means of the same examples whose columns z (k,) are (z − shift)/scale."""

    def start(self, model: Tensors) -> Tensors:
        """Refuse a last layer that is too wide, or has no bias; there is no state yet."""
        self._like(model)
        return {}

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Keep the sums of the earlier run's sites; what is sent from now on is added."""
        if not (sites := sites_of(inherited.state)):
            allowed = "a run of LDA, Ridge or ConjugateGaussian: the head is made of sums"
            raise SettingError("start_from", "a run without sums", allowed)
        for name in ("max_norm", "epsilon", "delta"):
            theirs, mine = inherited.settings.get(name), getattr(self, name, None)
            if theirs is not None and theirs != mine:
                raise SettingError(name, mine, f"{theirs}, as in the earlier run")
        like = self._like(model)
        try:
            held = {
                older(site): (weight, self.relabelled(means, inherited, like))
                for site, (weight, means) in sites.items()
            }
        except (KeyError, ValueError) as error:
            allowed = "a run whose sums are of the same features and method"
            raise SettingError("start_from", f"sums {error}", allowed) from None
        return self.model_of(Server(model, {}, 0), state_of(held))

    def relabelled(
        self, means: Tensors, inherited: Inherited, like: Tensors
    ) -> Mapping[str, Tensor]:
        """Return an earlier run's means in the shapes of `like`, which new classes add zeros to."""
        return {name: inherited.laid_out(means[name], zeros) for name, zeros in like.items()}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Send the means of the products; nothing is trained."""
        local.load(received)
        weight, _ = head_names(received)
        outputs = len(received[weight])
        like, total = self._like(received), dict[str, Tensor]()
        for x, y in zip(local.x.split(_AT_ONCE), local.y.split(_AT_ONCE), strict=True):
            features = self._held(_entering(local, weight, x).double())
            for name, added in self.products(features, y, outputs).items():
                total[name] = total[name] + added if name in total else added
        sent = self.released(total, local)
        means = {name: (sent[name] / len(local.x)).to(like[name].dtype) for name in like}
        return Fitted(means, {})

    def released(self, sums: Tensors, local: Local) -> Tensors:
        """Return what a client sends of the sums over its examples: these themselves."""
        return sums

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the sums' names and sizes."""
        return self._like(model)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Add what all clients have sent last, and find the head."""
        state, earlier = dict(server.state), _earlier(server.state)
        for reply in replies:
            self.require_possible(reply.tensors, reply.weight if server.counted else None)
            self.require_norm(reply.tensors, server.model)
            if any(_is_same(reply, *sums) for sums in earlier[reply.client]):
                server.warn(
                    f"{reply.client} sends what it has sent to the earlier run: it counts once"
                )
                continue
            sent = {name: tensor.clone() for name, tensor in reply.tensors.items()}
            state |= state_of({reply.client: (reply.weight, sent)})
        return self.model_of(server, state)

    def model_of(self, server: Server, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return the model that a state's sums make, and the state with all that it holds."""
        count, means = total_of(state)
        names = head_names(server.model)
        matrices = (weight for name, weight in server.model.items() if name != names[0])
        others = sum(weight.numel() for weight in matrices if weight.ndim > 1)
        if others and server.round == 1:
            server.warn(
                f"{self.name} fits the last layer alone: {others:,} weights before it stay as they "
                "were initialised. Take model=linear, or a network that is pretrained"
            )
        weight, bias, background = self.head(count, means, len(sites_of(state)))
        found = zip(names, (weight, bias), strict=True)
        head = {name: tensor.to(server.model[name]) for name, tensor in found}
        told = background.tensors() if background else {}
        state = {**state, **{_BACKGROUND + name: tensor for name, tensor in told.items()}}
        return {**server.model, **head}, state

    def model_of_total(self, model: Tensors, examples: float, means: Tensors) -> Tensors:
        """Return the model from the means over all clients' examples, as one sum tells them.

        A secure aggregation rounds the sum. So its counts need not be whole numbers.

        Raises
        ------
        ValueError
            If no examples have such means.
        """
        self.require_possible(means, None)
        self.require_norm(means, model)
        found, _ = self.model_of(Server(model, {}), state_of({"all": (examples, means)}))
        return found

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the model, and what tells how far inputs lie from all classes."""
        told = select_prefix(_BACKGROUND, state)
        return Predictive(model, background=Background.of(told))

    def _held(self, features: Tensor) -> Tensor:
        """Return features (N, d) with norms of at most `max_norm`."""
        if not self.max_norm:
            return features
        norms = features.norm(dim=1, keepdim=True).clamp_min(1e-30)
        return features * (self.max_norm / norms).clamp_max(1)

    def require_norm(self, means: Tensors, model: Tensors) -> None:
        """Raise a ValueError if features have a larger mean square than `max_norm` allows."""
        if not self.max_norm:
            return
        width = model[head_names(model)[0]].shape[1]
        square = float(self.columns(means)[1][:width].sum())
        if not square <= self.max_norm**2 * (1 + ROUNDING):
            raise ValueError(f"features of norm {square**0.5:.3g}, allowed are {self.max_norm:g}")

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Add what has arrived, and find the head."""
        return self.aggregate(server, arrivals)

    def _like(self, model: Tensors) -> dict[str, Tensor]:
        weight, _ = head_names(model)
        outputs, width = model[weight].shape
        if width > self.most_features:
            said = f"{width:,}, whose products are {4 * width * (width + 1) // 2:,} bytes"
            raise SettingError("most_features", said, f"at most {self.most_features:,}")
        sizes = self.sizes(width, outputs).items()
        return {name: model[weight].new_zeros(size) for name, size in sizes}


def _earlier(state: Tensors) -> defaultdict[str, list[tuple[float, dict[str, Tensor]]]]:
    """Return what each site has sent to earlier runs, by its own name."""
    found = defaultdict[str, list[tuple[float, dict[str, Tensor]]]](list)
    for site, sums in sites_of(state).items():
        if age(site):
            found[whose(site)].append(sums)
    return found


def _is_same(reply: Reply, weight: float, means: Tensors) -> bool:
    """Whether a reply is, bit for bit, sums over so many examples and no others."""
    return weight == reply.weight and all(means[n].equal(t) for n, t in reply.tensors.items())


def head_names(model: Tensors) -> tuple[str, str]:
    """Return the names of the last layer's weight and bias.

    Raises
    ------
    SettingError
        If the last layer is not linear, or has no bias.
    """
    names = last_layer(model)
    if len(names) < 2:
        raise SettingError("model", ", ".join(model), "a last layer that is linear, with a bias")
    return names[0], names[1]


def sites_of(state: Tensors) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Return the examples of each site in a state, by its name, and the means over them."""
    found = by_client(_SITES, state).items()
    return {site: (float(means.pop(_WEIGHT)), means) for site, means in found}


def state_of(sites: Mapping[str, tuple[float, Tensors]]) -> dict[str, Tensor]:
    """Return the state that holds the examples of sites and the means over them."""
    state: dict[str, Tensor] = {}
    for name, (weight, means) in sites.items():
        count = torch.tensor(weight, dtype=torch.float64)
        state |= of_client(_SITES, name, {_WEIGHT: count, **means})
    return state


def total_of(state: Tensors) -> tuple[float, dict[str, Tensor]]:
    """Return the examples of all sites in a state, and the means over them, in float64."""
    sites = sites_of(state).values()
    count = sum(weight for weight, _ in sites)
    means: dict[str, Tensor] = {}
    for weight, held in sites:
        for name, tensor in held.items():
            part = weight / count * tensor.double()
            means[name] = means[name] + part if name in means else part
    return count, means


def _entering(local: Local, weight: str, x: Tensor) -> Tensor:
    """Return what enters the layer of that weight, in evaluation mode: (N, d)."""
    passed: list[Tensor] = []
    layer = local.model.get_submodule(weight.rpartition(".")[0])
    with (
        evaluation(local.model),
        torch.no_grad(),
        layer.register_forward_hook(lambda _, entering, __: passed.append(entering[0])),
    ):
        local.model(scale_pixels(x))
    return passed[0]

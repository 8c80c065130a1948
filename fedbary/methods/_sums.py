"""Methods of one round whose clients send sums: a head on features that no client changes.

Features φ(x) are what enters the last layer, the inputs themselves of a linear model. A row z_i
holds an example's features and targets. A client sends the means of the row's products. The server
adds every client's, times n_k. So the result is that of all data in one place, under any split, up
to the rounding of float32.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from fedbary.aggregation.prefixes import under
from fedbary.data.batches import inputs
from fedbary.errors import SettingError
from fedbary.methods._kronecker import last_layer
from fedbary.methods._possible import ROUNDING
from fedbary.methods.shared.inherited import Inherited, age, older, whose
from fedbary.methods.shared.method import Arrival, Fitted, Local, Method, Reply, Server, Tensors
from fedbary.parts.parameters import Count, NotNegative
from fedbary.predictive import Predictive
from fedbary.predictive.mahalanobis import Background
from fedbary.predictive.networks import evaluation

_AT_ONCE = 512
"""Examples whose features are held at a time."""

_SITES, _WEIGHT, _BACKGROUND = "sites/", "weight", "background/"


class LastLayer(NamedTuple):
    """A last layer: weight (outputs, d) and bias (outputs,), and what knows its features."""

    weight: Tensor
    bias: Tensor
    background: Background | None = None


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
    fits_last_layer = True
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
        told = under(_BACKGROUND, state)
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

    def check_arrivals(self) -> None:
        """Take all: sums add up in any order."""

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
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in under(_SITES, state).items():
        place, _, name = key.partition("/")
        found.setdefault(place, {})[name] = tensor
    return {
        unquote(place): (float(means.pop(_WEIGHT)), means) for place, means in sorted(found.items())
    }


def state_of(sites: Mapping[str, tuple[float, Tensors]]) -> dict[str, Tensor]:
    """Return the state that holds the examples of sites and the means over them."""
    state: dict[str, Tensor] = {}
    for name, (weight, means) in sites.items():
        site = f"{_SITES}{quote(name, safe='')}/"
        state[site + _WEIGHT] = torch.tensor(weight, dtype=torch.float64)
        state |= {site + key: tensor for key, tensor in means.items()}
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
        local.model(inputs(x))
    return passed[0]

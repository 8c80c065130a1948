"""FedPop: a head of each client's own, sampled by Langevin steps under a prior that is learned.

The trunk φ is common: the network's deterministic tensors. A client's head θ_k has the Gaussian
ones. It is a draw from the population's prior N(m, v) per weight, which the server learns. A round
at client k, from its last θ_k, over the round's mini-batches:

    θ ← θ − ε A [∇ mean NLL + κ (θ − m)/(n_k v)] + √(2 ε A κ / n_k) ξ,    A = 1/(1 + ε κ/(n_k v)),

with ξ standard normal and κ = `kl_weight`. At κ = 1, the paper's value and the default, this is
Langevin dynamics on −log p(D_k | θ, φ) − log p(θ | m, v). A smaller κ counts the data 1/κ times, as
everywhere here. The constant A per weight keeps the prior's part stable.

Batches of B examples add noise. With h the curvature of the mean NLL, the chain's temperature is κ
+ ε h n_k/(2B). So ε is the smaller of two: `lr` / (1 − `momentum`), as far as SGD goes, and s/h,
with s = min(0.06, 2B/(3 n_k)) and the largest h at the round's start. The chain then forgets no
faster than an epoch's batches cancel.

A round's steps have three parts:

1. Three quarters of the part `burn_in`: ε is SGD's rate, so that heads learn.
2. The last quarter of `burn_in`: ε is the chain's own, and the samples are dropped. A client
   without a head keeps SGD's rate here.
3. The other steps: the client takes the means of ∇_φ mean NLL, at the φ that it was sent, of θ − m,
   and of (θ − m)², and sends them.

The first mean is the gradient of the marginal likelihood over the head, by Fisher's identity. The
server steps along its mean by size with Adam. It sets the prior to the optimum of EM,

    m ← m + mean_k E[θ_k − m],      v ← mean_k E[(θ_k − m)²] − (mean_k E[θ_k − m])².

If the chains are exact, trunk and prior end at the maximum of the marginal likelihood of all
clients, also of unlike sizes, and if some leave and return.

A client predicts by the mean of its heads' predictions on the trunk that it is sent. For everybody,
heads are drawn from the prior.

It assumes that clients share features and differ in the head.

Messages: the model both ways (2 numbers per weight of the head). A client keeps its chain's end and
`heads` samples.

Cost: a round costs as much as FedAvg's, though φ moves only once.

Use it where each client needs a head of its own and its uncertainty, and many short rounds are
possible.

Traps of the public code: it runs Adam or RMSprop without noise where the Langevin steps belong. It
holds the prior at N(0, 1), moves φ client after client, and scores the last head alone. Its
"femnist" is MNIST. The paper ascends in the prior's parameters; the server takes the optimum here.
A prior that starts narrow holds the heads of few examples, so it starts at the code's N(m, 1).

Tried on digits (ten clients of some 130 images, 20 rounds of 5 epochs, seed 0), before ε was set by
n_k: validation accuracy was 90 % for everybody, and 93 % for clients' own models on held-out data.
With log v from −7 it was 69 % and 80 %, and 75 % and 95 % with κ = 0.001, too. With log v from −4
and κ = 0.1 it was 92 % and 95 %. Now heads learn more slowly: with these defaults it is 50 % for
everybody after as many rounds, on the test set.

Reference: Kotelevskii et al., FedPop: A Bayesian Approach for Personalised Federated Learning,
NeurIPS 2022; the code read is nkotelevskii/FedPop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Posterior, gaussian_pairs
from fedbary.inference._steps import Flat, Steps
from fedbary.methods._chain import speed
from fedbary.methods._curvature import curvature_at_start
from fedbary.methods._method import (
    ALONG_STEPS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    is_buffer,
    weighted_mean,
)
from fedbary.methods._server_steps import ServerAdam
from fedbary.parts.parameters import BelowOne, Count, LogVar, Positive
from fedbary.predictive import Predictive

_GRADIENT, _GAP, _SQUARE, _SAMPLE = "gradient/", "head/gap/", "head/square/", "sample/"
_LEARNED = "head/learned"


@dataclass(frozen=True)
class FedPop(Method):
    """Heads sampled at the clients under a learned prior (Kotelevskii et al. 2022).

    Parameters
    ----------
    burn_in : float
        Part of a round's steps that is dropped; the public code drops 5 of 10.
    heads : int
        Number of samples of its head that a client keeps of a round and predicts by.
    server_lr : float
        Adam's step size for the trunk.
    kl_weight : float
        κ, the temperature of the chain and the weight of its prior.
    init_log_var : float
        log v of the first prior, which clients are sent until a round counts.
    """

    burn_in: BelowOne = 0.5
    heads: Count = 5
    server_lr: Positive = 0.01
    kl_weight: Positive = 1.0
    init_log_var: LogVar = 0.0

    unused = ("inference", "prior", "prior_std", "log_var_lr", "weight_decay")
    defaults = ALONG_STEPS
    remembers = True

    def start(self, model: Tensors) -> Tensors:
        """Return that the prior is not learned yet."""
        return {_LEARNED: torch.tensor(False)}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the trunk and the prior, which at first has the variance that it starts from."""
        if bool(server.state[_LEARNED]):
            return server.model
        scales = set(gaussian_pairs(server.model.keys()).values())
        return {
            n: torch.full_like(t, self.init_log_var) if n in scales else t
            for n, t in server.model.items()
        }

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Run the chain from its last head, and return the means of the gradients."""
        heads = list(Posterior.from_state_dict(received).log_var)
        local.load(received)
        chain = LocalChain(local, heads, self.kl_weight)
        if kept:
            chain.theta.value.copy_(chain.theta.pack([kept[name + MEAN_SUFFIX] for name in heads]))
        samples = chain.run(self.burn_in, self.heads, begun=bool(kept))
        reply: dict[str, Tensor] = {}
        for name, gradient in chain.gradients().items():
            reply[_GRADIENT + name] = gradient
        for name, gap, square in chain.moments():
            reply |= {_GAP + name: gap, _SQUARE + name: square}
        state = local.state()
        reply |= {n: state[n] for n in received if is_buffer(n, received[n])}
        expected = self.reply_like(received)
        reply = {n: reply.get(n, torch.zeros_like(expected[n])) for n in expected}
        kept_now = {name + MEAN_SUFFIX: state[name + MEAN_SUFFIX] for name in heads}
        for at, name in enumerate(heads):
            kept_now[_SAMPLE + name] = torch.stack([chain.theta.views(s)[at] for s in samples])
        return Fitted(reply, {"train_nll": chain.mean_nll}, kept_now)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the client's heads on the trunk that it is sent."""
        if not kept:
            return None
        model = {**received, **{n: t for n, t in kept.items() if not n.startswith(_SAMPLE)}}
        members = {
            name: tensor.expand(self.heads, *tensor.shape)
            for name, tensor in received.items()
            if not name.endswith(LOG_VAR_SUFFIX)
        }
        members |= {n + MEAN_SUFFIX: t for n, t in select_prefix(_SAMPLE, kept).items()}
        return Predictive(model, members=members)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return gradients of the trunk, moments of the head, and the buffers."""
        like: dict[str, Tensor] = {}
        prior = Posterior.from_state_dict(model)
        for name, mean in prior.mean.items():
            if name in prior.log_var:
                like |= {_GAP + name: mean, _SQUARE + name: mean}
            else:
                like[name if is_buffer(name, mean) else _GRADIENT + name] = mean
        return like

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Step along the trunk's gradient; set the prior to the optimum of EM."""
        model, prior = server.model, Posterior.from_state_dict(server.model)
        trunk = [n for n, t in prior.mean.items() if n not in prior.log_var and not is_buffer(n, t)]
        means = weighted_mean(replies, [_GRADIENT + name for name in trunk])
        gradient = {name: means[_GRADIENT + name] for name in trunk}
        moments = {name: t for name, t in server.state.items() if name != _LEARNED}
        steps, state = ServerAdam(self.server_lr).step(gradient, moments)
        after = weighted_mean(replies, [name for name in model if is_buffer(name, model[name])])
        after |= {name: model[name] - steps[name] for name in trunk}
        for name, log_var in prior.log_var.items():
            gap = torch.stack([r.tensors[_GAP + name].double() for r in replies]).mean(0)
            square = torch.stack([r.tensors[_SQUARE + name].double() for r in replies]).mean(0)
            var = (square - gap.square()).clamp(math.exp(-39), math.exp(39))
            after[name + MEAN_SUFFIX] = (prior.mean[name] + gap).to(prior.mean[name])
            after[name + LOG_VAR_SUFFIX] = var.log().to(log_var)
        return {name: after[name] for name in model}, {**state, _LEARNED: torch.tensor(True)}


class LocalChain:
    """Langevin steps of a head, as the module's text has them, on a network of means.

    Parameters
    ----------
    local
        The client's round; its network holds the trunk, the prior, and its mean as the start.
    heads
        The Gaussian tensors' names.
    kl_weight
        κ.

    Attributes
    ----------
    theta : Flat
        The head, of which the network's means are views.
    mean_nll : float
        Mean NLL of the last epoch, in nats, after `run`.
    """

    mean_nll: float

    def __init__(self, local: Local, heads: Sequence[str], kl_weight: float) -> None:
        named = {n: p for n, p in local.model.named_parameters() if p.requires_grad}
        like = next(iter(named.values())).detach()
        means = {name: named[name + MEAN_SUFFIX] for name in heads}
        scales = {name + LOG_VAR_SUFFIX for name in heads}
        gaussian = scales | {name + MEAN_SUFFIX for name in heads}
        self._local, self._heads = local, list(heads)
        self._trunk_names = [name for name in named if name not in gaussian]
        self.theta = Flat(list(means.values()), like)
        self._trunk = Flat([named[name] for name in self._trunk_names], like)
        self._centre = self.theta.value.clone()
        log_var = self.theta.pack([named[name + LOG_VAR_SUFFIX] for name in heads])
        self._temperature = kl_weight / len(local.x)
        self._pull = self._temperature * (-log_var).exp()
        self._gradient = torch.zeros_like(self._trunk.value)
        self._gap = torch.zeros_like(self._centre)
        self._square = torch.zeros_like(self._centre)

    def run(self, burn_in: float, samples: int, begun: bool) -> list[Tensor]:
        """Take the round's steps, and return samples (weights,) spread evenly over those kept.

        `begun` says whether the chain goes on from a head of an earlier round.
        """
        local, theta = self._local, self.theta
        in_epoch = math.ceil(len(local.x) / local.training.batch_size)
        steps = local.training.epochs * in_epoch
        dropped = min(math.floor(burn_in * steps), steps - 1)
        hurried, slow = (3 * dropped // 4 if begun else dropped), self._rate()
        wanted = {dropped + ((steps - dropped) * (i + 1) - 1) // samples for i in range(samples)}
        descent, found = Steps(local, theta, self._trunk), list[Tensor]()
        for step, (_, y) in enumerate(descent):
            kept, part = steps - dropped, len(y) * in_epoch / len(local.x)
            theta.grad.mul_(part)  # an example of a smaller batch counts as any other
            if step >= dropped:
                self._gradient.add_(self._trunk.grad, alpha=part / kept)
            rate = slow if step >= hurried else self._sgd_rate
            lr = rate / (1 + rate * self._pull)
            noise = (2 * lr * self._temperature).sqrt()
            gap = theta.value - self._centre
            theta.value.addcmul_(lr, theta.grad.addcmul_(gap, self._pull), value=-1)
            drawn = torch.empty_like(gap).normal_(generator=descent.batches.noise)
            theta.value.addcmul_(noise, drawn)
            if step >= dropped:
                gap = theta.value - self._centre
                self._gap.add_(gap, alpha=1 / kept)
                self._square.addcmul_(gap, gap, value=1 / kept)
            if step in wanted:
                found.append(theta.value.clone())
        self.mean_nll = descent.batches.mean_nll
        return found + found[-1:] * (samples - len(found))

    @property
    def _sgd_rate(self) -> float:
        return self._local.training.lr / (1 - self._local.training.momentum)

    def _rate(self) -> float:
        """Return ε, by the curvature where the chain starts."""
        local = self._local
        curvature, examples = curvature_at_start(local, self.theta), len(local.x)
        most = speed(local.training.batch_size, examples, examples, friction=1.0)
        return min(self._sgd_rate, most / curvature) if curvature > 0 else self._sgd_rate

    def gradients(self) -> dict[str, Tensor]:
        """Return the mean gradient of the mean NLL by the trunk's names."""
        views = self._trunk.views(self._gradient)
        return {n: v.contiguous() for n, v in zip(self._trunk_names, views, strict=True)}

    def moments(self) -> list[tuple[str, Tensor, Tensor]]:
        """Return for each tensor of the head its name and the means of θ − m and (θ − m)²."""
        sums = (self.theta.views(held) for held in (self._gap, self._square))
        each = zip(self._heads, *sums, strict=True)
        return [(name, gap.contiguous(), square.contiguous()) for name, gap, square in each]

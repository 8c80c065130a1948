"""The loop of stochastic gradients: tensors and prior as vectors, a client's batches, the steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

import torch
from torch import Generator, Tensor, nn

from fedbary.aggregation.covariance import Quadratic
from fedbary.data.batches import Augment, batch_source, draw_crops, scale_pixels
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Factor, Posterior, variance_power
from fedbary.inference import Local, Prior, Training
from fedbary.seeds import derive_seed
from fedbary.variational.layers import drawing, seeded


class Flat:
    """Parameters and gradients as one vector each, of which the module's tensors become views.

    The vector holds each parameter in its own memory order, so channels-last weights stay so.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], like: Tensor) -> None:
        self.like = like
        self.layout = [(parameter.shape, parameter.stride()) for parameter in parameters]
        self.parameters, self.value = parameters, self.pack(parameters)
        self.grad = torch.zeros_like(self.value)
        for parameter, value in zip(parameters, self.views(self.value), strict=True):
            parameter.data = value
        self.attach()

    def attach(self) -> None:
        """Let the parameters' gradients be parts of `grad`, also after they were let go of."""
        for parameter, grad in zip(self.parameters, self.views(self.grad), strict=True):
            parameter.grad = grad

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Copy tensors of the parameters' shapes into a new vector of this layout."""
        vector = self.like.new_empty(sum(shape.numel() for shape, _ in self.layout))
        for view, tensor in zip(self.views(vector), tensors, strict=True):
            view.copy_(tensor.detach())
        return vector

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a vector of this layout in the parameters' shapes.

        It may be a row of a matrix: its memory need not begin where its storage does.
        """
        views, start = [], vector.storage_offset()
        for shape, stride in self.layout:
            views.append(vector.as_strided(shape, stride, start))
            start += shape.numel()
        return views


class Vectors:
    """A model's posterior, N(mean, exp(log_var)) and point tensors, and its prior, as vectors.

    Parameters without `requires_grad` are left out, of a pair both: they stay as they are.

    Attributes
    ----------
    points, log_vars
        The means, then the deterministic tensors; the log-variances.
    point_names, log_var_names
        The names of the parameters in `points` and in `log_vars`, in their order.
    mean
        The part of `points.value` that is means.
    has_density
        True: the prior is a density, not a factor without normalisation.
    prior_shift, prior_precision
        e₀ and s₀ per Gaussian weight; of N(m₀, 1/s₀): e₀ = s₀ m₀.
    """

    def __init__(self, model: nn.Module, prior: Prior) -> None:
        named = dict(model.named_parameters())
        pairs = {
            n.removesuffix(LOG_VAR_SUFFIX): {n, n.removesuffix(LOG_VAR_SUFFIX) + MEAN_SUFFIX}
            for n in named
            if n.endswith(LOG_VAR_SUFFIX)
        }
        frozen = {name for name, parameter in named.items() if not parameter.requires_grad}
        names = [name for name, pair in pairs.items() if not pair & frozen]
        gaussian = set().union(*pairs.values())
        means = [named[name + MEAN_SUFFIX] for name in names]
        like = next(iter(named.values())).detach()
        points = [name for name in named if name not in gaussian | frozen]
        self.point_names = [*(name + MEAN_SUFFIX for name in names), *points]
        self.points = Flat([*means, *(named[name] for name in points)], like)
        self.log_var_names = [name + LOG_VAR_SUFFIX for name in names]
        self.log_vars = Flat([named[name] for name in self.log_var_names], like)
        self.mean = self.points.value[: len(self.log_vars.value)]
        if isinstance(prior, float | int):
            self.prior_shift = torch.zeros_like(self.mean)
            self.prior_precision = torch.full_like(self.mean, prior**-2)
        elif isinstance(prior, Quadratic):
            raise TypeError("a quadratic is a prior for inference=laplace alone")
        else:
            factor = Factor.of(prior) if isinstance(prior, Posterior) else prior
            self.prior_shift = self.log_vars.pack([factor.shift[name] for name in names])
            self.prior_precision = self.log_vars.pack([factor.precision[name] for name in names])
        self.has_density = not isinstance(prior, Factor)

    def packed(self, tensors: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        """Return tensors whose keys are a prefix and a name as a vector (d,) like `points`."""
        return self.points.pack([tensors[prefix + name] for name in self.point_names])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector like `points` by name, in memory of their own."""
        parts = zip(self.point_names, self.points.views(vector), strict=True)
        return {name: part.contiguous() for name, part in parts}

    @contextmanager
    def moved(self, offset: Tensor) -> Iterator[None]:
        """Let the model's means be mean + offset within the block."""
        mean = self.mean.clone()
        self.mean.add_(offset)
        try:
            yield
        finally:
            self.mean.copy_(mean)

    def kl(self) -> float:
        """KL(q ‖ prior) of the Gaussian tensors, in nats.

        A factor has no normalisation, and adds none: E_q[log q − e₀ θ + ½ s₀ θ²].
        """
        mean, log_var = self.mean.double(), self.log_vars.value.double()
        shift, precision = self.prior_shift.double(), self.prior_precision.double()
        if self.has_density:
            ratio = log_var.exp() * precision
            squares = (mean - shift / precision).square() * precision
            return float(0.5 * (ratio - 1 - ratio.log() + squares).sum(-1))
        energy = 0.5 * precision * (log_var.exp() + mean.square()) - shift * mean
        return float((energy - 0.5 * (log_var + 1 + math.log(2 * math.pi))).sum(-1))


class Momentum:
    """SGD's velocity, u ← β u + gradient, for mean NLL + ½ decay ‖·‖² + kl_scale · KL(q ‖ prior).

    The KL is the means' alone, s₀ m − e₀ in the gradient. Every tensor has `weight_decay`, but
    under a factor only the points do, as a factor says all there is to say before the data. A
    gradient of the mean NLL above `max_grad_norm` is shortened to it before all that is added. The
    `proximity` μ adds μ (θ − θ₀), θ₀ being the tensors' values now.

    SGD on a quadratic of curvature a alone is stable while lr a < 2 (1 + β). The rate is (1 + β)/a
    for a weight whose penalties' curvature would take more than half of that. So a narrow prior
    holds a weight, whatever `lr` is.

    Attributes
    ----------
    velocity
        u.
    most
        For each weight how many times `lr` its rate may be, (1 + β)/(lr a); infinite where a ≤ 0.
    """

    def __init__(self, q: Vectors, training: Training, kl_scale: float) -> None:
        self.points, self.momentum = q.points, training.momentum
        self.max_norm = training.max_grad_norm
        self.decay = torch.full_like(q.points.value, training.weight_decay)
        means = slice(len(q.mean))
        if not q.has_density:
            self.decay[means] = 0.0
        self.decay[means] += kl_scale * q.prior_precision
        self.pull = torch.zeros_like(q.points.value)
        self.pull[means] = kl_scale * q.prior_shift
        if training.proximity:
            self.decay += training.proximity
            self.pull.add_(q.points.value, alpha=training.proximity)
        self.velocity = torch.zeros_like(q.points.value)
        self.most = (1 + training.momentum) / (training.lr * self.decay.clamp_min(0))
        self.gain = self.most.clamp(max=1) if bool((self.most < 1).any()) else None

    def update(self) -> Tensor:
        """Take in the gradient of the mean NLL, which is changed; return what `lr` multiplies."""
        if self.max_norm is not None:
            norm = self.points.grad.norm()
            self.points.grad.mul_(self.max_norm / norm.clamp_min(self.max_norm))
        self.points.grad.addcmul_(self.points.value, self.decay).sub_(self.pull)
        self.velocity.mul_(self.momentum).add_(self.points.grad)
        return self.velocity if self.gain is None else self.velocity * self.gain


class Batches:
    """The (images, labels) of every step, in an order, with crops and with noise from one seed.

    While they are gone through, layers that draw from PyTorch's default generator, such as dropout,
    draw from that seed too.

    Attributes
    ----------
    noise
        The generator of the draws.
    mean_nll
        Mean of the losses counted in the last epoch, in nats.
    """

    def __init__(
        self, x: Tensor, y: Tensor, training: Training, seed: int, augment: Augment
    ) -> None:
        self.x, self.y, self.training, self.seed = x, y, training, seed
        self.augment = augment
        self.order = Generator().manual_seed(seed)
        self.noise = Generator(x.device).manual_seed(derive_seed(seed, "noise"))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        take, size = batch_source(self.x, self.augment), self.training.batch_size
        with seeded(derive_seed(self.seed, "layers"), self.x.device):
            for epoch in self.epochs():
                self.total, self.counted = torch.zeros((), device=self.x.device), 0
                indices, crops = (part.to(self.x.device).split(size) for part in epoch)
                for here, cropped in zip(indices, crops, strict=True):
                    yield scale_pixels(take(here, cropped)), self.y[here]

    def epochs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each epoch its examples in their order, and how each is cropped, on the CPU."""
        for _ in range(self.training.epochs):
            indices = torch.randperm(len(self.x), generator=self.order)
            crops = [
                draw_crops(len(batch), self.augment, self.order)
                for batch in indices.split(self.training.batch_size)
            ]
            yield indices, torch.cat(crops)

    def count(self, loss: Tensor, labels: Tensor) -> None:
        """Add the mean loss of a batch to its epoch's."""
        self.total += loss.detach() * len(labels)
        self.counted += len(labels)

    @property
    def mean_nll(self) -> float:
        """Mean of the losses counted in the last epoch."""
        return float(self.total / self.counted)


def effective_size(training: Training, num_examples: int) -> float:
    """Return ess = n_k / kl_weight, by which a natural gradient multiplies the mean NLL.

    Raises
    ------
    SettingError
        If kl_weight is 0.
    """
    if training.kl_weight <= 0:
        allowed = "above 0 for this local inference, as without a KL no variance is optimal"
        raise SettingError("kl_weight", training.kl_weight, allowed)
    return num_examples / training.kl_weight


def scale_precision(log_var: Tensor, change: Tensor) -> None:
    """Multiply precisions by 1 + δ + ½ δ² in place, δ = `change` (overwritten) held to [−1, 1]."""
    change.clamp_(-1, 1)
    log_var.sub_(change.addcmul_(change, change, value=0.5).log1p_())


StepLoss = Callable[[Tensor, Tensor], AbstractContextManager[Tensor]]
"""From a batch (x, y) a block with its mean loss, within which the gradient is taken."""


class Steps:
    """The steps of a round: going through it yields each batch (x, y) once its gradient is there.

    The loop over it moves the parameters by their gradients. `local.correct` changes those of the
    first vector.

    Parameters
    ----------
    local : Local
        The client's round.
    *vectors : Flat
        Parameters whose gradients are 0 before each step.
    loss : callable, optional
        Loss; the default is the mean negative log-likelihood by the network as it is.
    most : int, optional
        Number of steps; the default is those of all epochs.

    Attributes
    ----------
    batches : Batches
        The round's batches, with the generator of its noise.
    """

    def __init__(
        self, local: Local, *vectors: Flat, loss: StepLoss | None = None, most: int | None = None
    ) -> None:
        self.local, self.vectors, self.most = local, vectors, most
        self.loss = self._plain if loss is None else loss
        self.batches = Batches(local.x, local.y, local.training, local.seed, local.augment)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.local.model.train()
        for flat in self.vectors:
            flat.attach()
        for x, y in islice(self.batches, self.most):
            for flat in self.vectors:
                flat.grad.zero_()
            with self.loss(x, y) as loss:
                loss.backward()
            if self.local.correct is not None:
                self.local.correct(self.vectors[0].grad)
            self.batches.count(loss, y)
            yield x, y
        self.local.model.zero_grad(set_to_none=True)

    @property
    def metrics(self) -> dict[str, float]:
        """Return the mean NLL of the last epoch, in nats."""
        return {"train_nll": self.batches.mean_nll}

    def _plain(self, x: Tensor, y: Tensor) -> AbstractContextManager[Tensor]:
        return nullcontext(self.local.nll(self.local.model(x), y))


def inferred(
    local: Local, kind: Callable[[Vectors, Training, float], Update], scale: float
) -> dict[str, float]:
    """Take the steps of a round by an update, one draw of the weights each; return its metrics.

    `scale` is what the update makes of n_k and kl_weight: for most kl_weight / n_k.
    """
    q = Vectors(local.model, local.prior)
    update = kind(q, local.training, scale)

    @contextmanager
    def drawn(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        update.begin()
        with drawing(local.model, steps.batches.noise):
            yield local.nll(local.model(x), y)

    steps = Steps(local, q.points, loss=drawn)
    for number, _ in enumerate(steps, 1):
        update.end(update.rate(number))
    return {**steps.metrics, "kl": update.finish()}


class Update(ABC):
    """A step on the NELBO: points by SGD with momentum, log-variances as a subclass says.

    Parameters
    ----------
    q
        The posterior and its prior.
    training
        Its `kl_weight` is left aside.
    kl_scale
        kl_weight / n_k.
    """

    def __init__(self, q: Vectors, training: Training, kl_scale: float) -> None:
        self.q, self.training = q, training
        self.sgd = Momentum(q, training, kl_scale)
        self.half_precision = 0.5 * kl_scale * q.prior_precision
        self.of_entropy = -0.5 * kl_scale

    def begin(self) -> None:
        """Let log-variances have the gradient of the entropy; the mean NLL's is to be added."""
        self.q.log_vars.grad[...] = self.of_entropy

    def end(self, rate: float) -> None:
        """Take the step, the log-variances' at a rate."""
        self.q.points.value.sub_(self.sgd.update(), alpha=self.training.lr)
        if self.q.log_vars.value.numel() and self.training.log_var_lr > 0:
            var = variance_power(self.q.log_vars.value, 1)
            self.move(self.q.log_vars.grad.addcmul_(var, self.half_precision), rate)

    def finish(self) -> float:
        """Return KL(q ‖ prior) after the last step, in nats."""
        return self.q.kl()

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the rate of the log-variances in a step, counted from 1."""

    @abstractmethod
    def move(self, grad: Tensor, rate: float) -> None:
        """Let the log-variances, whose gradient this is, take their step."""

"""Mean-field variational inference by stochastic gradients.

The client minimises the negative evidence lower bound per example,

    NELBO(q) = E_q[mean NLL] + kl_weight · KL(q ‖ prior) / n_k,

over the means and log-variances of its Gaussian tensors, one draw of the weights a step;
deterministic tensors train along. Means take SGD with momentum. The gradient of a log-variance
is of order 1/n_k, so SGD at the means' rate would leave the log-variances where they start; they
take Adam, whose step does not depend on the gradient's scale. The KL is not built as a graph:

    ∂KL/∂m = (m − m₀)/v₀,      ∂KL/∂(log v) = ½ (v/v₀ − 1).

References: Blundell et al. 2015 (Bayes by backprop); Kingma, Salimans and Welling 2015 (local
reparameterisation); BA-BFL (Jamoussi et al.), eq. 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.data import batch_source, inputs
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Posterior, variance_power
from fedbary.inference import Prior, Training
from fedbary.seeds import derive_seed

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-16
"""Adam's decay rates; its epsilon is tiny because gradients of order 1e-7 are ordinary here."""


class _Flat:
    """Parameters and gradients as one vector each, of which the module's tensors become views.

    The vector holds each parameter in its own memory order, so channels-last weights stay so.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], like: Tensor) -> None:
        self.like = like
        self.layout = [(parameter.shape, parameter.stride()) for parameter in parameters]
        self.value = self.pack(parameters)
        self.grad = torch.zeros_like(self.value)
        views = zip(self._views(self.value), self._views(self.grad), strict=True)
        for parameter, (value, grad) in zip(parameters, views, strict=True):
            parameter.data = value
            parameter.grad = grad

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Copy tensors of the parameters' shapes into a new vector of this layout."""
        vector = self.like.new_empty(sum(shape.numel() for shape, _ in self.layout))
        for view, tensor in zip(self._views(vector), tensors, strict=True):
            view.copy_(tensor.detach())
        return vector

    def _views(self, vector: Tensor) -> list[Tensor]:
        views, start = [], 0
        for shape, stride in self.layout:
            views.append(vector.as_strided(shape, stride, start))
            start += shape.numel()
        return views


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    prior: Prior,
    training: Training,
    seed: int,
    augment: bool = False,
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    Parameters
    ----------
    model
        Called as `model(images, generator)`; `<name>_mean` and `<name>_log_var` make a Gaussian.
    x, y
        The client's images (n_k, C, H, W), uint8 or float, and labels (n_k,), on its device.
    prior
        The prior of the Gaussian tensors: a `Posterior` with their names, or the std of N(0, std²).
    training
        Epochs, rates, the weight of the KL.
    seed
        Source of the order of the examples, of the augmentation and of the draws.
    augment
        Whether to crop and flip the batches (see `fedbary.data.batch_source`).
    nll
        Mean negative log-likelihood of (outputs, targets).

    Returns
    -------
    dict
        `train_nll`, the mean over the last epoch in nats, and `kl`, KL(q ‖ prior) after it in nats.
    """
    named = dict(model.named_parameters())
    names = [n.removesuffix(LOG_VAR_SUFFIX) for n in named if n.endswith(LOG_VAR_SUFFIX)]
    gaussian = {name + suffix for name in names for suffix in (MEAN_SUFFIX, LOG_VAR_SUFFIX)}
    means = [named[name + MEAN_SUFFIX] for name in names]
    num_gaussian = sum(parameter.numel() for parameter in means)
    like = next(iter(named.values())).detach()
    points = _Flat([*means, *(p for name, p in named.items() if name not in gaussian)], like)
    log_vars = _Flat([named[name + LOG_VAR_SUFFIX] for name in names], like)
    mean = points.value[:num_gaussian]
    if isinstance(prior, Posterior):
        prior_mean = log_vars.pack([prior.mean[name] for name in names])
        prior_precision = log_vars.pack([prior.log_var[name] for name in names]).neg_().exp_()
    else:
        prior_mean = torch.zeros_like(mean)
        prior_precision = torch.full_like(mean, prior**-2)

    order = Generator().manual_seed(seed)
    noise = Generator(x.device).manual_seed(derive_seed(seed, "noise"))
    take = batch_source(x, augment)
    kl_scale = training.kl_weight / len(x)
    decay = torch.full_like(points.value, training.weight_decay)
    decay[:num_gaussian] += kl_scale * prior_precision
    pull = torch.zeros_like(points.value)
    pull[:num_gaussian] = kl_scale * prior_precision * prior_mean
    half_precision = 0.5 * kl_scale * prior_precision
    velocity = torch.zeros_like(points.value)
    first, second = torch.zeros_like(log_vars.value), torch.zeros_like(log_vars.value)
    step = 0
    model.train()
    for _ in range(training.epochs):
        total = torch.zeros((), device=x.device)
        for indices in torch.randperm(len(x), generator=order).split(training.batch_size):
            step += 1
            points.grad.zero_()
            log_vars.grad.fill_(-0.5 * kl_scale)
            loss = nll(model(inputs(take(indices, order)), noise), y[indices.to(y.device)])
            loss.backward()
            total += loss.detach() * len(indices)
            points.grad.addcmul_(points.value, decay).sub_(pull)
            velocity.mul_(training.momentum).add_(points.grad)
            points.value.sub_(velocity, alpha=training.lr)
            if names and training.log_var_lr > 0:
                var = variance_power(log_vars.value, 1)
                grad = log_vars.grad.addcmul_(var, half_precision)
                first.lerp_(grad, 1 - BETA1)
                second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
                scale = training.log_var_lr * math.sqrt(1 - BETA2**step) / (1 - BETA1**step)
                log_vars.value.addcdiv_(first, second.sqrt().add_(EPSILON), value=-scale)
    model.zero_grad(set_to_none=True)
    ratio = log_vars.value.exp() * prior_precision
    squares = (mean - prior_mean).square() * prior_precision
    kl = 0.5 * (ratio - 1 - ratio.log() + squares).double().sum()
    return {"train_nll": float(total / len(x)), "kl": float(kl)}

"""Point weights, and the curvature of the loss where they end: Laplace's variances, no noise.

Means and deterministic tensors take the steps of point weights, SGD with momentum on

    mean NLL(θ) + ½ weight_decay ‖θ‖² + ½ s₀ ‖m − m₀‖² / ess,      ess = n_k / kl_weight,

with N(m₀, 1/s₀) the prior of the means. After the last step the variances are

    v = 1 / (ess (h + weight_decay) + s₀),      h = diag (1/n_k) Σ_i J_iᵀ H_i J_i.

J_i are the slopes of an example's outputs by the means. H_i is the Hessian of its NLL by its
outputs; negative eigenvalues count as 0. So h is the diagonal of the generalised Gauss-Newton
matrix. For a softmax that is the Fisher information. One more pass over the examples estimates h,
in evaluation mode and without augmentation. With H_i = R_i R_iᵀ and random signs ε_i it is

    ĥ = (1/n_k) Σ_batches (Σ_i J_iᵀ R_i ε_i)².

E ĥ = h, because signs of two examples are uncorrelated. Gradients at labels that the network draws
have the same mean, but on small clients five times the error: where the network is sure, few labels
make all of it.

**Sizes count once with kl_weight=share.** Then ess is the number N of all examples. RKLB's weights
n_k/N make the precision Σ n_k (h_k + weight_decay) + s₀. If losses are quadratic, with a diagonal
curvature, and clients reach their minima, this is the posterior of all data after one round. With
kl_weight=1 conflation makes the same product, but counts the prior once a client; PVI counts it
once. Under RKLB any number for kl_weight counts sizes twice.

The biases of Gaussian layers are Gaussian, too (`prepare`): as points, rules would average them by
size beside weights by precision. The other layers' tensors are points. The pass costs about one
epoch.

Its relatives differ in what weighs the mean, and in what the next round begins with:

- Fisher-weighted averaging (Matena and Raffel 2022) merges finished networks once, by the Fisher of
  each. Sizes and a prior are not in its weights.
- FedFisher (Jhunjhunwala, Wang and Joshi 2024) minimises Σ n_k (θ − θ_k)ᵀ F_k (θ − θ_k) at the
  server in one round. With a diagonal F_k the minimum is the mean here.
- FedCurv (Shoham et al. 2019) averages by size. The Fishers of other clients hold local steps.
- `method=FOLA` (Liu et al. 2021) has the weighted mean and such a penalty. Its Fisher is the mean
  over the rounds.
- `method=FedLPA` (Liu et al. 2024) has Kronecker factors in place of a diagonal, in one round.
- `method=FedPA` (Al-Shedivat et al. 2021) takes a covariance from SGD's iterates, without a pass.
- `method=SCAFFOLD` takes the mean here of steps that it corrects, with this inference.
- `method=Laplace` has the product of RKLB with `share`, of empirical Fishers: squared gradients at
  the labels that occurred.

References: Martens 2020 (New insights and perspectives on the natural gradient method); Ritter,
Botev and Barber 2018 (A scalable Laplace approximation for neural networks); Matena and Raffel 2022
(Merging models with Fisher-weighted averaging); Jhunjhunwala, Wang and Joshi 2024 (FedFisher:
leveraging Fisher information for one-shot federated learning); Shoham et al. 2019 (Overcoming
forgetting in federated learning on non-IID data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from fedbary.data.batches import scale_pixels
from fedbary.inference import Local, PriorParameters
from fedbary.inference._head import output_hessians
from fedbary.inference._steps import Momentum, Steps, Vectors, effective_size
from fedbary.parts.parameters import Positive
from fedbary.seeds import derive_seed
from fedbary.variational.layers import gaussian_layers


@dataclass(frozen=True)
class Parameters(PriorParameters):
    """The steps, the prior and its weight.

    Parameters
    ----------
    kl_weight
        Weight of the prior beside n_k times the mean cross-entropy, and of all precisions. share:
        n_k/n, the client's share of all examples.
    """

    kl_weight: Literal["share"] | Positive = "share"


def prepare(model: nn.Module) -> None:
    """Let the biases of variational layers be Gaussian."""
    for layer in gaussian_layers(model).values():
        layer.gaussian_bias()


def fit(local: Local) -> dict[str, float]:
    """Train the weights, and let the variances be those of the curvature, in place.

    The model has Gaussian layers; the variances that it comes with do not matter. A weight whose
    prior is a factor of negative precision keeps its variance where none would be positive.

    Returns
    -------
    dict
        `train_nll`, the mean over the last epoch in nats, and `kl`, KL(q ‖ prior) after it in nats.

    Raises
    ------
    SettingError
        If `training.kl_weight` is 0: ess would be infinite and every variance 0.
    """
    ess = effective_size(local.training, len(local.x))
    q = Vectors(local.model, local.prior)
    sgd = Momentum(q, local.training, 1 / ess)
    steps = Steps(local, q.points)
    for _ in steps:
        q.points.value.sub_(sgd.update(), alpha=local.training.lr)
    precision = ess * (curvature(local, q) + sgd.decay[: len(q.mean)])
    log_var = q.log_vars.value
    torch.where(precision > 0, -precision.log(), log_var, out=log_var)
    return {**steps.metrics, "kl": q.kl()}


def curvature(local: Local, q: Vectors) -> Tensor:
    """Return an unbiased estimate of h for every mean of `q`, in the order of `q.mean`.

    It is in nats an example and squared unit of the weight. The model, which `q` holds, stays in
    evaluation mode.
    """
    means = q.points.parameters[: len(q.log_vars.parameters)]
    total, gradient = torch.zeros_like(q.mean), q.points.grad[: len(q.mean)]
    if not means:
        return total
    generator = Generator().manual_seed(derive_seed(local.seed, "curvature"))
    local.model.eval()
    with torch.no_grad():
        _, count = local.model(scale_pixels(local.x[:1])).shape
    order = torch.randperm(len(local.x), generator=generator)
    signs = torch.randint(2, (len(local.x), count), generator=generator).mul_(2).sub_(1)
    batches = (each.to(local.x.device).split(local.training.batch_size) for each in (order, signs))
    q.points.attach()
    for here, drawn in zip(*batches, strict=True):
        gradient.zero_()
        outputs = local.model(scale_pixels(local.x[here]))
        outputs.backward(_roots(local, outputs, here, drawn), inputs=means)
        total.addcmul_(gradient, gradient)
    local.model.zero_grad(set_to_none=True)
    return total.div_(len(local.x))


def _roots(local: Local, outputs: Tensor, here: Tensor, signs: Tensor) -> Tensor:
    """Return R_i ε_i of the examples of a batch, (batch, outputs).

    A softmax has R = diag(√p) − p √pᵀ. Other losses have the eigenvectors of H_i, times the roots
    of its eigenvalues.
    """
    if local.nll is cross_entropy:
        p = outputs.detach().double().softmax(1)
        scaled = p.sqrt() * signs
        return scaled.sub_(p * scaled.sum(1, keepdim=True)).to(outputs)
    hessians = output_hessians(local.nll, outputs.double(), local.y[here])
    values, vectors = torch.linalg.eigh(hessians)
    scaled = values.clamp_min(0).sqrt().mul_(signs)
    return (vectors @ scaled[..., None])[..., 0].to(outputs)

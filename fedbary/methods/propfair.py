"""PropFair: clients gain as much in proportion, by a loss that grows steep where it is large.

ℓ is the mean loss of a batch. The baseline M is the largest loss that is expected. A client
minimises

    −M log(1 − ℓ/M)   where M − ℓ ≥ ε,      ℓ   elsewhere,

from the global model, and the server averages by size. The sum Σ_k w_k log(M − ℓ_k) is the
logarithm of a Nash product of the utilities M − ℓ_k. Its optimum is proportionally fair. The
gradient is that of ℓ times M/(M − ℓ), from 1 at ℓ = 0 to M/ε. So clients with large losses have
more influence. Batches with a loss above M − ε, such as an untrained network's, count as under
FedAvg. M → ∞ is FedAvg.

It assumes losses between 0 and M, such as a classifier's. A regression's loss may be negative;
clients with little noise then have less influence. The prediction is a point.

Messages: the model once each way, as under FedAvg. Clients and server keep nothing.

Cost: local steps cost what FedAvg's cost.

Use it where the worst clients matter.

Reference: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, and its code,
huawei-noah/Federated-Learning, FairFL. The code divides both losses by M, so its rates are M times
ours. A variant takes ℓ/ε beyond M − ε. The code's default is M = 2, by which a loss of 1.8 has ten
times its gradient. On skewed digits at lr 0.03 it stayed at chance, and M = 5 trained.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.methods._method import Fitted, Local, Method, Tensors
from fedbary.parts.parameters import Positive


@dataclass(frozen=True)
class PropFair(Method):
    """Proportionally fair federated averaging (Zhang et al. 2023), for point weights.

    Parameters
    ----------
    baseline : float
        M, above `epsilon`, the worst loss that is reckoned with, in nats; the paper tries 2 to 5.
    epsilon : float
        ε, the least distance of a batch's loss to M.
    """

    baseline: float = 5.0
    epsilon: Positive = 0.2

    deterministic = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon < self.baseline < float("inf"):
            raise SettingError("baseline", self.baseline, f"a number above epsilon, {self.epsilon}")

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train on the fair loss; the metrics are of the loss itself."""
        steps = math.ceil(len(local.y) / local.training.batch_size)
        fair = FairLoss(local.nll, self, deque(maxlen=steps))
        fitted = super().fit(replace(local, nll=fair), received, kept)
        return replace(fitted, metrics={**fitted.metrics, "train_nll": fair.mean_nll})


@dataclass(frozen=True)
class FairLoss:
    """A batch's loss made fair, and the losses themselves of the last epoch.

    Parameters
    ----------
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    method : PropFair
        M and ε.
    seen : deque
        The last losses, with their numbers of examples.
    """

    nll: Callable[[Tensor, Tensor], Tensor]
    method: PropFair
    seen: deque[tuple[Tensor, int]]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return −M log(1 − ℓ/M), or ℓ beyond M − ε."""
        loss = self.nll(outputs, targets)
        self.seen.append((loss.detach(), len(targets)))
        baseline = self.method.baseline
        within = loss.detach() <= baseline - self.method.epsilon
        held = torch.where(within, loss, 0.0)
        return torch.where(within, -baseline * torch.log1p(-held / baseline), loss)

    @property
    def mean_nll(self) -> float:
        """The mean of the losses seen, by examples."""
        total = sum(float(loss) * count for loss, count in self.seen)
        return total / sum(count for _, count in self.seen)

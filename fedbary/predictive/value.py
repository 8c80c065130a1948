"""What predicts: a network with what is drawn around it, or networks that predict together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedbary.gaussian import Posterior
from fedbary.predictive.background import Background
from fedbary.predictive.combine import Gate, Pool


@dataclass(frozen=True, eq=False)
class Predictive:
    """What predicts: everybody's, or a client's own.

    Parameters
    ----------
    model : mapping of str to Tensor
        A network's state dict.
    posterior : Posterior, optional
        What networks are drawn from; by default the model's own Gaussian tensors.
    members : mapping of str to Tensor
        Networks that predict together in place of draws: (K, *shape) by name, or none.
    pool : Pool or Gate, optional
        How the members' predictions become one; None: as their mixture.
    background : Background, optional
        What tells from a network's logits how far an input lies from every class.
    """

    model: Mapping[str, Tensor]
    posterior: Posterior = None  # type: ignore[assignment]
    members: Mapping[str, Tensor] = field(default_factory=dict)
    pool: Pool | Gate | None = None
    background: Background | None = None

    def __post_init__(self) -> None:
        if self.posterior is None:
            object.__setattr__(self, "posterior", Posterior.from_state_dict(self.model))

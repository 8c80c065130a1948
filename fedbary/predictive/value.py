"""The networks that predict: draws from a posterior, or several members together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from torch import Tensor

from fedbary.gaussian import Posterior
from fedbary.predictive.combine import Gate, Pool, pool_from
from fedbary.predictive.mahalanobis import Background


@dataclass(frozen=True, eq=False)
class Predictive:
    """Networks that predict: the global ones, or a client's own.

    Parameters
    ----------
    model : mapping of str to Tensor
        A network's state dict.
    posterior : Posterior, optional
        Posterior to draw networks from; by default the model's own Gaussian tensors.
    members : mapping of str to Tensor
        Networks that predict together in place of draws: (K, *shape) by name, or none.
    pool : Pool or Gate, optional
        Combination of the members' predictions; None: their mixture.
    background : Background, optional
        Computes an input's distance from every class, from a network's logits.
    noise_var : float
        Variance of the noise that is added to predictions of numbers, standardised.
    """

    model: Mapping[str, Tensor]
    posterior: Posterior = None  # type: ignore[assignment]
    members: Mapping[str, Tensor] = field(default_factory=dict)
    pool: Pool | Gate | None = None
    background: Background | None = None
    noise_var: float = 0.0

    def __post_init__(self) -> None:
        if self.posterior is None:
            object.__setattr__(self, "posterior", Posterior.from_state_dict(self.model))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by names that `from_tensors` reads."""
        groups = {
            "model": self.model,
            "posterior": self.posterior.state_dict(),
            "members": self.members,
        }
        return {f"{k}/{name}": t for k, group in groups.items() for name, t in group.items()}

    @property
    def joined_by(self) -> str:
        """Pooling of the members, as `from_tensors` reads it; "" for their mixture."""
        return json.dumps(asdict(self.pool)) if self.pool else ""

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], joined_by: str, noise_var: float
    ) -> Predictive:
        """Return the value with these `tensors` and `joined_by`, each group in order of names.

        Networks are drawn tensor by tensor: the order decides a seed's draws.
        """
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "posterior": {}, "members": {}}
        for key, tensor in sorted(tensors.items()):
            kind, _, name = key.partition("/")
            groups[kind][name] = tensor
        posterior = Posterior.from_state_dict(groups["posterior"])
        pool = pool_from(json.loads(joined_by)) if joined_by else None
        return cls(groups["model"], posterior, groups["members"], pool, noise_var=noise_var)

"""Networks drawn from posteriors, stacked: for any module, by the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from fedbary.gaussian import LOG_VAR_SUFFIX, Posterior, variance_power
from fedbary.variational.layers import normal_like


@torch.no_grad()
def drawn(posterior: Posterior, samples: int, generator: Generator | None) -> dict[str, Tensor]:
    """Draw networks from a posterior, (samples, *shape) by name; point tensors are repeated.

    They lie on the generator's device, or without one on the posterior's.
    """
    networks, device = {}, generator.device if generator else None
    for name, mean in posterior.mean.items():
        stacked = mean.to(device=device).expand(samples, *mean.shape)
        if name in posterior.log_var:
            std = variance_power(posterior.log_var[name].to(device=device), 0.5)
            noise = normal_like(torch.empty_like(stacked), generator)
            stacked = torch.addcmul(stacked, std, noise)
        networks[name] = stacked
    return networks


@torch.no_grad()
def members_drawn(
    members: Mapping[str, Tensor], samples: int, generator: Generator | None
) -> dict[str, Tensor]:
    """Draw about `samples` networks from the members' posteriors, equally many from each.

    Parameters
    ----------
    members
        State dicts, stacked: (K, *shape) by name. Without Gaussian tensors they are the networks.
    samples
        Wanted number of networks; each member gives at least one.
    generator
        Source of the draws.

    Returns
    -------
    dict
        Networks, (K · max(1, samples // K), *shape) by name, member by member.
    """
    if not any(name.endswith(LOG_VAR_SUFFIX) for name in members):
        return dict(members)
    count = len(next(iter(members.values())))
    each = [
        drawn(Posterior.from_state_dict({name: t[k] for name, t in members.items()}),
              max(1, samples // count), generator)
        for k in range(count)
    ]  # fmt: skip
    return {name: torch.cat([networks[name] for networks in each]) for name in each[0]}

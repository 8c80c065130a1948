"""Momentum of the server: each round goes on in the direction of the rounds before."""

from __future__ import annotations

from logging import WARNING

from flwr.app import ArrayRecord
from flwr.supercore import log
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.optimisers import is_buffer

from .arrays import array_from_tensor, tensor_from_array
from .conventions import Convention
from .limits import check_arrays


class ServerMomentum:
    """Heavy-ball momentum on means and deterministic tensors, over the rounds.

    With m_t the aggregate of round t that began from θ_t:
    u_t = β u_{t−1} + (m_t − θ_t),  θ_{t+1} = θ_t + u_t.
    The scales of Gaussians and buffers (what is not floating, batch norm's moments) are the rule's
    own, without momentum, so that variances stay positive. β = 0 is the rule alone.

    Parameters
    ----------
    beta
        β, from 0 to below 1: clients' progress is multiplied by up to 1/(1 − β).

    References
    ----------
    Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification, 2019 (FedAvgM, here with server rate 1).
    """

    def __init__(self, beta: float) -> None:
        if not 0 <= beta < 1:
            raise SettingError("server_momentum", beta, "from 0 to below 1")
        self.beta = beta
        self.velocity: dict[str, Tensor] = {}

    def step(
        self, before: ArrayRecord, aggregate: ArrayRecord, convention: Convention
    ) -> ArrayRecord:
        """Return the global arrays after a round.

        A step that leaves what is admitted, see `check_arrays`, is not taken: the aggregate
        stands, and momentum starts anew.

        Parameters
        ----------
        before, aggregate
            The arrays that the clients were sent, and the aggregate of what they sent back.
        convention
            Which arrays are scales of Gaussians.
        """
        if self.beta == 0:
            return aggregate
        scales = set(convention.pairs(aggregate.keys()).values())
        after, velocities = ArrayRecord(), {}
        for key, array in aggregate.items():
            new = tensor_from_array(array)
            if key in scales or is_buffer(key, new):
                after[key] = array
                continue
            old = tensor_from_array(before[key])
            velocity = new - old
            if key in self.velocity:
                velocity.add_(self.velocity[key], alpha=self.beta)
            velocities[key] = velocity
            after[key] = array_from_tensor(old + velocity)
        try:
            check_arrays(after, aggregate, convention)
        except ValueError as error:
            log(WARNING, "The server's momentum starts anew: %s", error)
            after, velocities = aggregate, {}
        self.velocity = velocities
        return after

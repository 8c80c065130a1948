"""FedAvg-Gaussian: the spread of the clients' point weights is the posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedbary.aggregation import RULES
from fedbary.aggregation.fedag import ESTIMATORS, fit_gaussian, stacked
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior

from .arrays import array_from_tensor, tensor_from_array
from .privacy import driving_wrapper
from .records import aggregate_records
from .strategy import PosteriorStrategy, arrays_of

_NETWORK = "networks."


class FedAG(PosteriorStrategy):
    """Fit a Gaussian per weight over the clients' networks; the next round starts at its mean.

    Clients send point weights and count alike, whatever their number of examples, as in the
    paper. Arrays that are not floating are the clients' mean, of integers and bools rounded.

    Parameters
    ----------
    *args, **kwargs
        Those of `PosteriorStrategy`, without momentum of the server and a bound on precisions.
    estimator : str
        What a weight's variance is, see `fedbary.aggregation.fedag.fit_gaussian`.

    Raises
    ------
    SettingError
        If an argument is out of its range.

    Attributes
    ----------
    networks : Mapping[str, Tensor]
        The clients' networks of the last round that was not skipped, stacked: (K, *shape) by
        name. Before the first there is none.
    network_nodes : list of int
        Whose they are, in this order; of a run that goes on, empty until its first round.

    References
    ----------
    Thorgeirsson and Gauterin, Probabilistic Predictions with Federated Learning, Entropy 2021,
    Algorithm 1.
    """

    rule = replace(RULES["FedAvg"], name="FedAG")

    def __init__(self, *args: Any, estimator: str = "sample", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if estimator not in ESTIMATORS:
            raise SettingError("estimator", estimator, ", ".join(ESTIMATORS))
        if self.server_momentum.beta != 0:
            raise SettingError("server_momentum", self.server_momentum.beta, "0 for FedAG")
        if self.max_precision_ratio is not None:
            raise SettingError("max_precision_ratio", self.max_precision_ratio, "None for FedAG")
        self.estimator = estimator
        self.networks: Mapping[str, Tensor] = {}
        self.network_nodes: list[int] = []

    @property
    def posterior(self) -> Posterior:
        """The global posterior: a Gaussian for every floating tensor, over `networks`."""
        return fit_gaussian(self.networks, estimator=self.estimator)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what, with the global arrays, is needed to go on after the last whole round."""
        networks = {_NETWORK + name: tensor for name, tensor in self.networks.items()}
        return {**super().state_dict(), **networks}

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Go on from a state of `state_dict` that was taken after so many rounds."""
        super().load_state_dict(state, completed_rounds)
        self.networks = {
            name.removeprefix(_NETWORK): tensor.clone()
            for name, tensor in state.items()
            if name.startswith(_NETWORK)
        }

    def _check_global(self, arrays: ArrayRecord) -> None:
        """Refuse Gaussians, and wrappers for privacy: their noise would not be in the variances."""
        if gaussian := self.convention.pairs(arrays.keys()):
            raise SettingError("rule", "FedAG", f"another for Gaussian arrays ({min(gaussian)})")
        if wrapper := driving_wrapper():
            name = type(wrapper).__name__
            raise SettingError(
                "rule", "FedAG", f"within {name} FedAvg: only means are made private"
            )

    def _aggregate(self, admitted: Sequence[Message], weights: Sequence[float]) -> ArrayRecord:
        networks = _networks(admitted)
        posterior = fit_gaussian(networks, estimator=self.estimator)
        means = {key: array_from_tensor(mean) for key, mean in posterior.mean.items()}
        records = [arrays_of(reply) for reply in admitted]
        others = [
            ArrayRecord({key: array for key, array in record.items() if key not in means})
            for record in records
        ]
        equal = [1.0] * len(others)
        arrays = {**means, **aggregate_records(self.rule, others, equal, self.convention)}
        return ArrayRecord({key: arrays[key] for key in records[0]})

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        self.networks = _networks(admitted)
        self.network_nodes = [reply.metadata.src_node_id for reply in admitted]
        return aggregate


def _networks(replies: Sequence[Message]) -> dict[str, Tensor]:
    """Return the floating arrays of replies, stacked."""
    clients = [
        {key: tensor_from_array(array) for key, array in arrays_of(reply).items()}
        for reply in replies
    ]
    floating = [key for key, tensor in clients[0].items() if tensor.is_floating_point()]
    return stacked([{key: client[key] for key in floating} for client in clients])

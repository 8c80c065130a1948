"""What every task's client needs of a message: the run's settings, the site, the attack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, Message
from torch import Tensor, nn

from fedbary import Posterior
from fedbary.attacks import ATTACKS, hostile_clients
from fedbary.config import Settings, resolve_run_config
from fedbary.inference import Prior, Training
from fedbary.sites import Site, site_from


@dataclass(frozen=True)
class Node:
    """The run's settings, and what this node holds."""

    settings: Settings
    site: Site

    def training(self, server_round: int) -> Training:
        """Return how a local method trains in a round."""
        settings = self.settings
        return Training(
            epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            lr=settings.lr_of(server_round),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            log_var_lr=settings.log_var_lr,
            kl_weight=settings.kl_weight,
        )

    def prior(self, received: nn.Module, server_round: int) -> Prior:
        """Return the prior of a round: N(0, prior_std²), or the global posterior it begins with."""
        if self.settings.prior == "normal" or server_round == 1:
            return self.settings.prior_std
        return Posterior.from_state_dict({k: v.clone() for k, v in received.state_dict().items()})

    def sent(self, fitted: nn.Module, message: Message) -> dict[str, Tensor]:
        """Return the state that the client sends: the fitted one, or what its attack makes of it.

        A site with data of its own never attacks, whatever the settings say.
        """
        state, settings, site = fitted.state_dict(), self.settings, self.site
        hostile = hostile_clients(settings.hostile_fraction, site.partitions, settings.seed)
        if settings.attack == "none" or site.partition not in hostile:
            return state
        received = message.content.array_records["arrays"].to_torch_state_dict()
        posteriors = [
            Posterior.from_state_dict({key: tensor.cpu() for key, tensor in tensors.items()})
            for tensors in (received, state)
        ]
        return ATTACKS[settings.attack](*posteriors).state_dict()


def node_of(context: Context) -> Node:
    """Return the node of a context, and let torch use as many threads as it may."""
    settings = _resolve(tuple(sorted(context.run_config.items())))
    site = site_from(context.node_config)
    if site.partition is not None and site.data_path:
        settings = settings.model_copy(update={"data_dir": site.data_path})
    torch.set_num_threads(site.cpus or settings.cpus_per_client)
    return Node(settings, site)


@lru_cache(maxsize=4)
def _resolve(run_config: tuple[tuple[str, str | int | float | bool], ...]) -> Settings:
    return resolve_run_config(dict(run_config))


def config_of(message: Message) -> ConfigRecord:
    """Return what the server says beside the arrays."""
    return message.content.config_records["config"]


def round_of(message: Message) -> int:
    """Return the round that a message is of."""
    return int(config_of(message)["server-round"])  # type: ignore[arg-type]

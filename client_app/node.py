"""What a client needs of a message: the run's settings, the site, the fit, the attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message
from torch import Tensor

from fedbary import Posterior
from fedbary.attacks import ATTACKS, hostile_clients
from fedbary.data.paths import user_path
from fedbary.data.sites import Site, site_from
from fedbary.inference import Prior, Training
from fedbary.methods import Fitted, Local, Method
from fedbary.predictive import Predictive
from fedbary.settings.config import Settings
from fedbary.settings.run_config import resolve_run_config
from strategies.answering import METHOD_KEY, fit, method_of, personal
from strategies.asking import EXAMPLES_KEY


@dataclass(frozen=True)
class Node:
    """The run's settings, and what this node holds."""

    settings: Settings
    site: Site

    def training(self, message: Message, examples: int) -> Training:
        """Return how a local method trains on so many examples in a message's round."""
        settings, kl_weight = self.settings, self.settings.kl_weight
        if not isinstance(kl_weight, float):
            kl_weight = examples / int(config_of(message)[EXAMPLES_KEY])  # type: ignore[arg-type]
        return Training(
            epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            lr=settings.lr_of(round_of(message)),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.grad_bound,
            log_var_lr=settings.log_var_lr,
            kl_weight=kl_weight,
        )

    def prior(self, received: Mapping[str, Tensor], counted: int) -> Prior:
        """Return the prior of a round: N(0, prior_std²), or the global posterior it begins with.

        Until a round has counted there is no such posterior, only the untrained start.
        """
        if self.settings.prior == "normal" or counted == 0:
            return self.settings.prior_std
        return Posterior.from_state_dict(received)

    @property
    def keeps_in(self) -> Path | None:
        """The folder of what this site keeps between rounds, None if it has none.

        A partition's lies in the run's, if it is told which that is.
        """
        if self.site.state_path:
            return user_path(self.site.state_path)
        if self.site.partition is None or self.settings.output == "auto":
            return None
        return Path(self.settings.output) / "clients" / str(self.site.partition)

    def fit(self, message: Message, received: Mapping[str, Tensor], local: Local) -> Fitted:
        """Do the site's work of a round, by the method of the message or the local inference.

        The network is left as the site trained it; what the site sends may be an attack's.
        """
        config = config_of(message)
        method = method_of(config) if METHOD_KEY in config else Method()
        fitted = fit(method, local, received, config, self.keeps_in)
        return replace(fitted, reply=self._attacked(fitted.reply, received))

    def personal(
        self, message: Message, received: Mapping[str, Tensor], local: Local
    ) -> Predictive | None:
        """Return the site's own model, where the message's method has one; it may be trained."""
        config = config_of(message)
        return personal(method_of(config), local, received, config, self.keeps_in)

    def _attacked(
        self, reply: Mapping[str, Tensor], received: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return what the site sends: the reply, or what its attack makes of it.

        A site with data of its own never attacks, whatever the settings say. Of an omniscient
        attack it sends what it fitted: the simulation's server replaces that.
        """
        settings, site = self.settings, self.site
        hostile = hostile_clients(settings.hostile_fraction, site.partitions, settings.seed)
        if settings.attack not in ATTACKS or site.partition not in hostile:
            return reply
        return ATTACKS[settings.attack](received, reply)


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


def received_of(message: Message) -> dict[str, Tensor]:
    """Return the arrays that the server sends."""
    return message.content.array_records["arrays"].to_torch_state_dict()


def round_of(message: Message) -> int:
    """Return the round that a message is of."""
    return int(config_of(message)["server-round"])  # type: ignore[arg-type]

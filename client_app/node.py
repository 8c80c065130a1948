"""A site under the run's settings: its training, prior, memory and attack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedbary import Posterior
from fedbary.attacks import Attack, hostile_clients
from fedbary.client_app.limits import Told, count, least_shown, left, require_size, spend
from fedbary.data.deal import Shard
from fedbary.data.forms import one_state, user_path
from fedbary.data.sites import Limits, Site, site_from
from fedbary.inference import Prior, Training, local_method
from fedbary.methods import Fitted
from fedbary.runs.functions import of_all_runs
from fedbary.runs.location import CLIENTS
from fedbary.runs.own_code import require_same_code
from fedbary.runs.released import take_released
from fedbary.settings.config import Settings, resolve
from fedbary.settings.run_config import given_in
from fedbary.strategies.client import Client, Request
from fedbary.strategies.federation import COUNTED_KEY, EXAMPLES_KEY
from fedbary.tasks import Signature, Task, task_of
from fedbary.tasks._shown import FewShown


@dataclass(frozen=True)
class Node:
    """The run's settings, and this node's data."""

    settings: Settings
    site: Site

    def training(self, request: Request, examples: int) -> Training:
        """Return the training of a local method on so many examples in a message's round."""
        # With max_weight_ratio all examples are bounded counts, and a site may hold more than all.
        by, kl_weight = self.settings.local, self.settings.local.kl_weight
        if not isinstance(kl_weight, float):
            share = examples / int(request.config[EXAMPLES_KEY])  # type: ignore[arg-type]
            kl_weight = share if share < 1 else 1.0
        return Training(
            epochs=by.local_epochs,
            batch_size=by.batch_size,
            lr=by.lr_in(request.round, self.settings.rounds),
            momentum=by.momentum,
            weight_decay=by.weight_decay,
            max_grad_norm=by.max_grad_norm,
            log_var_lr=by.log_var_lr,
            kl_weight=kl_weight,
        )

    def prior(self, request: Request) -> Prior:
        """Return the prior of a round: N(0, prior_std²), or the global posterior it begins with.

        Before the first counted round there is no such posterior, only the untrained start. An
        earlier run's posterior comes with the message.
        """
        held = self.settings.local
        if held.prior != "global" or request.config.get(COUNTED_KEY, 0) == 0:
            return held.prior_std
        return Posterior.from_state_dict(request.received)

    @property
    def keeps_in(self) -> Path | None:
        """The folder of this site's memory between rounds, None if it has none.

        A partition's folder lies in the run's, if it knows that.
        """
        if self.site.state_path:
            return user_path(self.site.state_path)
        if self.site.partition is None or self.settings.output == "auto":
            return None
        return Path(self.settings.output) / CLIENTS / str(self.site.partition)

    def remember_releases(self) -> None:
        """Let a partition know what it has released in the run that this one starts from."""
        if (folder := self.keeps_in) is not None and not self.site.state_path:
            earlier = user_path(self.settings.start_from) / CLIENTS / str(self.site.partition)
            take_released(folder, earlier)

    def attacked(self, fitted: Fitted, received: Mapping[str, Tensor]) -> Fitted:
        """Return the fit with the site's reply, or its attack's.

        A site with data of its own never attacks, whatever the settings say. With an omniscient
        attack it sends its own fit, which the simulation's server replaces.
        """
        settings, site, attack = self.settings, self.site, self.settings.hostile
        if not isinstance(attack, Attack):
            return fitted
        hostile = hostile_clients(attack.hostile_fraction, site.partitions, settings.seed)
        if site.partition not in hostile:
            return fitted
        return replace(fitted, reply=attack.sent(received, fitted.reply))


def node_of(context: Context) -> Node:
    """Return the node of a context, and set its number of torch threads."""
    site = site_from(context.node_config)
    settings = _resolve(tuple(sorted(context.run_config.items())), site.partitions)
    if site.partition is not None and site.data_path:
        settings = settings.model_copy(update={"data_dir": site.data_path})
    if weights := context.node_config.get("backbone-weights"):
        settings = settings.model_copy(update={"backbone_weights": str(weights)})
    torch.set_num_threads(site.cpus or settings.cpus_per_client)
    return Node(settings, site)


@lru_cache(maxsize=4)
def _resolve(
    run_config: tuple[tuple[str, str | int | float | bool], ...], partitions: int
) -> Settings:
    clients = {"clients": partitions} if partitions else {}
    return resolve(clients | given_in(dict(run_config)))


_FACT = "fact."


@dataclass(frozen=True, eq=False)
class Job:
    """A node at work on a message.

    Parameters
    ----------
    node, task
        The node, and the task of its run.
    signature, facts
        The server's description of the data, and its facts from asking; at first empty.
    held, shard
        The node's data in their own units, and as the model takes them once there are facts.
    raw
        The node's data before a network makes features of them.
    content
        The hash of the named data set as this process reads it; "" for data of its own.
    """

    node: Node
    task: Task
    signature: Signature
    facts: dict[str, Tensor]
    held: Shard
    shard: Shard
    raw: Shard
    content: str

    @property
    def limits(self) -> Limits | None:
        """Limits of what the site tells of its rows; None for no bound, as in a simulation."""
        site = self.node.site
        return self.task.disclosure(site) if site.partition is None else None

    @property
    def told(self) -> Told:
        """The rows that it answers from."""
        held = self.held
        rows = len(held.y) + len(held.y_held_out)
        return Told(rows, math.prod(held.x.shape[1:]), held.bear)

    @property
    def least_shown(self) -> int:
        """The fewest rows that an answer may show alone; 0 for no bound."""
        return least_shown(self.node, self.limits) if self.limits else 0

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Count a refusal of what would show few rows: it tells one bit."""
        try:
            yield
        except FewShown:
            spend(self.node, self.limits, self.told, 1)
            raise

    def require_told(self, facts: Mapping[str, Tensor]) -> None:
        """Raise a SettingError if facts, with those of all runs, would show few rows."""
        points, limits = self.task.points(facts), self.limits
        if limits is None:
            return
        kept = limits.budget and self.node.keeps_in
        with self.refusing(), of_all_runs(kept, points) if kept else nullcontext(points) as every:
            self.task.require_told(self.held, facts, every, self.least_shown, limits.min_cell)

    def counted(self, reply: Message, *, products: bool = False) -> Message:
        """Return a reply, perhaps with slopes or products, once its numbers are counted."""
        terms = self.task.terms_of(self.signature) if products else 0
        return count(self.node, self.limits, self.told, reply, terms)

    @property
    def numbers_left(self) -> int:
        """The numbers that it may still send, see `limits`."""
        return left(self.node, self.limits, self.told, self.task.terms_of(self.signature))

    def client(self, request: Request, model: nn.Module) -> Client:
        """Return the client that answers a message with a network."""
        node, (x, y) = self.node, (self.shard.x, self.shard.y)
        return Client(
            model,
            x,
            y,
            node.training(request, len(y)),
            nll=self.task.loss(self.facts),
            inference=local_method(node.settings.inference, dict(node.settings)),
            prior=node.prior(request),
            augment=self.task.augments(node.site),
            raw=self.raw.x,
        )


def job_of(message: Message, context: Context) -> Job:
    """Return the job of a message for the node of a context.

    Raises
    ------
    SettingError
        If the node's data or code do not fit.
    LimitReached
        If it has too few rows to tell anything.
    """
    node, config = node_of(context), message.content.config_records["config"]
    require_same_code(node.settings, config)
    task = task_of(node.settings)
    signature = task.signature_from(config)
    facts = {
        key.removeprefix(_FACT): torch.tensor(value, dtype=torch.float64)
        for key, value in config.items()
        if key.startswith(_FACT)
    }
    with one_state(None if node.site.partition is None else context.run_id):
        held, raw = task.shard(node.site, signature), task.raw(node.site, signature)
        content = "" if node.site.partition is None else task.content
    prepared = task.prepared(held, facts) if facts else held
    job = Job(node, task, signature, facts, held, prepared, raw, content)
    require_size(job.limits, job.told)
    if facts:
        job.require_told(facts)
    return job

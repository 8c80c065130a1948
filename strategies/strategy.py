"""The Flower strategy that aggregates posteriors by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Result
from flwr.supercore import log
from torch import Tensor

from fedbary.aggregation import RobustRule, Rule
from fedbary.aggregation.bound import check_ratio
from fedbary.errors import SettingError

from .conventions import Convention, convention_named
from .gated import GatedStrategy, arrays_of
from .momentum import ServerMomentum
from .privacy import Wrapper, driving_wrapper, hides_each, require_plain_mean
from .records import aggregate_records
from .stillness import Stillness


class PosteriorStrategy(GatedStrategy):
    """Flower's FedAvg with a barycentre of posteriors for the mean, and admission of replies.

    A subclass names the `rule`; `strategy_for` makes one from a rule's name. Within Flower's
    wrappers for differential privacy see `privacy`.

    Parameters
    ----------
    *args, **kwargs
        Those of `GatedStrategy`, and so of `flwr.serverapp.strategy.FedAvg`, in its order.
    convention : str or Convention
        Which arrays are Gaussian and the unit of their scales: a name in `CONVENTIONS`, or one's
        own.
    server_momentum : float
        From 0 to below 1; see `ServerMomentum`.
    trim_fraction : float
        For robust rules that assume a number of hostile clients, TrimmedMean and MultiKrum: the
        part of a round's clients that may be hostile, from 0 to below ½. Other rules have no use
        for it, and no protection by it.
    max_precision_ratio : float, optional
        Under any rule: the most that a client's precision of a weight may be of the median over
        the clients, 1 or more; what is above counts as that much. See
        `fedbary.aggregation.bound` for what it protects from and what not. None: no bound.

    Raises
    ------
    SettingError
        If the convention is unknown or another argument out of its range.
    """

    rule: Rule | RobustRule

    def __init__(
        self,
        *args: Any,
        convention: str | Convention = "fedbary",
        server_momentum: float = 0.0,
        trim_fraction: float = 0.2,
        max_precision_ratio: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.convention = convention_named(convention)
        self.server_momentum = ServerMomentum(server_momentum)
        if isinstance(self.rule, RobustRule):
            self.rule = replace(self.rule, trim_fraction=trim_fraction)
        check_ratio(max_precision_ratio)
        self.max_precision_ratio = max_precision_ratio
        self._stillness = Stillness()
        self._wrapper: Wrapper | None = None

    def summary(self) -> None:
        """Log the rule and the convention, then what `GatedStrategy` logs."""
        log(INFO, "\t├──> Posteriors:")
        log(INFO, "\t│\t├──Rule: %s", self.rule.name)
        if isinstance(self.rule, RobustRule):
            log(INFO, "\t│\t├──Fraction of hostile clients: %g", self.rule.trim_fraction)
        if self.max_precision_ratio is not None:
            log(INFO, "\t│\t├──Maximum precision: %g × the median", self.max_precision_ratio)
        log(INFO, "\t│\t└──Convention: %s", self.convention)
        super().summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds; see `GatedStrategy.start`."""
        self._stillness = Stillness()
        return super().start(*args, **kwargs)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what, with the global arrays, is needed to go on after the last whole round."""
        velocity = {f"velocity.{key}": v for key, v in self.server_momentum.velocity.items()}
        return {**super().state_dict(), **velocity}

    def load_state_dict(self, state: Mapping[str, Tensor], completed_rounds: int) -> None:
        """Go on from a state of `state_dict`; see `GatedStrategy.load_state_dict`."""
        super().load_state_dict(state, completed_rounds)
        self.server_momentum.velocity = {
            key.removeprefix("velocity."): tensor.clone()
            for key, tensor in state.items()
            if key.startswith("velocity.")
        }

    def _check_global(self, arrays: ArrayRecord) -> None:
        """Say how many arrays are Gaussian; refuse wrappers whose noise would hide no client."""
        self._wrapper = driving_wrapper()
        if self._wrapper is not None:
            require_plain_mean(
                self._wrapper,
                self.rule,
                self.convention,
                self.server_momentum.beta,
                self.max_precision_ratio,
                arrays,
            )
        gaussian = len(self.convention.pairs(arrays.keys()))
        level = INFO if gaussian or self.rule.name == "FedAvg" else WARNING
        log(level, "configure_train: %d of %d arrays are Gaussian means", gaussian, len(arrays))

    def _aggregate(self, admitted: Sequence[Message], weights: Sequence[float]) -> ArrayRecord:
        """Return the aggregate of admitted replies under the rule."""
        if self._wrapper is not None and not hides_each(self._wrapper, weights):
            share = f"at most 1/{self._wrapper.num_sampled_clients}, so that the noise hides it"
            raise SettingError("a reply's share of the mean", max(weights) / sum(weights), share)
        return aggregate_records(
            self.rule,
            [arrays_of(reply) for reply in admitted],
            weights,
            self.convention,
            self.max_precision_ratio,
        )

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Return the aggregate, moved on by the server's momentum."""
        if isinstance(self.rule, RobustRule) and self.rule.is_plain(len(admitted)):
            fraction = f"{self.rule.trim_fraction:g} of {len(admitted)} replies is none"
            log(WARNING, "aggregate_train: %s does not protect: %s", self.rule.name, fraction)
        records = [arrays_of(reply) for reply in admitted]
        self._stillness.observe(reference, records, self.convention)
        return self.server_momentum.step(reference, aggregate, self.convention)

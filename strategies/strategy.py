"""The Flower strategy of the barycentre: it aggregates posteriors by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Message

from fedbary.aggregation import RULES, AnyRule, RobustRule
from fedbary.aggregation.robust import num_hostile
from fedbary.errors import SettingError
from fedbary.methods import Method, Reply
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.hierarchy import Hierarchy

from .diagnostics import Diagnostics
from .gate import arrays_of
from .internals import log
from .method_strategy import ANSWER, MethodStrategy, parameters_of
from .privacy import Wrapper, driving_wrapper, require_plain_mean, weights_within_sensitivity

GAUSSIANS = "configure_train: %d of %d arrays are Gaussian means"

NO_GAUSSIANS = (
    f"{GAUSSIANS}, so the aggregate is a plain mean; fedbary.variational.variational makes weights "
    "Gaussian, and convention= names another library's Gaussian arrays"
)


class PosteriorStrategy(MethodStrategy):
    """Flower's FedAvg with a barycentre of posteriors in place of the mean, and admission.

    It is the strategy of `fedbary.methods.barycentre`. A subclass names the `rule`; `strategy_for`
    makes one from a rule's name. Clients may train in any way: messages do not hold the method's
    parameters. For Flower's differential-privacy wrappers see `fedbary.strategies.privacy`.

    Its arguments are those of `MethodStrategy`, and the parameters of `Barycentre`: `rule` (by
    default the class's), `trim_fraction`, `max_precision_ratio`, `clipping`, `mixing`, `remember`
    and `server_momentum`. With `groups`, clients of a group share a model, as in `Hierarchy`; an
    evaluation message has it under ``group/``.

    Raises
    ------
    SettingError
        If the convention is unknown or another argument out of its range.
    """

    method_class: type[Barycentre] = Barycentre
    method: Barycentre

    rule: AnyRule = RULES["RKLB"]
    named: tuple[str, AnyRule] = "RKLB", RULES["RKLB"]
    """A rule with the name by which pickle finds it."""

    def _method_with(self, parameters: dict[str, Any]) -> Method:
        """Return the barycentre with some parameters; with `groups` it is a `Hierarchy`."""
        kind = Hierarchy if "groups" in parameters else self.method_class
        self._require_known(kind, parameters)
        known = {**RULES, self.named[0]: self.named[1]}
        own = next((name for name, rule in known.items() if rule is self.rule), self.rule)
        method = kind(**{"rule": own, **parameters})
        self.rule = method.chosen
        return method

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle keeps: a rule of the library by its name alone, in the method."""
        return {name: value for name, value in vars(self).items() if name != "rule"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take what pickle kept."""
        vars(self).update(state)
        self.rule = self.method.chosen

    def _forget(self) -> None:
        """Forget an earlier start."""
        self._diagnostics = Diagnostics()
        self._wrapper: Wrapper | None = None
        self._counted_arrays = False

    @classmethod
    def _parameters(cls) -> list[Parameter]:
        """Return the parameters of the barycentre by the class's rule, and those of groups."""
        own = {p.name: p for p in super()._parameters()}
        own["rule"] = own["rule"].replace(default=cls.rule.name)
        left_out = {p.name: p.replace(default=...) for p in parameters_of(Hierarchy)}
        return list({**left_out, **own}.values())

    def summary(self) -> None:
        """Log the rule and the convention, then the lines of `MethodStrategy`."""
        rule, ratio = self.rule, self.method.max_precision_ratio
        log(INFO, "\t├──> Posteriors:")
        log(INFO, "\t│\t├──Rule: %s", rule.name)
        if isinstance(rule, RobustRule):
            log(INFO, "\t│\t├──Fraction of hostile clients: %g", rule.trim_fraction)
        if self.method.clipping:
            log(INFO, "\t│\t├──Before it: clipping")
        if self.method.mixing:
            of = f"{self.method.trim_fraction:g} of the clients may be hostile"
            log(INFO, "\t│\t├──Before it: mixing, as %s", of)
        if ratio is not None:
            log(INFO, "\t│\t├──Maximum precision: %g × the median", ratio)
        log(INFO, "\t│\t└──Convention: %s", self.convention)
        super().summary()

    def _asks_clients(self) -> str:
        """Say what clients must do to read the messages about groups."""
        if not self.method.personalises:
            return ""
        also = "evaluation messages also hold arrays under group/"
        return f"{also}, which a loop of yours takes out; or they answer by {ANSWER}"

    def _told(self) -> dict[str, Any]:
        """Return nothing: only the server needs the parameters."""
        return {}

    def _check_global(self, arrays: ArrayRecord) -> None:
        """Log once how many arrays are Gaussian; refuse wrappers whose noise hides no client."""
        self._wrapper = driving_wrapper()
        if self._wrapper is not None:
            if self.method.personalises:
                name = type(self._wrapper).__name__
                raise SettingError("groups", "some", f"no value for {name}: a group has no noise")
            require_plain_mean(
                self._wrapper,
                self.rule,
                self.convention,
                self.method,
                arrays,
            )
        if self._counted_arrays:
            return
        self._counted_arrays = True
        gaussian = len(self.convention.pairs(arrays.keys()))
        level = INFO if gaussian or self.rule.name == "FedAvg" else WARNING
        said = NO_GAUSSIANS if level == WARNING else GAUSSIANS
        log(level, said, gaussian, len(arrays))

    def _withstands(self, replies: int) -> bool:
        """Return whether clipping, mixing or a robust rule protects a round of so many replies."""
        rule, protects = self.rule, self.method.clipping or self.method.mixing
        return protects or (isinstance(rule, RobustRule) and not rule.is_plain(self._of(replies)))

    def _of(self, replies: int) -> int:
        """Return the number of clients that a robust rule compares: all, if they are remembered."""
        return max(replies, self._nodes) if self.method.remember else replies

    def _aggregate(self, sent: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Return the rule's aggregate of admitted replies."""
        weights = [reply.weight for reply in replies]
        if self._wrapper is not None and not weights_within_sensitivity(self._wrapper, weights):
            asked, key = self._wrapper.num_sampled_clients, self.weighted_by_key
            mend = f"let each of {asked} clients send the same {key}, such as 1"
            share = f"at most 1/{asked}, which the noise hides; {mend}"
            raise SettingError("a reply's share of the mean", max(weights) / sum(weights), share)
        return super()._aggregate(sent, replies)

    def _commit(
        self, reference: ArrayRecord, aggregate: ArrayRecord, admitted: Sequence[Message]
    ) -> ArrayRecord:
        """Return the aggregate; warn of a rule without protection and of untrained variances."""
        rule = self.rule
        plain: dict[str, float] = {}
        compared = self._of(len(admitted))
        if isinstance(rule, RobustRule) and rule.trim_fraction and rule.is_plain(compared):
            plain[rule.name] = rule.trim_fraction
        if self.method.mixing and num_hostile(self.method.trim_fraction, compared) == 0:
            plain["mixing"] = self.method.trim_fraction
        for name, fraction in plain.items():
            share = f"{fraction:g} of {compared} replies is less than one"
            log(WARNING, "aggregate_train: %s does not protect: %s", name, share)
        records = [arrays_of(reply) for reply in admitted]
        self._diagnostics.observe(rule.name, reference, records, aggregate, self.convention)
        return super()._commit(reference, aggregate, admitted)

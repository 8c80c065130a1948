"""The Flower strategy of the barycentre: it aggregates posteriors by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedbary.aggregation import RULES, AnyRule, RobustRule
from fedbary.aggregation.robust import num_hostile
from fedbary.aggregation.sums import flat_reals
from fedbary.errors import SettingError
from fedbary.methods import Method, Reply
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.hierarchy import Hierarchy

from .arrays import tensor_from_array
from .conventions import Convention
from .gate import arrays_of
from .internals import log
from .method_strategy import ANSWER, MethodStrategy, parameters_of
from .privacy import Wrapper, driving_wrapper, require_plain_mean, weights_within_sensitivity

PATIENCE = 3
"""Rounds in a row before a warning."""

STILL = 0.01
"""The mean move of log-variances below which they stand still: 1 % of the variance."""

ALIKE = 0.01
"""Fraction of a move below which clients' moves count as equal, and so not due to their data."""

NARROWER = 0.1
"""Least narrowing that counts, in the mean log-variance."""

TINY = 1e-30
"""Divisor in place of a move of 0."""

SAMPLE = 1000
"""Number of evenly spaced weights of an array that are compared, so that large models cost
nothing."""

STOOD_STILL = (
    "aggregate_train: in %d rounds clients have hardly moved log-variances, so the aggregate is "
    "almost a plain mean: %s; raise log_var_lr, or give the scales a step size in your own "
    "training loop, see fedbary.strategies.parameter_groups"
)

MOVED_ALIKE = (
    "aggregate_train: in %d rounds a penalty, not the data, has moved all clients' log-variances "
    "alike, so the aggregate is almost a plain mean: %s; lower kl_weight, raise "
    "local_epochs, or draw the weights in your own training loop, see "
    "fedbary.variational.drawing"
)

NARROWED = (
    "aggregate_train: in %d rounds %s has narrowed log-variances more than clients widened them, "
    "to a mean of %.3g: they will shrink to a point estimate's; use it for one round, or "
    "method=DWC, whose clients start from their own variances"
)


class Diagnostics:
    """Warns of log-variances that do not train, and of a rule that shrinks them.

    With log-variances s_i sent and s_ki replied, client k moves an array in a round by
    m_k = mean_i |s_ki − s_i|. Clients' moves differ by d = mean_i std_k (s_ki − s_i) / m_k. An
    array does not train in two cases, over `PATIENCE` rounds in a row:

    - Σ max_k m_k is below `STILL`, as with plain SGD;
    - the mean of d is below `ALIKE`, with several clients and several weights: a penalty alone
      moves all clients alike, some further than others.

    One step of Adam at the default rate moves a log-variance by 0.01, so short rounds do not count
    as standing still. But Adam's first steps have the same length for any gradient. While the
    penalty outweighs the data, clients' moves are alike in short rounds and differ in longer ones
    (`regression-vi`: d is 0.008 after three steps a round, 0.011 after fifteen).

    A product of K posteriors has about 1/K of the clients' variance, and so has the distribution of
    a mean of K draws. Clients that start from it widen it only by one round of training, and the
    next aggregate narrows it again. A round narrows if r > s and a < s − `NARROWER`, with s the
    mean log-variance sent, r that of the replies and a that of the aggregate.

    Warnings name each array once, and the rule once.
    """

    def __init__(self) -> None:
        self._moves: dict[str, list[tuple[float, float]]] = {}
        self._named: set[str] = set()
        self._narrowed = 0

    def observe(
        self,
        rule: str,
        sent: ArrayRecord,
        replies: Sequence[ArrayRecord],
        aggregate: ArrayRecord,
        convention: Convention,
    ) -> None:
        """Compare the sent arrays of a round with the admitted replies and their aggregate."""
        scales = list(convention.pairs(sent.keys()).values())

        def log_vars(record: ArrayRecord) -> dict[str, Tensor]:
            return {scale: convention.to_log_var(_sample(record, scale)) for scale in scales}

        before, replied = log_vars(sent), [log_vars(reply) for reply in replies]
        self._warn_of_untrained(before, replied)
        if scales and self._narrowed < PATIENCE:
            self._warn_of_narrowing(rule, before, replied, log_vars(aggregate))

    def _warn_of_untrained(
        self, sent: dict[str, Tensor], replies: Sequence[dict[str, Tensor]]
    ) -> None:
        untrained: dict[str, list[str]] = {STOOD_STILL: [], MOVED_ALIKE: []}
        for scale, before in sent.items():
            if not before.numel():
                continue
            moves = torch.stack([reply[scale] for reply in replies]) - before
            lengths = moves.abs().mean(1, keepdim=True)
            difference = (moves / lengths.clamp_min(TINY)).std(0, correction=0).mean()
            last = [*self._moves.get(scale, []), (float(lengths.max()), float(difference))]
            self._moves[scale] = last = last[-PATIENCE:]
            if len(last) < PATIENCE or scale in self._named:
                continue
            moved, differed = (sum(values) for values in zip(*last, strict=True))
            comparable = len(replies) > 1 and before.numel() > 1
            if moved < STILL or (comparable and differed / PATIENCE < ALIKE):
                self._named.add(scale)
                text = STOOD_STILL if moved < STILL else MOVED_ALIKE
                untrained[text].append(f"{scale!r} (by {moved:.2g})")
        for text, names in untrained.items():
            if names:
                log(WARNING, text, PATIENCE, ", ".join(names))

    def _warn_of_narrowing(
        self,
        rule: str,
        sent: dict[str, Tensor],
        replies: Sequence[dict[str, Tensor]],
        aggregate: dict[str, Tensor],
    ) -> None:
        before, after = _mean(sent), _mean(aggregate)
        replied = sum(map(_mean, replies)) / len(replies)
        falls = replied > before and after < before - NARROWER
        self._narrowed = self._narrowed + 1 if falls else 0
        if self._narrowed == PATIENCE:
            log(WARNING, NARROWED, PATIENCE, rule, after)


def _sample(record: ArrayRecord, name: str) -> Tensor:
    """Return some of an array's numbers, evenly spaced."""
    flat = flat_reals(tensor_from_array(record[name]))
    return flat[:: max(1, len(flat) // SAMPLE)].double()


def _mean(log_vars: dict[str, Tensor]) -> float:
    return float(torch.cat(list(log_vars.values())).mean())


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

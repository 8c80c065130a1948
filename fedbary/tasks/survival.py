"""Survival: times to an event, some of them cut short by the end of observation.

**hazard**: log hazard = α_j + x·β in the j-th interval of time. A row is split at the cuts between
intervals, and each part is a count of 0 or 1 event with its time at risk as exposure. So it is a
Poisson regression, whose baseline gives absolute risk. The cuts are quantiles of all sites' event
times.

**cox**: partial likelihood of each site, with ties by Efron. Each site has a baseline of its own,
as of any shape, and no event time leaves a site. It gives ratios of hazards and no absolute risk.

References: Holford, The analysis of rates and of survivorship using log-linear models, 1980; Cox,
Regression models and life-tables, 1972; Efron, The efficiency of Cox's likelihood function for
censored data, 1977.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.special import chdtrc
from torch import Tensor, nn

from fedbary.data.deal import Shard
from fedbary.data.examples import Examples
from fedbary.data.standardise import Sums
from fedbary.data.tables import Layout, perhaps
from fedbary.errors import CellError, RunError, SettingError
from fedbary.inference._head import Joint
from fedbary.methods._expanded import Claim
from fedbary.parts.parameters import Positive
from fedbary.predictive import Prediction, Predictive
from fedbary.scores.survival import concordance, kaplan_meier, pair_sums, pairs
from fedbary.settings.config import Settings
from fedbary.tasks import _bounds, _proportional, _sums
from fedbary.tasks._bounds import Most
from fedbary.tasks._contrasts import Contrasts
from fedbary.tasks._families import Family, of_counts
from fedbary.tasks._shown import FewShown, require_weight
from fedbary.tasks._survived import (
    CELLS,
    CURVES,
    PAIRS,
    answer_cells,
    answer_curves,
    answer_pairs,
    ask_cells,
    ask_curves,
    ask_pairs,
    edges,
)
from fedbary.tasks._values import LEAST, Condition, Dialogue, Facts, Loss, Outcome, Question
from fedbary.tasks._values import SHOWN as SHOWN_ALONE
from fedbary.tasks.glm import Glm, OfTerms, of_terms
from fedbary.texts import listed

if TYPE_CHECKING:
    from pandas import DataFrame

OF, EVENT_TIMES, INTERVALS = "of", "event-times", "intervals"
"""Subjects of questions other than columns: times of events, or events and time by interval."""

WEIGHTS = "output.weight"
"""The model's tensor."""

SHOWN = 3
"""Terms whose tests of proportional hazards a line names, the least p first."""

TIME = "cuts of time"
"""What a site keeps of the intervals."""

LOG_RANK = "log-rank"
"""The name of the question for a site's part of the log-rank tests."""


@dataclass(frozen=True)
class OfSurvival(OfTerms):
    """Settings of survival. The target is the time to the event, or to the end of observation.

    Parameters
    ----------
    event
        Column that says whether the time ends in the event: 1 or 0; or column=level, the level that
        is the event.
    family
        hazard: a constant hazard in each interval of time. cox: a baseline of each site's own.
    intervals
        Intervals of time; their cuts are quantiles of all sites' event times. auto: 8 of
        family=hazard; none of family=cox, where a number asks for the curves of survival.
    intercepts
        common: one baseline hazard, which gives absolute risk. site: each site's is a multiple of
        it, which the site never sends. auto: common of family=hazard, site of family=cox.
    at
        Time at which predictions are the risk of an event; auto: the last cut between intervals.
    """

    event: str = "event"
    family: Literal["hazard", "cox"] = "hazard"
    intervals: Literal["auto"] | Annotated[int, Field(ge=1, le=100)] = "auto"
    intercepts: Literal["auto", "common", "site"] = "auto"
    at: Literal["auto"] | Positive = "auto"


def of_survival(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings."""
    own = settings.of_task(OfSurvival)
    ranks = own.family != "cox" or own.errors == "model"
    yield "errors", ranks, "model for family=cox: rows of a partial likelihood have no own scores"
    common = own.family == "cox" and own.intercepts == "common"
    yield "intercepts", not common, "auto or site for family=cox; family=hazard has a common one"
    risk = own.at == "auto" or (own.family == "hazard" and own.intercepts != "site")
    tests = settings.evaluate_on == "test"
    yield "evaluate_on", tests, "test for task=survival: fedbary evaluate scores further rows"
    yield "at", risk, "auto: only family=hazard with a common baseline predicts a risk"


@dataclass(frozen=True, eq=False)
class Hazards:
    """Predicted hazards of N rows.

    Attributes
    ----------
    predictor : Tensor
        x·β, the logarithm of the hazard over that of a common row, (N,).
    risk : Tensor or None
        Probability of an event until a time, (N,); None without a common baseline.
    at : float
        That time; NaN without a risk.
    """

    predictor: Tensor
    risk: Tensor | None = None
    at: float = math.nan


class Cox(Joint):
    """Cox's partial likelihood of rows with time and event, ties by Efron.

    With risk sets R(t) and d events at a time t, E(t) the rows of these,

        −Σ_events f_i + Σ_t Σ_{l<d} log(Σ_R(t) exp f − l/d Σ_E(t) exp f).
    """

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return its negative logarithm over n, of outputs (n, 1) and targets (n, 2)."""
        order = y[:, 0].argsort(descending=True)
        f, (time, event) = outputs[order, 0], y[order].to(outputs).unbind(1)
        _, group, sizes = time.unique_consecutive(return_inverse=True, return_counts=True)
        largest = f.detach().max()
        hazard, has_event = (f - largest).exp(), event.bool()
        at_risk = hazard.cumsum(0)[sizes.cumsum(0) - 1]
        zeros = torch.zeros(len(sizes), dtype=f.dtype)
        tied = zeros.index_add(0, group, hazard * event)
        ties = zeros.index_add(0, group, event)
        before = event.cumsum(0) - event
        rank = before - (ties.cumsum(0) - ties)[group]
        held = group[has_event]
        share = rank[has_event] / ties[held]
        risks = (at_risk[held] - share * tied[held]).log() + largest
        return (risks.sum() - f[has_event].sum()) / len(f)


HAZARD = Family(of_counts, "hazard", False)


class Survival(Glm):
    """Times to an event."""

    Parameters = OfSurvival
    reads = "data/tables read"
    conditions = (of_terms, of_survival)
    plain = (_sums.NAME, _sums.MEDIANS, PAIRS, CELLS, CURVES, _proportional.NAME)

    @functools.cached_property
    def own(self) -> OfSurvival:  # type: ignore[override]
        """The task's own settings."""
        return self.settings.of_task(OfSurvival)

    @property
    def family(self) -> Family:
        """Counts of events, for their time at risk."""
        return HAZARD

    @property
    def predicts(self) -> bool:
        """True if all sites share a baseline."""
        return self.own.family == "hazard" and self.own.intercepts != "site"

    has_bias = False

    @property
    def baselines(self) -> int:
        """Number of the layer's inputs that stand for intervals, after those of the terms."""
        return (self.intervals - (not self.predicts)) if self.own.family == "hazard" else 0

    @property
    def intervals(self) -> int:
        """Number of intervals of time; 0 for none."""
        usual = 8 if self.own.family == "hazard" else 0
        return usual if self.own.intervals == "auto" else self.own.intervals

    # What the data are

    @property
    def beside_terms(self) -> tuple[str, ...]:
        """Name of the column of events."""
        return (self.own.event.partition("=")[0],)

    def _require_targets(self, held: Examples) -> None:
        """Raise a SettingError if times or events do not fit."""
        (column,) = self.beside_terms
        levels = dict(held.layout.columns).get(column)
        if levels is None:
            names = [name for name, _ in held.layout.columns]
            allowed = f"a column that varies: {perhaps(column, held.source, names)}"
            raise CellError("event", column, allowed)
        if levels and self.own.event not in held.layout.features:
            allowed = (
                f"the level that is the event: {listed([f'{column}={v}' for v in levels[:5]])}"
            )
            raise CellError("event", self.own.event, allowed)
        if not levels and "=" in self.own.event:
            raise CellError("event", self.own.event, f"{column}: a column of 0 and 1")
        if held.groups is not None:
            said, allowed = "names that repeat", "one row a name, from time 0 on: rows with late "
            allowed += "entry, or several of one patient, have no likelihood here"
            raise CellError(f"{self.own.id} of {held.source}", said, allowed, said)
        event = self._event(held.x, held.layout)
        if not ((event == 0) | (event == 1)).all():
            said = "numbers other than 0 and 1"
            raise CellError(f"{column} of {held.source}", said, "1 for an event, else 0", said)
        if (held.strata <= 0).any():
            said = "times of 0 or less"
            raise CellError(f"target of {held.source}", said, "times above 0", said)

    def _event(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:, layout.features.index(self.own.event)]

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return zeros in place of prepared rows."""
        x, y, size = super().sample(count)
        return torch.cat([x, torch.zeros(len(x), self.baselines)], 1), y, size

    # At a client

    def make_model(self, signature: Layout) -> nn.Module:
        """Return a linear layer of zeros without a bias, for the terms and the intervals."""
        width = len(self.design(signature).names) + self.baselines
        layer = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(layer.weight)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), output=layer))

    def terms_of(self, signature: Layout) -> int:
        """Return how many columns the terms and the intervals have, at most as many as the rows."""
        width = len(self.design(signature).names) + self.baselines
        return min(width, len(signature.features))

    def _outcomes_of(self, held: Shard) -> np.ndarray:
        """Return the rows with and without an event, (N, 2)."""
        event = self._event(held.x, self.signature()).numpy() == 1
        return np.stack([event, ~event], 1)

    def is_of_terms(self, question: str, asked: Mapping[str, Any]) -> bool:
        """Return whether an answer has sums or products of the terms' columns, or of residuals."""
        return question == _proportional.NAME or super().is_of_terms(question, asked)

    def loss(self, facts: Facts) -> Loss:
        """Return the mean negative log-likelihood."""
        return Cox() if self.own.family == "cox" else super().loss(facts)

    def _cells(self, held: Shard) -> Tensor:
        """Return a site's number of events."""
        return self._event(held.x, self.signature()).sum()[None]

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return rows, or their parts by interval, with the terms' and the intervals' columns."""
        x, event = self.taken(shard.x, facts), self._event(shard.x, self.signature())
        none = (x[:0], torch.zeros(0, 2, dtype=torch.float64))
        if self.own.family == "cox":
            return Shard(x, torch.stack([shard.y, event], 1), *none)
        times, inside = parts(shard.y, event, facts["cuts"])
        row, interval = (times > 0).nonzero().T
        offset = times[row, interval].log() + log_rates(facts)[interval]
        intervals = torch.eye(self.intervals)[interval, : self.baselines]
        y = torch.stack([inside[row, interval], offset], 1)
        groups = torch.arange(len(x)) if shard.groups is None else shard.groups
        return Shard(torch.cat([x[row], intervals], 1), y, *none, groups=groups[row])

    def facts_of(self, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Facts:
        """Return the facts of a question, cuts among them."""
        found = {**super().facts_of(asked, tensors)}
        if "cuts" in asked:
            found["cuts"] = self._cuts(asked)
        elif "cuts" in tensors:
            found["cuts"] = tensors["cuts"].double()
        return found

    def points(self, facts: Facts) -> dict[str, list[float]]:
        """Return also the cuts between intervals of time; a SettingError if they fall."""
        cuts = facts.get("cuts", torch.zeros(0))
        if not (cuts.diff() >= 0).all():
            raise SettingError("intervals", "cuts out of order", "cuts that rise")
        return {**super().points(facts), TIME: cuts.tolist()}

    def require_told(
        self,
        held: Shard,
        facts: Facts,
        points: Mapping[str, Sequence[float]],
        least: int,
        cell: int,
    ) -> None:
        """Raise a SettingError also if few rows, fewer than `cell`, end between two cuts.

        The server sets these. Sums of one interval differ from those of the next by such rows.
        """
        super().require_told(held, facts, points, least, cell)
        cuts = torch.tensor(points.get(TIME, ())).double()
        ends = torch.bucketize(held.y.double(), cuts).bincount().tolist() if len(cuts) else []
        if any(0 < count < cell for count in ends):
            allowed = f"cuts, those of earlier runs among them, between which none or {cell} of a "
            allowed += "site's rows end; perhaps fewer intervals"
            raise FewShown("intervals", "few rows between cuts", allowed)

    def weights(self, shard: Shard, model: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the weights of rows: of each interval's parts, or hazards until a row's time."""
        if self.own.family == "cox":
            found = expected(shard.x.double() @ model[WEIGHTS][0].double(), *shard.y.T)[:, None]
            return found, at_risk(*shard.y.T)[:, None]
        of_parts, _ = super().weights(shard, model)
        ones = shard.x[:, shard.x.shape[1] - self.baselines :]
        place = torch.cat([ones, 1 - ones.sum(1, keepdim=True)], 1).argmax(1)
        assert shard.groups is not None
        row = shard.groups.unique(return_inverse=True)[1]
        weights = torch.zeros(int(row.max()) + 1, self.intervals, dtype=torch.float64)
        there = torch.zeros_like(weights, dtype=torch.bool)
        weights[row, place], there[row, place] = of_parts[:, 0], True
        return weights, there

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with sums and quantiles of event times, and with events and time by interval."""
        if question == LOG_RANK:
            event = self._event(shard.x, self.signature())
            tests = [log_rank(shard.y, event, shard.x[:, g]) for g in self._groups()]
            parts_of = [torch.cat([apart, var.flatten()]) for apart, var in tests]
            return {"count": len(shard.y), "tests": torch.cat(parts_of).tolist()}
        event = self._event(shard.x, self.signature())
        if question in (PAIRS, CELLS, CURVES, _proportional.NAME):
            return self._answer_last(question, shard.x, shard.y, event, asked, tensors)
        if OF not in asked:
            return super().answer(question, shard, asked, tensors)
        if asked[OF] == INTERVALS:
            return _sums.answer(torch.cat(parts(shard.y, event, self._cuts(asked)), 1), asked)
        if not self.intervals:
            raise ValueError("a run without intervals, whose sites tell no time")
        times = shard.y.double().where(event == 1, torch.nan)[:, None]
        how = _sums.answer if question == _sums.NAME else _sums.answer_medians
        return how(times, asked)

    def _cuts(self, asked: Mapping[str, Any]) -> Tensor:
        """Return the cuts of a question; a ValueError if they are more than the settings say."""
        cuts = torch.tensor(asked["cuts"], dtype=torch.float64)
        if len(cuts) >= self.intervals:
            raise ValueError(f"{len(cuts)} cuts, for {self.intervals} intervals")
        return cuts

    def _answer_last(
        self,
        question: str,
        x: Tensor,
        time: Tensor,
        event: Tensor,
        asked: Mapping[str, Any],
        facts: Mapping[str, Tensor],
    ) -> dict[str, Any]:
        """Answer with what rows tell of a model, `WEIGHTS` among the facts."""
        least, shown = int(asked[LEAST]), int(asked.get(SHOWN_ALONE, 0))
        if question == CURVES:
            cuts = self._cuts(asked)
            names = self.signature().features
            levels = [names.index(level) for level in self.levels(self.signature())]
            groups = torch.cat([torch.ones_like(x[:, :1]), x[:, levels]], 1)
            return answer_curves(*parts(time, event, cuts), groups, least)
        if shown:
            self._require_digits(x, facts)
        weights, taken = facts[WEIGHTS][0].double(), self.taken(x, facts)
        held = self.hazards(weights, taken, facts, float(asked["at"]) if "at" in asked else None)
        if question == PAIRS:
            return answer_pairs(held.predictor, time, event)
        if question == _proportional.NAME:
            if shown:
                found, usual = (
                    expected(predictor, time, event)[:, None]
                    for predictor in (held.predictor, torch.zeros_like(held.predictor))
                )
                there = at_risk(time, event)[:, None]
                require_weight(found, usual, there, self._sets(x), shown)
            return _proportional.answer(taken, held.predictor, time, event)
        assert held.risk is not None
        until, happened = time.clamp_max(held.at), event * (time <= held.at)
        log_hazard = held.predictor + self._log_parts(weights, until, facts).logsumexp(1)
        cuts = edges(weights[: taken.shape[1]])
        return answer_cells(held.predictor, held.risk, log_hazard.exp(), happened, cuts, least)

    # At the server

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for what the terms need, and for cuts between the intervals of time."""
        facts = yield from super().ask_first()
        if self._groups():
            facts["log_rank"] = yield from self._ask_log_rank()
        if self.own.family == "cox":
            return facts
        return {**facts, **(yield from self._ask_cuts())}

    def _groups(self) -> list[list[int]]:
        """Return the features of each column of levels that is a term of its own."""
        signature = self.signature()
        return [
            [signature.features.index(f"{factor.column}={level}") for level in levels]
            for factor, *others in self._terms(signature)
            if not others and (levels := dict(signature.columns)[factor.column])
        ]

    def _ask_log_rank(self) -> Dialogue[Tensor]:
        """Return the sums over sites of all tests' observed less expected events, and variances."""
        numbers = sum(len(group) * (len(group) + 1) for group in self._groups())

        def read(metrics: Mapping[str, Any], most: int) -> Tensor:
            _sums.count(metrics, most)
            told = torch.tensor(metrics["tests"], dtype=torch.float64)
            if told.shape != (numbers,) or not (told.abs() <= most).all():
                raise ValueError(f"no {most} rows have these log-rank sums")
            return told

        answers = yield Question(LOG_RANK, read, {})
        return sum(answers, torch.zeros(numbers, dtype=torch.float64))

    def log_ranks(self, signature: Layout, facts: Facts) -> Iterator[tuple[str, float, int]]:
        """Yield column, statistic and degrees of freedom of each log-rank test within sites."""
        told = facts.get("log_rank", torch.zeros(0)).double()
        for group in self._groups():
            size = len(group)
            apart, var, told = told.split([size, size**2, len(told) - size - size**2])
            inverse = torch.linalg.pinv(var.view(size, size), hermitian=True, rtol=1e-9)
            degrees = int(torch.linalg.matrix_rank(inverse, hermitian=True))
            column = signature.features[group[0]].partition("=")[0]
            yield column, float(apart @ inverse @ apart), degrees

    def _tests(self, signature: Layout, facts: Facts) -> Iterator[str]:
        """Yield a line for each log-rank test."""
        for column, statistic, degrees in self.log_ranks(signature, facts):
            said = f"chi² = {statistic:.4g} of {degrees}, p = {chdtrc(degrees, statistic):.2g}"
            yield f"Log-rank test within sites, {column}: {said}"

    def levels(self, signature: Layout) -> list[str]:
        """Return the levels, ``column=level``, whose curves sites tell."""
        return [signature.features[place] for group in self._groups() for place in group]

    def _ask_cuts(self) -> Dialogue[dict[str, Tensor]]:
        """Return cuts, and the events and the time at risk of each interval over all sites.

        An interval without events is joined to its neighbour: it has no length then.
        """
        number, of_times = self.intervals, {OF: EVENT_TIMES}
        sums = yield from _sums.ask(1, missing=True, also=of_times)
        at = torch.arange(1, number).double() / number
        cuts = torch.zeros(0, dtype=torch.float64)
        if number > 1:
            found = yield from _sums.ask_quantiles(sums, at, [0] * (number - 1), of_times, 2)
            cuts = torch.tensor([float(f"{cut:.4g}") for cut in found.sort().values.tolist()])
            cuts = cuts.double()
        totals = yield from self._ask_intervals(cuts)
        if len(joined := joined_cuts(cuts, totals[1])) < number - 1:
            cuts = torch.tensor([0.0] * (number - 1 - len(joined)) + joined, dtype=torch.float64)
            totals = yield from self._ask_intervals(cuts)
        return {"cuts": cuts, "at_risk": totals[0], "events": totals[1]}

    def _ask_intervals(self, cuts: Tensor) -> Dialogue[Tensor]:
        """Return time at risk and events by interval, (2, J), over all sites."""
        also = {OF: INTERVALS, "cuts": cuts.tolist()}
        sums: Sums = yield from _sums.ask(2 * (len(cuts) + 1), also=also)
        return (sums.mean * sums.count).clamp_min(0).view(2, -1)

    def events(self, facts: Facts) -> tuple[float, str, int]:
        """Return the number of events, what they are, and the columns that they must tell."""
        signature = self.signature()
        events = float(facts["rows"][0]) * float(self._event(facts["mean"][None], signature))
        return round(events), "events", len(self.design(signature).names)

    def _counted(self, facts: Facts) -> tuple[float, Tensor]:
        """Return the rows of all sites, and their events."""
        events, *_ = self.events(facts)
        return float(facts["rows"][0]), torch.tensor([events], dtype=torch.float64)

    def _most(self, facts: Facts, claim: Claim, rows: float, every: float) -> Most:
        """Return the most that all rows can say."""
        events, *_ = self.events(facts)
        if self.own.family == "cox":
            return _bounds.of_events(every, events)
        width = len(self._alive(facts)) + self.baselines
        usual = torch.zeros(1, width, dtype=torch.float64)  # offsets hold the rates of intervals
        return _bounds.of_counts(every, events, 0.0, claim.away(usual))

    def ask_last(self, model: nn.Module, facts: Facts) -> Dialogue[dict[str, Tensor]]:
        """Ask for pairs within sites, for cells of predicted risk, and for curves."""
        found = yield from super().ask_last(model, facts)
        tensors = {**facts, WEIGHTS: model.state_dict()[WEIGHTS]}
        sites = yield from ask_pairs(tensors)
        if not sites:
            return found
        found |= {"pairs": _sum(sites), "sites": torch.tensor([float(len(sites))])}
        if self.predicts and (cells := (yield from ask_cells(tensors, self.at(facts)))):
            found |= {"cells": _sum(cells), "at": torch.tensor([self.at(facts)]).double()}
        width = len(self._alive(facts))
        rows = float(facts["rows"][0])
        if proportional := (yield from _proportional.ask(tensors, width, rows)):
            found |= {"proportional": _sum(proportional)}
            found |= {"tested": torch.tensor([float(len(proportional))])}
        if not self.intervals:
            return found
        try:
            cuts = facts["cuts"] if "cuts" in facts else (yield from self._ask_cuts())["cuts"]
        except RunError:  # no site tells its times
            return found
        cuts = cuts[cuts.diff(prepend=cuts.new_zeros(1)) > 0]
        groups = len(self.levels(self.signature()))
        if curves := (yield from ask_curves(cuts, groups)):
            found |= {"curves": _sum(curves), "cuts": cuts}
        return found

    def said_last(self, found: Mapping[str, Tensor], facts: Facts) -> Iterator[str]:
        """Yield lines on C and on tests of proportional hazards."""
        if "pairs" not in found:
            yield "C is not known: no site told its pairs"
            return
        c, low, high = concordance(found["pairs"].numpy())
        many = f"{float(found['pairs'][1]):.0f} pairs within {int(found['sites'])} sites"
        yield f"C = {c:.3f} ({low:.3f} to {high:.3f}) by {many}, at rows that were trained on"
        if "proportional" not in found:
            return
        alive, design = self._alive(facts), self.design(self.signature(), facts)
        turn = facts["turn"].view(len(alive), -1).double()[alive]
        groups: dict[str, list[int]] = {}
        kept = [term for term, held in zip(design.terms_of_columns, alive, strict=True) if held]
        for place, term in enumerate(kept):
            groups.setdefault(":".join(factor.name for factor in term), []).append(place)
        back = torch.zeros_like(turn)
        back[:, alive] = torch.linalg.inv(turn[:, alive])
        (_, whole, degrees), *each = _proportional.score_tests(found["proportional"], back, groups)
        least = sorted((float(chdtrc(k, chi2)), name) for name, chi2, k in each if k)[:SHOWN]
        said = f"chi² = {whole:.4g} of {degrees}, p = {chdtrc(degrees, whole):.2g}"
        terms = ", ".join(f"{name} p = {p:.2g}" for p, name in least)
        sites = int(found.get("tested", found["sites"]))
        yield f"Proportional hazards within {sites} sites, by log time: {said}; least: {terms}"

    def contrasts(self, signature: Layout, facts: Facts) -> Contrasts:
        """Return logarithms of hazard ratios, and of the baseline's hazards or their ratios."""
        found = super().contrasts(signature, facts)
        found = replace(found, notes=(*found.notes, *self._tests(signature, facts)))
        if self.own.family == "cox":
            return found
        turn = facts["turn"].view(len(self._alive(facts)), -1).double()
        long = (facts["at_risk"] > 0)[: self.baselines]
        places, rates = long.nonzero()[:, 0], log_rates(facts)
        ends = [0.0, *facts["cuts"].tolist()]
        names = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(ends)] + [f"from {ends[-1]:g}"]
        base = torch.zeros(len(places), turn.shape[1], dtype=torch.float64)
        offset, called, unit = rates[places], "log hazard", ""
        if self.predicts:
            base = base - turn @ facts["centre"].double()
        else:
            offset, called, unit = offset - rates[-1], "time", f"against {names[-1]}"
        own = torch.eye(self.baselines, dtype=torch.float64)[places]
        terms = torch.cat([found.columns, torch.zeros(len(found.terms), self.baselines)], 1)
        more = torch.full((1, len(places)), torch.nan, dtype=torch.float64)
        return replace(
            found,
            terms=(*found.terms, *(f"{called} {names[k]}" for k in places)),
            units=(*found.units, *[unit] * len(places)),
            columns=torch.cat([terms, torch.cat([base, own], 1)]),
            offset=torch.cat([found.offset, offset[None]], 1),
            rows=torch.cat([found.rows, more], 1),
            events=torch.cat([found.events, facts["events"][places][None]], 1),
        )

    # Predictions

    def inputs(self, x: Tensor | DataFrame, signature: Layout) -> Tensor:
        """Return rows as features, with no event in all of them."""
        if isinstance(x, Tensor):
            return super().inputs(x, signature)
        return self._with_events(super().inputs(x, self._without_events(signature)), signature)

    def examples(self, path: Path, signature: Layout) -> Examples:
        """Read the rows of a file, which needs no column of events."""
        held = super().examples(path, self._without_events(signature))
        if set(self.beside_terms) <= held.columns.keys():
            held = super().examples(path, signature)
            if held.y is None:
                return held
            return replace(held, y=torch.stack([held.y, self._event(held.x, signature)], 1))
        x = self._with_events(held.x, signature)
        return replace(held, x=x, y=None, layout=signature)

    def _without_events(self, layout: Layout) -> Layout:
        columns = tuple(each for each in layout.columns if each[0] not in self.beside_terms)
        return replace(layout, columns=columns)

    def _with_events(self, x: Tensor, layout: Layout) -> Tensor:
        held = self._without_events(layout).features
        wide = x.new_zeros(len(x), len(layout.features))
        wide[:, [layout.features.index(name) for name in held]] = x
        return wide

    def log_hazard(
        self, weights: Tensor, x: Tensor, at: float, facts: Facts
    ) -> tuple[Tensor, Tensor]:
        """Return the log cumulative hazard of rows as the layer sees them, and its slopes.

        log H = log Σ_j t_j h_j exp(x·β + α_j), with t_j the time until `at` within interval j.

        Parameters
        ----------
        weights
            β and α, (P + J,) float64.
        x
            Columns of the terms, (N, P).
        at
            The time.
        facts
            The run's, of which come the cuts and h_j = events / time at risk.

        Returns
        -------
        tuple of Tensor
            log H, (N,), and its slopes by the weights, (N, P + J).
        """
        logs = self._log_parts(weights, torch.tensor([at], dtype=torch.float64), facts)
        found = x.double() @ weights[: x.shape[1]] + logs.logsumexp(1)
        return found, torch.cat([x.double(), logs.softmax(1).expand(len(x), -1)], 1)

    def _log_parts(self, weights: Tensor, time: Tensor, facts: Facts) -> Tensor:
        """Return log t_j h_j exp(α_j) of each time, (K, J)."""
        inside, _ = parts(time, time, facts["cuts"])
        return weights[len(weights) - self.baselines :] + log_rates(facts) + inside.log()

    def at(self, facts: Facts) -> float:
        """Return the time of the predicted risk."""
        last = facts["cuts"][-1] if len(facts["cuts"]) else facts["at_risk"].sum()
        return float(last if self.own.at == "auto" else self.own.at)

    def hazards(self, weights: Tensor, x: Tensor, facts: Facts, at: float | None = None) -> Hazards:
        """Return the hazards of rows as the layer sees them, and their risk if any.

        `weights` are (P + J,) float64. `at` is by default the settings' time.
        """
        predictor = x.double() @ weights[: x.shape[1]]
        if not self.predicts:
            return Hazards(predictor)
        at = self.at(facts) if at is None else at
        base = self._log_parts(weights, torch.tensor([at], dtype=torch.float64), facts)
        return Hazards(predictor, -(-(predictor + base.logsumexp(1)).exp()).expm1(), at)

    def predicted(
        self, model: nn.Module, x: Tensor, facts: Facts, seed: int, by: Predictive
    ) -> Prediction:
        """Predict that no event, or one, happens until `at`: 1 − S(t) = 1 − exp(−H)."""
        return self._risk(model, facts)(x)

    def _predicting(
        self, outcome: Outcome, facts: Facts, seed: int
    ) -> Callable[[Tensor], Prediction]:
        taking, risk = self._taking(facts), self._risk(outcome.model, facts)
        return lambda x: risk(taking(x))

    def _risk(self, model: nn.Module, facts: Facts) -> Callable[[Tensor], Prediction]:
        self.require_predicting()
        weights = model.state_dict()[WEIGHTS][0].double()
        at = torch.tensor([self.at(facts)], dtype=torch.float64)
        base = self._log_parts(weights, at, facts).logsumexp(1)

        def predicted(x: Tensor) -> Prediction:
            terms = x.double() @ weights[: x.shape[1]]
            survival = (-(terms + base).exp()).exp()
            probs = torch.stack([survival, 1 - survival], 1)
            return Prediction(probs, torch.special.entr(probs).sum(1), networks=1)

        return predicted

    def answers(self, prediction: Any, signature: Layout) -> dict[str, np.ndarray]:
        """Return the risk, and the probability of no event."""
        survival, risk = prediction.probs.numpy().T
        return {"risk": risk, "survival": survival}

    def require_predicting(self) -> None:
        """Raise a SettingError without a common baseline."""
        if self.own.family == "cox":
            allowed = "hazard, for absolute risk: family=cox has a baseline of each site's own, "
            allowed += "and tells ratios of hazards alone: fedbary coefficients"
            raise SettingError("family", "cox", allowed)
        super().require_predicting()

    def judged(self, prediction: Any, y: Tensor) -> dict[str, float]:
        """Return C; with a common baseline mean predicted and Kaplan-Meier risk, too.

        Targets are times and events, (N, 2). The observed risk is NaN where it has no interval, as
        without an event until then.
        """
        time, event = y.double().numpy().T
        sums = pair_sums(*pairs(prediction.predictor.float().numpy(), time, event))
        found = {"c_index": concordance(sums)[0]}
        if prediction.risk is None:
            return found
        survival, low, _ = kaplan_meier(time, event, prediction.at)
        observed = math.nan if math.isnan(low) else 1 - survival
        return {**found, "predicted_risk": float(prediction.risk.mean()), "observed_risk": observed}


def _sum(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0)


def log_rates(facts: Facts) -> Tensor:
    """Return log(events / time at risk) of each interval (J,); 0 of one without length."""
    at_risk = facts["at_risk"]
    rates = facts["events"].where(at_risk > 0, 1) / at_risk.where(at_risk > 0, 1)
    return rates.log()


def log_rank(time: Tensor, event: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return observed less expected events of G groups, (G,), and their covariance, (G, G).

    With d events among n rows at risk at a time, of which n_g are in group g, d n_g/n events are
    expected, and the covariance is d (n − d)/(n − 1) (diag(n_g/n) − n_g n_h/n²).

    Parameters
    ----------
    time, event
        Times and events of rows, (N,).
    groups
        1 for the group of a row among 0s, (N, G).
    """
    order = time.argsort(descending=True)
    _, place, sizes = time[order].unique_consecutive(return_inverse=True, return_counts=True)
    held, happened = groups[order].double(), event[order].double()
    n_g = held.cumsum(0)[sizes.cumsum(0) - 1]
    n = sizes.cumsum(0).double()
    events = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, place, happened)
    share = n_g / n[:, None]
    apart = (held * happened[:, None]).sum(0) - (events[:, None] * share).sum(0)
    scale = events * (n - events) / (n - 1).clamp_min(1)
    return apart, torch.diag((scale[:, None] * share).sum(0)) - (scale[:, None] * share).T @ share


def at_risk(time: Tensor, event: Tensor) -> Tensor:
    """Return which rows are at risk at an event, (N,); others have no part in Cox's sums."""
    happened = time[event > 0]
    return time >= happened.min() if len(happened) else torch.zeros_like(time, dtype=torch.bool)


def expected(predictor: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """Return the events that Cox's model expects of each row until its time, (N,)."""
    order = time.argsort(descending=True)
    hazard, happened = (predictor[order] - predictor.max()).exp(), event[order].double()
    _, place, sizes = time[order].unique_consecutive(return_inverse=True, return_counts=True)
    events = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, place, happened)
    rates = events / hazard.cumsum(0)[sizes.cumsum(0) - 1]
    found = torch.empty_like(hazard)
    found[order] = hazard * rates.flip(0).cumsum(0).flip(0)[place]
    return found


def joined_cuts(cuts: Tensor, events: Tensor) -> list[float]:
    """Return the cuts (J − 1,) that have events on both sides, up to the cut before and after."""
    kept, held, left = list[float](), 0.0, float(events.sum())
    for cut, count in zip(cuts.tolist(), events.tolist(), strict=False):
        held, left = held + count, left - count
        if held > 0.5 and left > 0.5:
            kept, held = [*kept, cut], 0.0
    return kept


def parts(time: Tensor, event: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the time of each row within each interval, and its events there, both (n, J)."""
    time, edge = time.double()[:, None], torch.zeros(1, dtype=torch.float64)
    low, high = torch.cat([edge, cuts]), torch.cat([cuts, edge + torch.inf])
    inside = (time.minimum(high) - low).clamp_min(0)
    ends = (time > low) & (time <= high)
    return inside, ends * event.double()[:, None]

"""Generalised linear models of tables, whose coefficients have the intervals of the pooled fit.

Sites hold all covariances (PVI with inference=laplace), so that rounds end at the mode of all rows,
to 1e-6 standard errors after five or six. They end by themselves: one round after a round whose
step was below 1e-3 standard errors. All rows are used. `fedbary coefficients` shows the table.

Before the first round sites send sums of the columns and of their products. These give the columns
that the layer sees: uncorrelated over all sites, of variance 1. So products and powers lose no
digits, the prior N(0, prior_std²) is the same whatever the reference of a level, and a column that
is a linear combination of others is refused by name.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedbary.data import deal
from fedbary.data.deal import Shard, Split
from fedbary.data.examples import Examples
from fedbary.data.forms import user_path
from fedbary.data.image_layout import parse_classes
from fedbary.data.sites import Limits, Site
from fedbary.data.standardise import Standardiser, Sums, dependent
from fedbary.data.tables import (
    Choice,
    Layout,
    load,
    load_labelled,
    perhaps,
    plain,
)
from fedbary.data.terms import Design, Factor, Term, parse, require_columns
from fedbary.errors import CellError, SettingError
from fedbary.figures.sheet import BLUE
from fedbary.inference._head import Profiled, row_weights
from fedbary.inference._integrated import Integrated, Intercepts
from fedbary.methods import Reply, Server, method_of
from fedbary.methods._curvature import last_layer, matrix
from fedbary.methods._expanded import Claim
from fedbary.methods.newton import Newton, vector_of
from fedbary.methods.pvi import PVI
from fedbary.parts.parameters import Count, NameList, Positive
from fedbary.predictive import Forecast, Prediction, Predictive
from fedbary.runs import schema
from fedbary.runs.answered import Asked, fewest, in_common, kept_apart
from fedbary.runs.functions import of_all_runs
from fedbary.runs.sent import Sent
from fedbary.scores.metrics import evaluate
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfRows
from fedbary.tasks import _bounds, _sandwich, _sums
from fedbary.tasks._bounds import Most
from fedbary.tasks._contrasts import INTERCEPT, NUMBER, Contrasts, are_levels
from fedbary.tasks._families import FAMILIES, Family, with_first
from fedbary.tasks._rows import Rows
from fedbary.tasks._shown import (
    functions_of,
    marks,
    require_digits,
    require_weight,
    shown_by_knots,
    stretches,
)
from fedbary.tasks._values import (
    Condition,
    Dialogue,
    Facts,
    Graph,
    Loss,
    Outcome,
    Question,
    Scored,
)
from fedbary.texts import listed

FEWEST_EVENTS, FEW_EVENTS = 5, 10
"""Events for each column, below which a run is refused, and below which it is warned of."""

LOST = 3
"""Rounds without an answer after which rounds may end without a site."""

EQUAL, FEWEST_EQUAL = "equal", 5
"""The question for rows that equal another, and the fewest that a site tells."""

TOO_ALIKE = (
    "further rows are left out: with them, this run's rows and an earlier run's would differ by "
    "too few, and the difference of two sums shows these. Rows that are new, or have changed, wait "
    "for others. missing=complete gives runs of any terms the same rows"
)
"""What a site's own log says of them."""

KNOTS = "knots of "
"""What a site keeps of a column that splines are of."""

RANK = 1e-8
"""Part of a column's variance that others may leave, at or below which it counts as none."""


@dataclass(frozen=True)
class OfTerms(OfRows):
    """Settings of models of terms.

    Parameters
    ----------
    terms
        all: each column. Otherwise terms with blanks between: names of columns, age:sex for
        products, age^2, log(dose), spline(age,4) for a natural cubic spline of 4 columns, with
        knots at quantiles of all sites' rows. A name with blanks stands in backquotes.
    reference
        auto: the commonest level of each column over all sites. Otherwise column=level, with blanks
        between.
    missing
        drop: rows with an empty cell in a used column are left out. complete: those with one in any
        column of the table but those of leave_out, so that runs of other terms have the same rows.
        refuse: stop. Means and indicators would bias coefficients.
    errors
        Standard errors. model: those of the model. robust: by the rows' own scores (HC1), also
        where the model's variance is wrong; rows of one group count together. site: by each site's
        total score, with t of sites − 1 degrees; too small where sites are few.
    group
        Column that names rows that belong together, such as a patient's, for errors=robust. A
        simulation deals whole groups. none: each row stands alone, or an id that repeats is taken.
        It is no term.
    min_rows
        Fewest rows of a real site, if these are more than it wants itself. none: its own limit.
    min_cell
        Fewest rows of a class, a level or an event at a real site, if these are more than it wants
        itself. none: its own limit.
    max_columns
        Most columns for each row of a real site, if these are fewer than it allows itself. none:
        its own limit.
    budget
        Most numbers that a real site sends over all runs for each number that it holds, if these
        are fewer than it allows itself. none: its own limit.
    """

    terms: str = "all"
    reference: str = "auto"
    missing: Literal["drop", "complete", "refuse"] = "drop"  # type: ignore[assignment]
    errors: Literal["model", "robust", "site"] = "model"
    group: str = "none"
    min_rows: Literal["none"] | Count = "none"
    min_cell: Literal["none"] | Count = "none"
    max_columns: Literal["none"] | Positive = "none"
    budget: Literal["none"] | Positive = "none"

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits that the run sets, by their names in `Limits`; None for none."""
        told = {each.name: getattr(self, each.name) for each in fields(Limits)}
        return {name: None if limit == "none" else limit for name, limit in told.items()}


@dataclass(frozen=True)
class OfGlm(OfTerms):
    """Settings of generalised linear models.

    Parameters
    ----------
    family
        binomial: two classes, log-odds. multinomial: log-odds of each class against the first.
        poisson: counts, logarithms of rates. gaussian: numbers.
    exposure
        Column of the time or number that a count is of, above 0; none: each row counts alike.
    intercepts
        site: each site has an intercept of its own, which it never sends. common: one for all; only
        such a model predicts. random: sites draw theirs from N(0, τ²), and each integrates over its
        own; for method=Newton and one output.
    classes
        auto: the classes of the data. Otherwise their names with commas between; the first is the
        one that others are compared with.
    """

    family: Literal["binomial", "multinomial", "poisson", "gaussian"] = "binomial"
    exposure: str = "none"
    intercepts: Literal["site", "common", "random"] = "site"
    classes: NameList = "auto"


def of_terms(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings of all models of terms."""
    own, words, task = settings.of_task(OfTerms), dict(settings), f"task={settings.task}"
    yield "dataset", settings.dataset != "none", f"the server's own table for {task}"
    by_sites = settings.method == "PVI"
    known = by_sites or settings.method == "Newton"
    yield "method", known, f"PVI for {task}, whose sites hold all covariances; or Newton, by sums"
    yield "inference", not by_sites or settings.inference == "laplace", f"laplace for {task}"
    full = not by_sites or words.get("covariance") == "full"
    yield "covariance", full, f"full for {task}: others give no standard errors"
    yield "model", settings.model == "linear", f"linear for {task}"
    yield "holdout", settings.holdout == 0, f"0 for {task}, which uses all rows"
    yield "device", settings.device != "cuda", f"auto or cpu for {task}"
    if own.terms != "all":
        parse(own.terms)
    _references(own.reference)


def of_glm(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on settings."""
    own = settings.of_task(OfGlm)
    counts = own.exposure == "none" or own.family == "poisson"
    yield "exposure", counts, f"none for family={own.family}; family=poisson has one"
    named = own.classes == "auto" or FAMILIES[own.family].classes
    yield "classes", named, f"auto for family={own.family}"
    if own.intercepts == "random":
        sums = settings.method == "Newton"
        yield "method", sums, "Newton for intercepts=random: a site's likelihood is not convex"
        known = own.family in ("binomial", "poisson")
        yield "intercepts", known, f"site or common for family={own.family}"
        plain = own.errors == "model"
        yield "errors", plain, "model for intercepts=random: its rows are not independent"


class Glm(Rows):
    """A generalised linear model of tables."""

    Parameters: type[OfTerms] = OfGlm
    reads = "data/tables read_labelled"
    conditions = (of_terms, of_glm)
    curves = ((schema.STEP, 1, "Largest step (standard errors)", BLUE),)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.counts_classes = self.family.classes

    @functools.cached_property
    def own(self) -> OfGlm:
        """The task's own settings."""
        return self.settings.of_task(OfGlm)

    @property
    def family(self) -> Family:
        """The family that the settings name."""
        return FAMILIES[self.own.family]

    @property
    def predicts(self) -> bool:
        """True if all sites share an intercept."""
        return self.own.intercepts == "common"

    @property
    def has_bias(self) -> bool:
        """True if the layer has an intercept of all sites."""
        return self.own.intercepts != "site"

    # What the data are

    @property
    def choice(self) -> Choice:
        """Columns that the terms use, and those beside them."""
        usual = super().choice
        if self.own.terms == "all":
            return usual
        names = [factor.column for term in parse(self.own.terms) for factor in term]
        return replace(
            usual, columns=tuple(dict.fromkeys(map(plain, [*names, *self.beside_terms])))
        )

    @property
    def beside_terms(self) -> tuple[str, ...]:
        """Names of the columns that are read and are no terms."""
        return () if self.own.exposure == "none" else (self.own.exposure,)

    def load(self, name: str, layout: Layout | None = None) -> Examples:
        """Return the rows of a source, all of them to train on."""
        by, own = self.settings, self.own
        where, how = (by.data_dir, own.target), (by.download, self.choice)
        try:
            if self.family.classes:
                named = own.classes != "auto" and layout is None
                classes = parse_classes(own.classes) if named else ()
                held = load_labelled(name, *where, classes, layout, *how)
            else:
                held = load(name, *where, how[0], layout, how[1])
        except CellError as error:
            if error.setting != "columns" or own.terms == "all":
                raise
            raise CellError("terms", error.value, error.allowed) from None
        require_columns(self._terms(held.layout), held.layout, held.source)
        self.design(held.layout).require(held.x)
        self._require_targets(held)
        return _whole(held)

    def _require_targets(self, held: Examples) -> None:
        """Raise a SettingError if the targets or the exposure do not fit the family."""
        own, layout, family = self.own, held.layout, f"family={self.own.family}"
        if own.family == "binomial" and len(layout.classes) != 2:
            allowed = f"two for {family}; family=multinomial takes more"
            raise SettingError("target", f"{len(layout.classes)} classes", allowed)
        if own.family == "poisson" and ((held.strata < 0) | held.strata.frac().bool()).any():
            said = "numbers below 0, or with a fraction"
            raise CellError(f"target of {held.source}", said, f"counts for {family}", said)
        if own.exposure != "none":
            if (own.exposure, ()) not in layout.columns:
                numbers = [name for name, levels in layout.columns if not levels]
                allowed = perhaps(own.exposure, held.source, numbers)
                raise CellError("exposure", own.exposure, f"a number that varies: {allowed}")
            if (held.x[:, layout.features.index(own.exposure)] <= 0).any():
                said = "numbers of 0 or less"
                raise CellError(f"exposure of {held.source}", said, "numbers above 0", said)

    def _terms(self, layout: Layout) -> tuple[Term, ...]:
        if self.own.terms != "all":
            return parse(self.own.terms)
        return tuple((Factor(name),) for name, _ in layout.columns if name not in self.beside_terms)

    def design(self, layout: Layout, facts: Facts | None = None) -> Design:
        """Return the columns of the terms, by the facts on references and knots."""
        named, terms, features = (
            _references(self.own.reference),
            self._terms(layout),
            layout.features,
        )
        references: dict[str, str] = {}
        for column, levels in layout.columns:
            if levels and facts:
                shares = [float(facts["mean"][features.index(f"{column}={v}")]) for v in levels]
                references[column] = levels[int(np.argmax(shares))]
            elif levels:
                references[column] = levels[0]
            if column in named and named[column] not in levels:
                allowed = f"a level of {column}: {listed(levels)}"
                raise CellError("reference", f"{column}={named[column]}", allowed)
        for column in named:
            if column not in references:
                raise CellError("reference", column, f"a column of levels: {listed([*references])}")
        bent = dict.fromkeys(f for term in terms for f in term if f.how == "spline")
        knots: dict[Factor, Tensor] = {}
        if facts:
            parts = facts["knots"].split([len(factor.quantiles) for factor in bent])
            knots = dict(zip(bent, parts, strict=True))
        return Design(terms, layout, {**references, **named}, knots)

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return zeros in place of prepared rows: the time they take is the same."""
        x, y = deal.training_data(self.held, self.deal)
        rows = torch.zeros(min(count, len(x)), len(self.design(self.signature()).names))
        y = y[:count] if self.family.classes else torch.stack([y[:count], torch.ones(len(rows))], 1)
        return rows, y, len(x)

    # At a client

    def disclosure(self, site: Site) -> Limits:
        """Return what a site tells of its rows at most: the stricter of its own and the run's."""
        return (site.limits or Limits()).stricter(**self.own.limits)

    def terms_of(self, signature: Layout) -> int:
        """Return how many columns the terms have, at most as many as the rows."""
        return min(len(self.design(signature).names), len(signature.features))

    def is_of_terms(self, question: str, asked: Mapping[str, Any]) -> bool:
        """Return whether an answer has sums or products of the terms' columns, or of scores."""
        return question in (_sums.MOMENTS, _sandwich.NAME) or "all-knots" in asked

    def facts_of(self, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Facts:
        """Return the facts of a question about the terms' columns."""
        if "all-knots" not in asked:
            return {}
        return {name: torch.tensor(asked[f"all-{name}"]).double() for name in ("mean", "knots")}

    def points(self, facts: Facts) -> dict[str, list[float]]:
        """Return the knots of each column; a SettingError if they are not in order."""
        found: dict[str, list[float]] = {}
        if not len(facts.get("knots", ())):
            return found
        for factor, knots in self.design(self.signature(), facts).knots.items():
            if not (knots.diff() > 0).all():
                said = "a spline with knots out of order"
                raise SettingError("terms", said, "knots that rise")
            found.setdefault(KNOTS + factor.column, []).extend(knots.tolist())
        return found

    def fewest_shown(self, held: Shard, points: Mapping[str, Sequence[float]]) -> int:
        """Return the fewest rows that splines show alone: the server sets the knots."""
        features = self.signature().features
        rows = [
            count
            for name in self.signature().features
            if len(knots := points.get(KNOTS + name, ()))
            for count in shown_by_knots(
                held.x[:, features.index(name)].double(), torch.tensor(knots).double()
            )
        ]
        return min((count for count in rows if count), default=0)

    def require_told(
        self,
        held: Shard,
        facts: Facts,
        points: Mapping[str, Sequence[float]],
        least: int,
        cell: int,
    ) -> None:
        """Raise a SettingError if the server's facts would show few rows."""
        super().require_told(held, facts, points, least, cell)
        if least and "turn" in facts:
            self._require_digits(held.x, facts)

    def _require_digits(self, x: Tensor, facts: Facts) -> None:
        columns, centre = self.design(self.signature(), facts).columns(x), facts["centre"].double()
        require_digits(columns, centre, facts["turn"].double().view(columns.shape[1], -1))

    def require_weight(
        self, held: Shard, shard: Shard, model: Mapping[str, Tensor], least: int
    ) -> None:
        """Raise a SettingError if a model leaves weight to few of a site's rows, or of a level's.

        So does a point at which the probabilities of all others are 0 or 1.
        """
        if least:
            without = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
            usual, there = self.weights(shard, without)
            require_weight(self.weights(shard, model)[0], usual, there, self._sets(held.x), least)

    def _sets(self, x: Tensor) -> np.ndarray:
        """Return sets of rows, (N, J), in each of which many have to have weight."""
        terms, layout = self._terms(self.signature()), self.signature()
        return np.c_[marks(terms, layout, x), stretches(terms, layout, x)]

    def weights(self, shard: Shard, model: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the weights of rows in each kind of sums, and which have a part, (N, K)."""
        nll, names = self.loss({}), last_layer(model)
        x = torch.cat([shard.x.double(), torch.ones(len(shard.x), len(names) - 1)], 1)
        if isinstance(nll, Integrated):
            nll = Profiled(nll.nll, float(model["intercepts.log_std"].double().exp()))
        found = row_weights(nll, x @ matrix(model, names).T, shard.y)
        return found, torch.ones_like(found, dtype=torch.bool)

    def shard(self, site: Site, signature: Layout) -> Shard:
        """Return a site's rows; of its own rows without those that would be known by its answers.

        These have rare levels, or differ from the rows of an earlier answer, see
        `fedbary.runs.answered`.
        """
        held = super().shard(site, signature)
        if site.partition is not None:
            return held
        limits, columns = self.disclosure(site), held.x.shape[1]
        shown, found = self._common(site, held.x, signature, limits.min_cell)
        if self._remembers(site) and found.sum() >= fewest(limits, columns):
            rows = self.hashes(site)[self.load(site.data_path, signature).places]
            asked = Asked(rows, shown, self._outcomes_of(held), columns, self.own.terms)
            kept = kept_apart(user_path(site.state_path), asked, limits)
            return replace(self._of_rows(held, kept.rows, limits.min_cell), bear=kept.bear)
        return self._of_rows(held, np.flatnonzero(found), limits.min_cell)

    def _remembers(self, site: Site) -> bool:
        """Return whether a site keeps which rows it has answered from."""
        return bool(self.disclosure(site).budget and site.state_path)

    def _common(
        self, site: Site, x: Tensor, signature: Layout, least: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the marks of rows, (N, J), and which rows stay if each mark has `least`, (N,).

        Functions of a column count over all runs.
        """
        terms = self._terms(signature)
        earlier = functions_of(terms)
        if self._remembers(site):
            with of_all_runs(user_path(site.state_path), earlier) as every:
                earlier = every
        shown = marks(terms, signature, x, earlier)
        return shown, in_common(shown, np.ones(len(shown), dtype=bool), least)

    def _outcomes_of(self, held: Shard) -> np.ndarray:
        """Return the rows of each class, (N, C); of numbers none."""
        classes = held.y.unique() if self.family.classes else held.y[:0]
        return (held.y[:, None] == classes).numpy()

    def _of_rows(self, held: Shard, numbers: np.ndarray, least: int) -> Shard:
        """Return some rows of a site; a SettingError if a class or event has too few."""
        kept = torch.from_numpy(numbers)
        groups = None if held.groups is None else held.groups[kept]
        held = replace(held, x=held.x[kept], y=held.y[kept], groups=groups)
        if not len(held.y):
            allowed = "more of each level: each row has a level, or a value, that too few have"
            raise SettingError("rows", "none that may be told of", allowed)
        few = [count for count in self._cells(held).tolist() if 0 < count < least]
        if few:
            allowed = f"{least} rows or more, of each class or event, or none"
            raise SettingError("rows", f"{min(few, default=0):.0f}", allowed)
        return held

    def _cells(self, held: Shard) -> Tensor:
        """Return a site's rows of each class; empty where there are none."""
        return torch.bincount(held.y) if self.family.classes else torch.zeros(0)

    def notes(self) -> tuple[str, ...]:
        """Return lines on the settings' table."""
        return (*super().notes(), *self._of_names(self.held.groups))

    def _of_names(self, groups: Tensor | None) -> tuple[str, ...]:
        """Return a line if several rows have one name, and count as if each were alone."""
        said = "Intervals take each row alone: they are too narrow if rows of one name are alike"
        one = f"{said}; errors=robust takes the rows of a name together"
        return () if groups is None or self.own.errors != "model" else (one,)

    def site_notes(self, site: Site, signature: Layout) -> tuple[str, ...]:
        """Return lines on a site's own table."""
        notes = super().site_notes(site, signature)
        if site.partition is not None:
            return notes
        limits, table = self.disclosure(site), self.load(site.data_path, signature)
        notes = (*notes, *self._of_names(table.groups))
        least = Sent().least(limits) if self._remembers(site) else limits.min_cell
        gone = int((~self._common(site, table.x, signature, least)[1]).sum())
        said = f"{gone} rows hold a level, or a value, of fewer than {least} rows: left out"
        notes = (*notes, said) if gone else notes
        apart = len(table.x) - gone - len(self.shard(site, signature).y)
        return (*notes, f"{apart} {TOO_ALIKE}") if apart else notes

    def make_model(self, signature: Layout) -> nn.Module:
        """Return a linear layer of zeros; without a common intercept it has no bias."""
        outputs = max(1, len(signature.classes) - 1)
        layer = nn.Linear(len(self.design(signature).names), outputs, bias=self.has_bias)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        random = {"intercepts": Intercepts()} if self.own.intercepts == "random" else {}
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **random, output=layer))

    def loss(self, facts: Facts) -> Loss:
        """Return the family's mean negative log-likelihood; a site deals with its own intercept."""
        nll = self.family.nll
        if self.own.intercepts == "site":
            return Profiled(nll, self.settings.model_dump()["prior_std"])
        return Integrated(nll) if self.own.intercepts == "random" else nll

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with the columns of the terms, uncorrelated, and targets with offsets."""
        x, held_out = (self.taken(part, facts) for part in (shard.x, shard.x_held_out))
        y, y_held_out = (
            self._targets(*part, facts)
            for part in ((shard.x, shard.y), (shard.x_held_out, shard.y_held_out))
        )
        return Shard(x, y, held_out, y_held_out, shard.independent, shard.groups)

    def label_counts(self, shard: Shard, signature: Layout) -> list[int]:
        """Return a shard's number of rows of each class; nothing for numbers."""
        if not signature.classes:
            return []
        counts: list[int] = torch.bincount(shard.y, minlength=len(signature.classes)).tolist()
        return counts

    def taken(self, x: Tensor, facts: Facts) -> Tensor:
        """Return the columns that the layer sees, (N, P) float32, of rows in their own units."""
        return self._taking(facts)(x)

    def _taking(self, facts: Facts) -> Callable[[Tensor], Tensor]:
        design = self.design(self.signature(), facts)
        turn, centre = facts["turn"].view(len(design.names), -1), facts["centre"]
        return lambda x: ((design.columns(x) - centre) @ turn.T).float()

    def _targets(self, x: Tensor, y: Tensor, facts: Facts) -> Tensor:
        if self.own.family == "gaussian":
            z = (y - facts["mean"][-1]) / facts["std"][-1]
            return torch.stack([z, facts["noise_std"].expand(len(z))], 1)
        if self.own.family == "poisson":
            return torch.stack([y, self._exposure(x).log()], 1)
        return y

    def _exposure(self, x: Tensor) -> Tensor:
        if self.own.exposure == "none":
            return torch.ones_like(x[:, 0])
        return x[:, self.signature().features.index(self.own.exposure)]

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with sums of columns and targets, or of the terms' columns and products.

        A further question is how many rows equal another: 0 if fewer than five do, or by chance.
        The last one is about products of scores.
        """
        if question == _sandwich.NAME:
            return _sandwich.answer(shard, self.loss({}), tensors, self.own.errors == "site")
        if question == EQUAL:
            widths = [max(1, len(levels)) for _, levels in self.signature().columns]
            parts = shard.x.split(widths, 1)
            cells = [part.argmax(1) if part.shape[1] > 1 else part[:, 0] for part in parts]
            many = copies(torch.stack([each.double() for each in (*cells, shard.y)], 1))
            return {"count": len(shard.y), "equal": many * (many >= FEWEST_EQUAL)}
        if question not in (_sums.NAME, _sums.MOMENTS):
            return super().answer(question, shard, asked, tensors)
        layout = self.signature()
        if question == _sums.NAME and "all-knots" not in asked:
            y = one_hot(shard.y, len(layout.classes)) if layout.classes else shard.y[:, None]
            return _sums.answer(torch.cat([shard.x, y], 1), asked)
        columns = self.design(layout, self.facts_of(asked, {})).columns(shard.x)
        if question == _sums.NAME:
            return _sums.answer(columns, asked)
        if self.own.family == "gaussian":
            columns = torch.cat([columns, shard.y[:, None]], 1)
        return _sums.answer_moments(torch.cat([columns, torch.ones_like(columns[:, :1])], 1), asked)

    # At the server

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for sums of the columns, a spline's quantiles, and sums of the terms' products.

        Raises
        ------
        SettingError
            If a column of the terms has no spread, is a linear combination of others, or there are
            too few events for so many columns.
        """
        layout = self.signature()
        width, classes = len(layout.features), len(layout.classes)
        compared = layout.features if classes else (*layout.features, self.own.target)
        beside = functools.partial(self.beside, columns=compared)
        sums = yield from _sums.ask(width + max(1, classes), classes, beside=beside)
        scale = Standardiser.from_sums(sums)
        facts = {"mean": scale.mean, "std": scale.std}
        if classes:
            facts = {name: fact[:width] for name, fact in facts.items()}
            facts["class_rows"] = (sums.mean[width:].clamp(0, 1) * sums.count).round()
        else:
            facts["rows"] = torch.tensor([sums.count, sums.count * float(sums.mean[-1])])
        self._require_events(facts)
        facts["knots"] = yield from self._ask_knots(sums)
        also = {f"all-{name}": facts[name].tolist() for name in ("mean", "knots")}
        design = self.design(layout, facts)
        facts["equal"] = yield from self._ask_equal()
        of_terms = yield from _sums.ask(len(design.names), also=also)
        self._require_spread(design, Standardiser.from_sums(of_terms).std, facts)
        return {**facts, **(yield from self._ask_turn(design, of_terms, facts, also))}

    def events(self, facts: Facts) -> tuple[float, str, int]:
        """Return the number of events, what they are, and the columns that they must tell."""
        columns = len(self.design(self.signature()).names)
        if "class_rows" in facts:
            return float(facts["class_rows"].min()), "rows of the rarest class", columns
        counts = self.own.family == "poisson"
        return float(facts["rows"][int(counts)]), "events" if counts else "rows", columns

    def _require_events(self, facts: Facts) -> None:
        events, called, columns = self.events(facts)
        if events < FEWEST_EVENTS * columns:
            most = int(events / FEWEST_EVENTS)
            allowed = f"at most {most} columns, for {FEWEST_EVENTS} {called} each"
            raise SettingError("terms", f"{columns} columns and {events:.0f} {called}", allowed)

    def _ask_equal(self) -> Dialogue[Tensor]:
        """Ask how many rows equal another of their site; return the sum, (1,)."""

        def read(metrics: Mapping[str, Any], most: int) -> int:
            rows, equal = _sums.count(metrics, most), int(metrics["equal"])
            if not 0 <= equal < rows:
                raise ValueError(f"it claims that {equal} of {rows} rows equal another")
            return equal

        answers = yield Question(EQUAL, read, {})
        return torch.tensor([float(sum(answers))], dtype=torch.float64)

    def _equal(self, facts: Facts) -> tuple[str, ...]:
        many = int(facts.get("equal", torch.zeros(1)))
        said = f"{many} rows equal another of their site. Intervals take each row as one more"
        return (f"{said}: they are too narrow if it is a copy",) if many else ()

    def _ask_knots(self, sums: Sums) -> Dialogue[Tensor]:
        """Ask for the quantiles of all splines' columns, one after the other."""
        layout = self.signature()
        terms = self.design(layout).terms
        bent = dict.fromkeys(f for term in terms for f in term if f.how == "spline")
        pairs = [(layout.features.index(f.column), q) for f in bent for q in f.quantiles]
        if not pairs:
            return torch.zeros(0, dtype=torch.float64)
        columns, at = zip(*pairs, strict=True)
        found = yield from _sums.ask_quantiles(sums, torch.tensor(at), columns)
        parts = found.split([len(factor.quantiles) for factor in bent])
        for factor, knots in zip(bent, parts, strict=True):
            apart = knots.diff() > 1e-3 * (knots[-1] - knots[0])
            if not apart.all() or knots[-1] <= knots[0]:
                allowed = f"fewer columns than {factor.number}, or {factor.column} alone"
                raise SettingError("terms", f"{factor.name}, whose knots coincide", allowed)
        return found

    def _require_spread(self, design: Design, std: Tensor, facts: Facts) -> None:
        for name, term, one in zip(design.names, design.terms_of_columns, std, strict=True):
            is_level = any(dict(design.layout.columns)[factor.column] for factor in term)
            if one.isinf() and not is_level:
                raise SettingError("terms", f"{name}, the same in all rows", "columns that vary")

    def _ask_turn(
        self, design: Design, sums: Sums, facts: Facts, also: Mapping[str, Any]
    ) -> Dialogue[dict[str, Tensor]]:
        """Ask for products of columns; return what makes these uncorrelated, and a noise."""
        width, numbers = len(design.names), self.own.family == "gaussian"
        scale = Standardiser.from_sums(sums)
        ends = [(facts["mean"][-1], facts["std"][-1])] if numbers else []
        mean, std = (torch.tensor(end).double() for end in zip(*ends, (0.0, 1.0), strict=True))
        by = Standardiser(torch.cat([scale.mean, mean]), torch.cat([scale.std, std]))
        sites = yield from _sums.ask_moments_of_sites(by, sums.count, also)
        rows, products = sum(count for count, _ in sites), _within(sites)
        inside = products[:width, :width].diagonal()
        if self.own.intercepts != "site":
            counts, moments = zip(*sites, strict=True)
            sites = [(sum(counts), functools.reduce(operator.add, moments))]
            products = _within(sites)
        turn, alive = self._turn(design, products[:width, :width], scale.std)
        found = {"centre": scale.mean, "turn": turn.flatten()}
        if self.own.intercepts == "random":
            found["of_sites"] = (inside <= RANK).double()
        if numbers:
            turned = turn * scale.std.where(alive, 0)  # of standardised columns
            fitted = turned @ products[:width, -1].where(alive, 0)
            left = float(products[-1, -1] - fitted.square().sum()) * rows
            degrees = rows - int(alive.sum()) - len(sites)
            if degrees < 1 or left <= RANK * rows:
                raise SettingError("terms", f"{width} columns", "fewer: no noise is left in rows")
            found["noise_std"] = torch.tensor([math.sqrt(left / degrees)], dtype=torch.float64)
            found["degrees"] = torch.tensor([float(degrees)], dtype=torch.float64)
        return found

    def _turn(self, design: Design, products: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrix that makes columns uncorrelated, and which columns have rows.

        It is L⁻¹/s with the correlations L Lᵀ: each column is taken less what those before say.
        """
        names, alive = design.names, std.isfinite()
        spread = products.diagonal().clamp_min(0).sqrt()
        if (still := (alive & (spread.square() <= RANK)).nonzero()).numel():
            said = f"{names[int(still[0])]}, the same in all rows of each site"
            raise SettingError("terms", said, "columns that vary at a site; or intercepts=common")
        kept = [k for k in range(len(names)) if alive[k]]
        held = (products / spread[:, None] / spread)[kept][:, kept]
        for place, before, weights in dependent(held, RANK):
            parts = [names[kept[k]] for k, w in zip(before, weights, strict=True) if abs(w) > 1e-3]
            said = f"{names[kept[place]]}, a linear combination of {listed(parts[:8])}"
            raise SettingError("terms", said, "terms without one of these")
        root = torch.linalg.cholesky(held)
        turn = torch.zeros_like(products)
        inverse = torch.linalg.inv(root) / (spread * std)[kept]
        turn[torch.tensor(kept)[:, None], torch.tensor(kept)] = inverse
        return turn, alive

    def idle(self, facts: Facts) -> tuple[str, ...]:
        """Return lines on columns of levels without rows, and on few events."""
        if not facts:
            return ()
        design, (events, called, columns) = (
            self.design(self.signature(), facts),
            self.events(facts),
        )
        gone = [n for n, held in zip(design.names, self._alive(facts), strict=True) if not held]
        lines = [f"no row that counts has {listed(gone)}: no coefficient"] if gone else []
        if events < FEW_EVENTS * columns:
            lines.append(f"{events:.0f} {called} for {columns} columns: intervals are too narrow")
        return (*lines, *self._equal(facts))

    def _alive(self, facts: Facts) -> Tensor:
        turn = facts["turn"]
        return turn.view(math.isqrt(len(turn)), -1).any(0)

    def ask_last(self, model: nn.Module, facts: Facts) -> Dialogue[dict[str, Tensor]]:
        """Ask for products of scores at the mode, if standard errors are made of them."""
        if self.own.errors == "model":
            return {}
        state, (every, events) = model.state_dict(), self._counted(facts)

        def most(rows: int) -> float:
            pulls = rows if self.family.classes else (2 * float(events.sum())) ** 2
            pulls = every / float(facts["noise_std"]) ** 2 if "noise_std" in facts else pulls
            return _bounds.product_of_scores(pulls, every)

        return (yield from _sandwich.ask(state, len(vector_of(state)), most))

    @property
    def _asks_all(self) -> bool:
        by = self.settings
        return by.mode == "rounds" and by.participants == by.clients

    def near(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the last step was below 0.1 standard errors.

        A site that may answer once expands its likelihood there, where it is nearly the mode.
        Masked sums are of all sites in each round.
        """
        by_sites = self._asks_all and not dict(self.settings).get("masked", False)
        return not by_sites or _step(lines[-1]) < schema.NEAR

    def settled(self, lines: Sequence[Mapping[str, Any]]) -> str:
        """Return why rounds may end: one more has followed a step below 1e-3 standard errors.

        In both each site had answered that was asked, and none for the first time in the last. A
        site that has not answered in the last three rounds is lost, and its last factor stays.
        """
        none: set[str] = set()
        heard = [{each["site"] for each in line.get(schema.CLIENTS, ())} for line in lines]
        there = none.union(*heard[-LOST:])
        asked = [there - {*line.get(schema.UNASKED, ())} for line in lines]
        if not self._asks_all or heard[-2:] != asked[-2:] or heard[-1] - none.union(*heard[:-1]):
            return ""
        step = _step(lines[-2:][0])
        return f"a step was {step:.1e} standard errors" if step < schema.SETTLED else ""

    def doubt(self, facts: Facts, server: Server, reply: Reply) -> str:
        """Return why no rows have a site's curvature, slope and mode; "": some may."""
        by, method = dict(self.settings), method_of(self.settings)
        if isinstance(method, Newton) and (method.masked or (said := method.fault(server, reply))):
            return "" if method.masked else f"no rows have such a Hessian: {said}"
        whole = by["start_from"] == "none" and by.get("kl_weight", 1) == 1
        if not (by["mode"] == "rounds" and whole and isinstance(method, Newton | PVI)):
            return ""
        claim, every = method.claimed(server, reply), self._counted(facts)[0]
        rows = min(reply.weight, every) if server.counted else every
        if self._most(facts, claim, rows, every).allow(claim):
            return ""
        return f"no {rows:.0f} rows of {every:.0f} have such a curvature or slope"

    def _most(self, facts: Facts, claim: Claim, rows: float, every: float) -> Most:
        """Return the most that some of all rows can say."""
        if self.family.classes:
            return _bounds.of_classes(rows, every, len(facts["class_rows"]))
        usual = torch.zeros(1, len(self._alive(facts)) + self.has_bias, dtype=torch.float64)
        if self.own.family == "gaussian":
            return _bounds.of_numbers(every, float(facts["noise_std"]), claim.away(usual))
        events, exposure = float(facts["rows"][1]), every
        if self.own.exposure != "none":
            place = self.signature().features.index(self.own.exposure)
            exposure = every * float(facts["mean"][place])
        log_rate = math.log(events / exposure)
        if self.has_bias:
            usual[0, -1] = log_rate
        return _bounds.of_counts(every, events, log_rate, claim.away(usual))

    def contrasts(self, signature: Layout, facts: Facts) -> Contrasts:
        """Return coefficients of the terms' own columns, against references."""
        design, alive = self.design(signature, facts), self._alive(facts)
        turn = facts["turn"].view(len(alive), -1).double()
        kept = alive.nonzero()[:, 0].tolist()
        columns, terms = turn.T[alive], [design.names[k] for k in kept]
        units = [self._unit(design, design.terms_of_columns[k]) for k in kept]
        if self.has_bias:
            bias = torch.zeros(len(columns) + 1, 1, dtype=torch.float64)
            bias[-1] = 1
            columns = torch.cat([columns, -(turn @ facts["centre"].double())[None]])
            columns = torch.cat([columns, bias], 1)
            terms, units = [*terms, INTERCEPT], [*units, ""]
        outcomes, rows, events = self._outcomes(signature), *self._counted(facts)
        outputs = torch.eye(len(outcomes), dtype=torch.float64)
        offset = torch.zeros(len(outcomes), len(terms), dtype=torch.float64)
        if self.own.family == "gaussian":
            outputs = outputs * facts["std"][-1]
            if self.has_bias:
                offset[0, -1] = facts["mean"][-1]
        alike = facts.get("of_sites", torch.zeros(len(alive)))
        of_sites = [design.names[k] for k in kept if alike[k]]
        shares = torch.cat([facts["centre"][alive], torch.ones(len(terms) - len(kept))])
        of_levels = are_levels(units)
        return Contrasts(
            tuple(terms),
            tuple(units),
            outcomes,
            columns,
            outputs,
            self.family.link,
            offset,
            (rows * torch.where(of_levels, shares, 1.0)).round().expand_as(offset),
            events[:, None].where(~of_levels, torch.nan),
            float(facts["degrees"][0]) if "degrees" in facts else math.inf,
            self._equal(facts),
            (*of_sites, INTERCEPT) if self.own.intercepts == "random" else (),
        )

    def _counted(self, facts: Facts) -> tuple[float, Tensor]:
        """Return the rows of all sites, and the events of each outcome."""
        if "class_rows" in facts:
            return float(facts["class_rows"].sum()), facts["class_rows"][1:].double()
        rows, total = facts["rows"].double()
        counts = self.own.family == "poisson"
        return float(rows), total[None] if counts else torch.full((1,), torch.nan).double()

    def _unit(self, design: Design, term: Term) -> str:
        against = [design.references[f.column] for f in term if f.column in design.references]
        return f"against {':'.join(against)}" if len(against) == len(term) else NUMBER

    def _outcomes(self, signature: Layout) -> tuple[str, ...]:
        if not signature.classes:
            return (self.own.target,)
        first, *others = signature.classes
        return tuple(f"{name} against {first}" for name in others)

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Return the step of the round in standard errors, and the NLL of any validation rows."""
        step = _step(outcome.told)
        x, y = deal.evaluation_data(self.held, self.deal)
        if not (self.predicts and len(y)):
            return Scored({schema.STEP: step, "nll": math.nan})
        found = self.predict(outcome, x, facts, 0)
        return Scored({schema.STEP: step, "nll": self.judged(found, y)["nll"]}, {}, None)

    def said(self, scores: Mapping[str, float]) -> str:
        """Return the step, and the NLL where there is one."""
        step, nll = scores[schema.STEP], scores["nll"]
        scored = "" if math.isnan(nll) else f"  NLL {nll:z.4f}"
        return f"step {step:.1e} standard errors{scored}" if step == step else "not scored, no step"

    # Predictions

    def require_predicting(self) -> None:
        """Raise a SettingError if each site has an intercept of its own."""
        if not self.predicts:
            allowed = "common: a site's own intercept never leaves it, so others cannot predict"
            raise SettingError("intercepts", self.own.intercepts, allowed)

    def predict(
        self, outcome: Outcome, x: Tensor, facts: Facts, seed: int
    ) -> Prediction | Forecast:
        """Predict rows in their own units, by the mode; counts for the rows' own exposure."""
        return self._predicting(outcome, facts, seed)(x)

    def _predicting(
        self, outcome: Outcome, facts: Facts, seed: int
    ) -> Callable[[Tensor], Prediction | Forecast]:
        taking = self._taking(facts)

        def predicted(x: Tensor) -> Prediction | Forecast:
            found = self.predicted(outcome.model, taking(x), facts, seed, outcome.predictive)
            if isinstance(found, Prediction) or self.own.exposure == "none":
                return found
            mean = found.mean * self._exposure(x)
            return Forecast(mean, found.epistemic, mean)

        return predicted

    def predicted(
        self, model: nn.Module, x: Tensor, facts: Facts, seed: int, by: Predictive
    ) -> Prediction | Forecast:
        """Predict rows as the layer sees them: classes, or a number for an exposure of 1."""
        self.require_predicting()
        with torch.no_grad():
            outputs = model.eval()(x).double()
        if self.family.classes:
            probs = with_first(outputs).softmax(1)
            return Prediction(probs, torch.special.entr(probs).sum(1), networks=1)
        mean, none = outputs[:, 0], torch.zeros_like(outputs[:, 0])
        if self.own.family == "poisson":
            return Forecast(mean.exp(), none, mean.exp())
        noise = (facts["noise_std"] * facts["std"][-1]).square().expand_as(mean)
        return Forecast(facts["mean"][-1] + facts["std"][-1] * mean, none, noise)

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return `predict` for a batch."""
        self.require_predicting()
        predicting = self._predicting(outcome, facts, seed)

        def answered(x: Tensor) -> dict[str, Tensor]:
            found = predicting(x)
            if isinstance(found, Prediction):
                held = {"probs": found.probs, "entropy": found.entropy}
                return {**held, "epistemic": found.epistemic, "networks": found.probs[None]}
            return {"mean": found.mean, "var": found.var, "epistemic": found.epistemic}

        return answered

    def answers(
        self, prediction: Prediction | Forecast, signature: Layout
    ) -> dict[str, np.ndarray]:
        """Return the classes' probabilities, or means and standard deviations."""
        if isinstance(prediction, Forecast):
            return {"mean": prediction.mean.numpy(), "std": prediction.var.sqrt().numpy()}
        probs, names = prediction.probs.numpy(), signature.classes
        likely = np.array(names, dtype=object)[probs.argmax(1)]
        return {"class": likely, **{f"p({name})": probs[:, k] for k, name in enumerate(names)}}

    def judged(self, prediction: Prediction | Forecast, y: Tensor) -> dict[str, float]:
        """Return the NLL; of classes accuracy, ECE and Brier score too, of numbers the RMSE."""
        if isinstance(prediction, Prediction):
            return evaluate(prediction.probs, y)
        mean, var = prediction.mean, prediction.var
        law = torch.distributions.Normal(mean, var.sqrt())
        if self.own.family == "poisson":
            law = torch.distributions.Poisson(mean)  # type: ignore[assignment]
        rmse = (y - mean).square().mean().sqrt()
        return {"nll": -float(law.log_prob(y).mean()), "rmse": float(rmse)}


def _within(sites: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Return the mean over rows of products of columns less their sites' means.

    A site is its number of rows and Σ z zᵀ, whose last column is 1.
    """
    within = [m[:-1, :-1] - m[:-1, -1:] @ m[-1:, :-1] / count for count, m in sites]
    return functools.reduce(operator.add, within) / sum(count for count, _ in sites)


def _step(told: Mapping[str, Any]) -> float:
    """Return the step of a round; NaN, which a line holds as none, if it had none."""
    step = told.get(schema.STEP)
    return math.nan if step is None else float(step)


_PAIR = re.compile(r"(?:`([^`]+)`|([^\s=`]+))=(?:`([^`]+)`|(\S+))(?:\s+|$)")


def _references(text: str) -> dict[str, str]:
    """Return the reference of each column that a text names."""
    found, place = dict[str, str](), len(text) - len(text.lstrip())
    while text != "auto" and place < len(text):
        if (match := _PAIR.match(text, place)) is None:
            allowed = "auto, or column=level with blanks between, such as sex=male stage=I"
            raise SettingError("reference", text[place:], allowed)
        found[match[1] or match[2]] = match[3] or match[4]
        place = match.end()
    return found


def copies(rows: Tensor) -> int:
    """Return how many rows (N, C) equal an earlier one; 0 if below a tenth, or as by chance.

    If columns were independent, a row would equal one of the N − 1 others with probability 1 − (1 −
    Π_c p_c)^(N − 1). Here p_c is the share of its value in column c among these. Columns that
    depend on each other make more rows equal.
    """
    others, share = max(1, len(rows) - 1), torch.ones(len(rows)).double()
    for column in rows.T:
        _, place, count = column.unique(return_inverse=True, return_counts=True)
        share *= (count[place] - 1) / others
    rate = float(-torch.expm1(others * torch.log1p(-share.clamp_max(1 - 1e-9))).mean())
    spread = 3 * math.sqrt(rate * (1 - rate) * len(rows))
    found = len(rows) - len(rows.unique(dim=0))
    return found if found > max(rate * len(rows) + spread, len(rows) / 10) else 0


@functools.lru_cache(maxsize=8)
def _whole(held: Examples) -> Examples:
    """Return rows all of which are trained on."""
    return replace(held, splits=(Split(torch.arange(len(held.x)), torch.zeros(0).long()),))

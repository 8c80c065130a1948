"""Coefficients of a linear run with their intervals, and how its sites differ.

With w = Q v, J = Rᵀ Qᵀ and orthonormal Q, coefficients are β = Rᵀ v + c. Prior and sites are
factors of v. Site k has the precision P_k and, at the mode v, the slope r_k:

    Λ = λ + Σ_k P_k,    Var β = Rᵀ Λ⁻¹ R,    own estimate  β − Rᵀ P_k⁻¹ r_k,
    without site k      β + Rᵀ (Λ − P_k)⁻¹ r_k,    shift by the prior  −Rᵀ Λ⁻¹ λ v.

A site's own estimate is a Newton step from the mode, with the factor that it found alone where the
run holds that. It is left out where the site's rows do not tell it. Such estimates are biased at
rare levels: there one step from the mode stands for them, see `Factors.compared`. With K of them,
b_k, their standard deviations s_k and u_k = s_k⁻²,

    Q = Σ u_k (b_k − b̄)²,    I² = max(0, 1 − (K − 1)/Q),
    τ² = max(0, Q − K + 1)/(Σ u − Σ u²/Σ u),

and with u_k = 1/(s_k² + τ²) the mean m = Σ u b/Σ u has the Hartung-Knapp interval m ± t_{K−1} h,

    h² = max(1, Σ u_k (b_k − m)²/(K − 1))/Σ u,

never below that of DerSimonian and Laird. A new site lies in m ± t_{K−2} √(τ² + h²). The slopes
r_k tell whether sites differ: small sites tell it better so, see `Factors.p_differ`.

References: DerSimonian and Laird 1986; Hartung and Knapp 2001; Röver, Knapp and Friede 2015, for
the maximum; Higgins, Thompson and Spiegelhalter 2009, for the prediction; Yusuf, Peto et al. 1985
and Bradburn et al. 2007, for one step at rare levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import chdtrc, stdtr, stdtrit

from fedbary.errors import SettingError
from fedbary.figures.forest import Forest, forest
from fedbary.tasks import NUMBER, Contrasts, are_levels
from fedbary.texts import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

UNTOLD = 1e-4
"""Fraction of a site's largest share of the information below which a share is rounding."""

STEP_ERROR = 0.25
"""Largest error of a Newton step from the mode, see `Factors._error`; true ones were below 0.1."""

COLLINEAR = 1e-6
"""Fraction of the largest eigenvalue of a precision below which an eigenvalue is rounding."""

DIFFER = 0.05
"""Value of a score test's p below which sites differ."""

RARE = 3.0
"""Information of half the sites below which a level is rare, about the events that they expect."""

FEWEST = 5
"""Fewest rows that the table names; a smaller number is ``<5``."""

FAR = 10.0
"""Size of a standardised coefficient from which it is separation's, and not the data's."""

SHIFTED = 0.25
"""Shift by the prior, in standard deviations, from which it holds an estimate."""

RATIOS = {"odds": "odds ratio", "rate": "rate ratio", "hazard": "hazard ratio"}


@dataclass(frozen=True, eq=False)
class Site:
    """A site's factor.

    Attributes
    ----------
    rows : float
        Number of its rows.
    precision, slope : ndarray
        P_k, (p, p), and r_k, (p,).
    spread : ndarray or float
        Standard deviation of its own noise over that of all sites, for each coefficient.
    alone : tuple of ndarray or None
        Precision and slope of the factor that it found without the others; None if the run holds
        none, or one factor is right everywhere.
    """

    rows: float
    precision: np.ndarray
    slope: np.ndarray
    spread: np.ndarray | float = 1.0
    alone: tuple[np.ndarray, np.ndarray] | None = None


class Sandwich(NamedTuple):
    """Products of scores, for standard errors that hold where the model is wrong.

    Attributes
    ----------
    products : ndarray
        B, the sum of products of the clusters' scores by v, (p, p), times a correction.
    degrees : float
        Degrees of freedom of the intervals' t; infinite for a normal.
    words : str
        Words on the clusters, for the title.
    """

    products: np.ndarray
    degrees: float
    words: str


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of a posterior of coefficients.

    Attributes
    ----------
    contrasts : Contrasts
        Meaning of the p coefficients.
    turn, mode : ndarray
        Rᵀ, (p, p), and v, (p,).
    prior_precision : float
        λ; 0 for a flat prior.
    sites : mapping of str to Site
        Each site's factor by its name; empty where the run holds no more than their sum.
    degrees : float or ndarray
        Degrees of freedom of the intervals' t, (p,) or of all; infinite for a normal.
    summed : ndarray or None
        Σ P_k where the run holds no site's own.
    sandwich : Sandwich or None
        Products of scores, which the shown standard errors take; None: they take the precision.
    unshared : frozenset of str
        Names of the sites whose own estimates are not shown.
    """

    contrasts: Contrasts
    turn: np.ndarray
    mode: np.ndarray
    prior_precision: float
    sites: Mapping[str, Site]
    degrees: float | np.ndarray = np.inf
    summed: np.ndarray | None = None
    sandwich: Sandwich | None = None
    unshared: frozenset[str] = frozenset()

    @property
    def shown(self) -> list[str]:
        """Names of the sites whose own estimates are shown."""
        return [name for name in self.sites if name not in self.unshared]

    @cached_property
    def precision(self) -> np.ndarray:
        """Λ, (p, p)."""
        total = self.prior_precision * np.eye(len(self.mode))
        held = [site.precision for site in self.sites.values()]
        return total + (sum(held) if self.summed is None else self.summed)

    @cached_property
    def root(self) -> np.ndarray:
        """L with L Lᵀ = Λ⁻¹, (p, p).

        Raises
        ------
        SettingError
            If columns are combinations of others, or a column has no row that tells it.
        """
        values, vectors = np.linalg.eigh(self.precision)
        if values[0] <= COLLINEAR * values[-1] and not self.prior_precision:
            direction = self.turn @ vectors[:, 0] / np.linalg.norm(self.turn, axis=1)
            names = np.array(self.contrasts.terms * len(self.contrasts.outcomes))
            named = dict.fromkeys(names[np.abs(direction) > 0.1 * np.abs(direction).max()])
            allowed = "columns of which none is a combination of others: leave_out= one of them"
            raise SettingError("columns", listed(named), allowed)
        return np.asarray(vectors / np.sqrt(values))

    @property
    def estimates(self) -> np.ndarray:
        """β, (p,)."""
        return self.turn @ self.mode + self.contrasts.offset.flatten().numpy()

    @property
    def stds(self) -> np.ndarray:
        """Standard deviation of each coefficient under the model, (p,)."""
        return np.asarray(np.linalg.norm(self.turn @ self.root, axis=1))

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the coefficients as the table shows them, (p, p): J Λ⁻¹ B Λ⁻¹ Jᵀ.

        B is the sandwich's; without one it is Λ.
        """
        half = self.turn @ self.root
        if self.sandwich is None:
            return np.asarray(half @ half.T)
        bread = half @ self.root.T
        return np.asarray(bread @ self.sandwich.products @ bread.T)

    @property
    def errors(self) -> np.ndarray:
        """Standard error of each coefficient as the table shows it, (p,)."""
        return self.stds if self.sandwich is None else np.sqrt(self.covariance.diagonal())

    @property
    def prior_stds(self) -> np.ndarray:
        """Standard deviation of each coefficient under the prior, (p,)."""
        size = np.linalg.norm(self.turn, axis=1)
        return size / np.sqrt(self.prior_precision) if self.prior_precision else size * np.inf

    @property
    def prior_shifts(self) -> np.ndarray:
        """The move of each estimate by the prior, in its standard deviations, (p,)."""
        pull = self.root @ (self.root.T @ (self.prior_precision * self.mode))
        return np.asarray(-(self.turn @ pull) / self.stds)

    def own(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a site's own estimates and their standard deviations; NaN where it tells none."""
        site = self.sites[name]
        precision, slope = site.alone or (site.precision, site.slope)
        step, stds, known, _ = self._solved(precision, slope)
        far = site.alone is None and self._error(step, precision) > STEP_ERROR
        known = known & ~np.full_like(known, far)
        estimates = self.estimates - self.turn @ step
        return np.where(known, estimates, np.nan), np.where(known, stds * site.spread, np.nan)

    @cached_property
    def compared(self) -> np.ndarray:
        """The estimates that tell how sites differ, and their standard deviations, (K, 2, p).

        They are the sites' own but for rare levels: those of which half the sites have less than
        RARE information. There they are Newton steps from the mode of all rows (Peto's method).
        """
        found = np.array([self.own(name) for name in self.sites]).reshape(-1, 2, len(self.mode))
        levels = are_levels(self.contrasts.units * len(self.contrasts.outcomes)).numpy()
        if not len(found) or np.all(np.isfinite(self.degrees)):
            return found
        steps = np.full_like(found, np.nan)
        for number, site in enumerate(self.sites.values()):
            step, stds, known, _ = self._solved(site.precision, site.slope)
            steps[number] = np.where(known, [self.estimates - self.turn @ step, stds], np.nan)
        information = np.nan_to_num(steps[:, 1] ** -2.0)
        return np.where(levels & (np.median(information, axis=0) < RARE), steps, found)

    def without(self, name: str) -> np.ndarray:
        """Return the estimates with a site's factor divided out.

        NaN where no other site tells one, or all where one step from the mode does not tell them,
        or where only one site is left, whose own estimates are not shown.
        """
        if len(left_over := {*self.sites} - {name}) == 1 and left_over <= self.unshared:
            return np.full_like(self.mode, np.nan)
        others = [site.precision for key, site in self.sites.items() if key != name]
        left = sum(others, np.zeros_like(self.precision))
        step, _, known, _ = self._solved(left, -self.sites[name].slope, self.prior_precision)
        known = known & (self._error(step, left) <= STEP_ERROR)
        return np.where(known, self.estimates - self.turn @ step, np.nan)

    def _solved(
        self, precision: np.ndarray, slope: np.ndarray, ridge: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return (P + ridge)⁻¹ r where P tells it, deviations, known coefficients, and the rank."""
        shares, vectors = np.linalg.eigh(self.root.T @ precision @ self.root)
        told = shares > UNTOLD * max(shares[-1], 0)
        axes = self.root @ vectors[:, told] / np.sqrt(shares[told])
        along, untold = self.turn @ axes, self.turn @ self.root @ vectors[:, ~told]
        known = np.linalg.norm(untold, axis=1) < 1e-3 * self.stds
        inner = np.eye(axes.shape[1]) + ridge * axes.T @ axes
        step = axes @ np.linalg.solve(inner, axes.T @ slope)
        return step, np.linalg.norm(along, axis=1), known, int(told.sum())

    def _error(self, step: np.ndarray, precision: np.ndarray) -> float:
        """Return about how far a Newton step d is from its aim at most, in standard deviations.

        It is ½ δ²/√h with δ² = dᵀ P d and h = 1ᵀ P 1, where 1 moves each row's predictor by one:
        δ/√h is the root mean square move of predictors. Without a common intercept 1 is a column
        of the layer, whose variance is one. Sums have no error.
        """
        if np.all(np.isfinite(self.degrees)):
            return 0.0
        outcomes, units = len(self.contrasts.outcomes), np.array(self.contrasts.units)
        ones = np.where(units == "", 1.0, 0.0)[:, None]
        ones = ones if ones.any() else self.contrasts.columns.numpy()
        moved = np.linalg.solve(self.turn, np.kron(np.eye(outcomes), ones))
        sizes = (moved * (precision @ moved)).sum(0).reshape(outcomes, -1)
        least = float(sizes.max(1).min())
        return 0.5 * float(step @ precision @ step) / np.sqrt(least) if least > 0 else np.inf

    def score(self) -> tuple[float, str]:
        """Return the score test's p of one β for all sites, and the site that it is most due to.

        Σ r_kᵀ P_k⁻¹ r_k is χ² then. It needs no estimate of a site's own, so that a site of one
        class counts, too. p is NaN for a single site, and where no site's factor is known.
        """
        found, degrees = dict[str, float](), -len(self.mode)
        for name, site in self.sites.items():
            step, _, _, rank = self._solved(site.precision, site.slope)
            found[name] = float(step @ site.slope)
            degrees += rank
        p = float(chdtrc(degrees, sum(found.values()))) if degrees > 0 else np.nan
        return p, max(found, key=found.__getitem__, default="")

    @cached_property
    def p_differ(self) -> np.ndarray:
        """Each coefficient's p of the score test that it is the same at all sites, (p,).

        a is the move of v by the coefficient, less what an intercept explains of it. t_k = aᵀr_k
        has a variance C_kk if all coefficients are common. Σ t_k²/C_kk is compared with the
        multiple of χ² that has its mean and variance. Small sites count, and those of one class.
        """
        moves, names = np.linalg.inv(self.turn), np.array(self.contrasts.units)
        level = moves[:, np.tile(names == "", len(self.contrasts.outcomes))]
        if level.shape[1]:
            bent = level.T @ self.precision
            slopes = moves - level @ np.linalg.solve(bent @ level, bent @ moves)
            moves = np.where(np.tile(names == "", len(self.contrasts.outcomes)), moves, slopes)
        return np.array([self._p_differ(place, move) for place, move in enumerate(moves.T)])

    def _p_differ(self, place: int, move: np.ndarray) -> float:
        sites = [*self.sites.values()]
        scores = np.array([site.slope @ move for site in sites])
        common = np.array([site.precision @ move for site in sites]) @ self.root @ self.root.T
        covariance = np.zeros((len(sites), len(sites)))
        for number, site in enumerate(sites):
            apart = -common
            apart[number] += move
            var = np.nan_to_num(np.broadcast_to(site.spread, len(move))[place], nan=1.0) ** 2
            covariance += var * apart @ site.precision @ apart.T
        size = covariance.diagonal()
        told = size > UNTOLD * size.max()
        alike = covariance[told][:, told] / np.sqrt(np.outer(size[told], size[told]))
        count, squares = int(told.sum()), float((alike**2).sum())
        found = float((scores[told] ** 2 / size[told]).sum())
        return float(chdtrc(count**2 / squares, found * count / squares)) if count > 1 else np.nan


class Heterogeneity(NamedTuple):
    """Differences of the sites' own estimates; NaN where too few are known."""

    sites: float
    q: float
    p: float
    i2: float
    tau: float
    mean: float
    low: float
    high: float
    new_low: float
    new_high: float


def heterogeneity(estimates: np.ndarray, stds: np.ndarray, level: float) -> Heterogeneity:
    """Return Q, its p, I², τ, and the random mean with its intervals; see the module's docstring.

    Parameters
    ----------
    estimates, stds : ndarray
        b_k and s_k, (K,); those that are NaN do not count.
    level : float
        Level of the Hartung-Knapp interval and of that of a new site.
    """
    known = np.isfinite(estimates) & np.isfinite(stds)
    b, s2, count = estimates[known], stds[known] ** 2, int(known.sum())
    if count < 2:
        return Heterogeneity(count, *[np.nan] * 9)
    u = 1 / s2
    q = float((u * (b - (u * b).sum() / u.sum()) ** 2).sum())
    more = q - count + 1
    tau2 = max(0.0, more) / (u.sum() - (u**2).sum() / u.sum())
    u = 1 / (s2 + tau2)
    mean = float((u * b).sum() / u.sum())
    h2 = max(1.0, float((u * (b - mean) ** 2).sum()) / (count - 1)) / u.sum()
    wide = stdtrit(count - 1, (1 + level) / 2) * np.sqrt(h2)
    new = stdtrit(count - 2, (1 + level) / 2) * np.sqrt(tau2 + h2) if count > 2 else np.nan
    p, i2 = float(chdtrc(count - 1, q)), max(0.0, more / q) if q else 0.0
    ends = mean - wide, mean + wide, mean - new, mean + new
    return Heterogeneity(count, q, p, i2, float(np.sqrt(tau2)), mean, *map(float, ends))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A table of coefficients.

    Attributes
    ----------
    table : DataFrame
        A line for each coefficient, see `tabulated`.
    title : str
        The run and its method.
    notes : tuple of str
        Lines on rows that are not used, and on what to beware of.
    factors : Factors
        The factors that it is made of.
    level : float
        Level of all intervals.
    """

    table: DataFrame
    title: str
    notes: tuple[str, ...]
    factors: Factors
    level: float

    def summary(self, site: str | None = None, without_each: bool = False) -> str:
        """Return the table as text.

        Parameters
        ----------
        site : str or None
            A site whose own estimates stand beside.
        without_each : bool
            True: a second table has the estimates without each site.

        Raises
        ------
        SettingError
            If there is no such site.
        """
        sites = self.factors.sites
        if site in self.factors.unshared:
            allowed = (
                f'a site with share="estimate" in its node config: {listed(self.factors.shown)}'
            )
            raise SettingError("site", site, allowed)
        if site is not None and site not in sites:
            raise SettingError("site", site, f"a site of this run: {', '.join(sites)}")
        low, high = ends(self.level)
        left, right = (f"{(1 + side * self.level) / 2:g}" for side in (-1, 1))
        ratio = RATIOS.get(self.factors.contrasts.link, "")
        heads = {"estimate": "estimate", "std": "std", low: f"[{left}", high: f"{right}]"}
        heads |= {ratio: ratio} if ratio else {}
        heads |= {"P(> 0)": "P(> 0)", "tau": "tau", "I2": "I2", "p differ": "p differ"}
        heads |= {f"HK {low}": f"HK [{left}", f"HK {high}": f"{right}]"}
        heads |= {site: site, f"{site} std": "std"} if site else {}
        heads |= {"rows": "rows", "events": "events", "flag": ""}
        heads = {column: head for column, head in heads.items() if column in self.table}
        parts = [self.title, *self.notes]
        for outcome, lines in self.table.groupby("outcome", sort=False):
            names = [str(outcome), *map(_named, lines["term"], lines["unit"])]
            parts += ["", *_aligned(names, lines[[*heads]], heads)]
            if without_each:
                columns = {
                    "estimate": "estimate",
                    **{f"without {s}": f"without {s}" for s in sites},
                }
                parts += ["", *_aligned(names, lines[[*columns]], columns)]
        return "\n".join(parts)

    def picture(self) -> Figure:
        """Draw the forest of all terms but the intercepts; a number's is of one deviation.

        The Hartung-Knapp interval stands where p of a score test is below 0.05: that of the term,
        or that of all terms.
        """
        (low, high), held = ends(self.level), self.factors.contrasts
        names, scales = list[str](), list[float]()
        for term, column, unit in zip(held.terms, held.columns, held.units, strict=True):
            scales.append(float(1 / column.abs().max()) if unit == NUMBER else 1.0)
            shown = f"(+{scales[-1]:.3g})" if unit == NUMBER else unit
            names += [f"{term} {shown}"] if unit else []
        panels, whole = {}, self.factors.score()[0] < DIFFER
        for outcome, lines in self.table.groupby("outcome", sort=False):
            slopes = (lines["unit"] != "").to_numpy()
            by = {c: (v * scales)[slopes] for c, v in lines.select_dtypes("float").items()}
            both, known = np.array([by[low], by[high]]), self.factors.shown
            random, sites = np.full_like(both, np.nan), np.zeros((0, 2, both.shape[1]))
            if self.factors.sites:
                random = np.array([by[f"HK {low}"], by[f"HK {high}"]])
                differ = (lines["p differ"] < DIFFER).to_numpy()[slopes]  # p has no unit
                random[:, ~(differ | whole)] = np.nan
                sites = np.array([[by[site], by[f"{site} std"]] for site in known])
                sites = sites.reshape(-1, 2, both.shape[1])
            panels[str(outcome)] = Forest(by["estimate"], both, random, sites)
        ratio = RATIOS.get(held.link, "")
        return forest(names, panels, ratio.capitalize() or "Difference", bool(ratio))


def ends(level: float) -> tuple[str, str]:
    """Return the names of the ends of an interval."""
    return f"lower {100 * level:g} %", f"upper {100 * level:g} %"


def tabulated(factors: Factors, level: float) -> DataFrame:
    """Return the table: a line for each outcome and term, in the columns' own units.

    Its columns are ``outcome``, ``term`` and ``unit``; ``estimate``, ``std`` and its interval; the
    ratio exp(β) with its interval where the link has one; ``P(> 0)``; ``rows`` and ``events``;
    ``p differ`` of the score test, see `Factors.p_differ`; ``tau``, ``I2``, ``Q`` and ``p of Q`` of
    the sites' own estimates, ``random mean`` with its Hartung-Knapp interval (``HK``) and the
    interval of a ``new site``; ``shift by prior`` in standard deviations; ``flag``; and for each
    site its own estimate and its std, if it is shown, and the estimate ``without`` it. Without
    sites' factors there is nothing from ``p differ`` to ``new site``.
    """
    import pandas

    told, (low, high) = factors.contrasts, ends(level)
    outcomes = len(told.outcomes)
    estimates, stds = factors.estimates, factors.errors
    degrees = factors.sandwich.degrees if factors.sandwich else factors.degrees
    half = stdtrit(degrees, (1 + level) / 2) * stds
    own = {name: factors.own(name) for name in factors.sites}
    pairs = factors.compared
    differ = [heterogeneity(pairs[:, 0, j], pairs[:, 1, j], level) for j in range(len(stds))]
    by = dict(zip(Heterogeneity._fields, np.array(differ).T, strict=True))
    columns: dict[str, Sequence[object] | np.ndarray] = {
        "outcome": [outcome for outcome in told.outcomes for _ in told.terms],
        "term": told.terms * outcomes,
        "unit": told.units * outcomes,
        "estimate": estimates,
        "std": stds,
        low: estimates - half,
        high: estimates + half,
    }
    if told.link in RATIOS:
        ratio = RATIOS[told.link]
        with np.errstate(over="ignore"):
            columns |= {ratio: np.exp(estimates)}
            columns |= {f"{ratio} {end}": np.exp(np.asarray(columns[end])) for end in (low, high)}
    columns |= {
        "P(> 0)": stdtr(degrees, estimates / stds),
        "rows": list(map(counted, told.rows.flatten().tolist())),
        "events": list(map(counted, told.events.flatten().tolist())),
    }
    names = {"tau": "tau", "i2": "I2", "q": "Q", "p": "p of Q", "mean": "random mean"}
    names |= {"low": f"HK {low}", "high": f"HK {high}"}
    names |= {"new_low": f"new site {low}", "new_high": f"new site {high}"}
    if own:
        columns |= {"p differ": factors.p_differ}
        columns |= {called: by[name] for name, called in names.items()}
    columns |= {"shift by prior": factors.prior_shifts, "flag": flags(factors)}
    for name, (estimate, std) in own.items():
        if name not in factors.unshared:
            columns |= {name: estimate, f"{name} std": std}
        columns |= {f"without {name}": factors.without(name)}
    return pandas.DataFrame(columns)


def flags(factors: Factors) -> list[str]:
    """Return ``held by the prior`` for each coefficient that the rows alone do not hold."""
    units = np.array(factors.contrasts.units * len(factors.contrasts.outcomes))
    far = FAR * np.linalg.norm(factors.turn, axis=1)
    far[units == ""] = np.inf  # an intercept lies where the columns' zeros are
    held = (np.abs(factors.turn @ factors.mode) > far) | (factors.stds > factors.prior_stds / 2)
    held |= np.abs(factors.prior_shifts) > SHIFTED
    return ["held by the prior" if each else "" for each in held]


def counted(rows: float) -> str:
    """Return a number of rows as the table shows it: "" if unknown, ``<5`` below 5."""
    return "" if np.isnan(rows) else f"<{FEWEST}" if rows < FEWEST else f"{rows:.0f}"


def _named(term: str, unit: str) -> str:
    return f"{term} {unit}".strip()


def _aligned(names: Sequence[str], values: DataFrame, heads: Mapping[str, str]) -> list[str]:
    """Return lines of a table: names on the left, four digits, three decimals of probabilities."""
    rows = [[names[0], *heads.values()]]
    for name, row in zip(names[1:], values.itertuples(index=False), strict=True):
        rows.append([name])
        for column, cell in zip(heads, row, strict=True):
            digits = ".3f" if column in ("P(> 0)", "p differ", "I2") else ".4g"
            text = format(cell, digits) if isinstance(cell, float) else str(cell)
            rows[-1].append("" if text == "nan" else text)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]

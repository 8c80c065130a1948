"""Coefficients of a linear run with their intervals, and how its sites differ.

With w = Q v, J = Rᵀ Qᵀ and orthonormal Q, coefficients are β = Rᵀ v + c. Prior and sites are
factors of v. Site k has the precision P_k and, at the mode v, the slope r_k:

    Λ = λ + Σ_k P_k,    Var β = Rᵀ Λ⁻¹ R,    own estimate  β − Rᵀ P_k⁻¹ r_k,
    without site k      β + Rᵀ (Λ − P_k)⁻¹ r_k,    shift by the prior  −Rᵀ Λ⁻¹ λ v.

A site's own estimate is a Newton step from the mode. It is left out where the site's rows do not
tell it. With K own estimates b_k, their standard deviations s_k and u_k = s_k⁻²,

    Q = Σ u_k (b_k − b̄)²,    I² = max(0, 1 − (K − 1)/Q),
    τ² = max(0, Q − K + 1)/(Σ u − Σ u²/Σ u),

and with u_k = 1/(s_k² + τ²) the mean m = Σ u b/Σ u has the Hartung-Knapp interval m ± t_{K−1} h,

    h² = max(1, Σ u_k (b_k − m)²/(K − 1))/Σ u,

never below that of DerSimonian and Laird. A new site lies in m ± t_{K−2} √(τ² + h²).

References: DerSimonian and Laird 1986; Hartung and Knapp 2001; Röver, Knapp and Friede 2015, for
the maximum; Higgins, Thompson and Spiegelhalter 2009, for the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import chdtrc, stdtr, stdtrit

from fedbary.errors import SettingError
from fedbary.tasks import Contrasts
from fedbary.texts import listed

if TYPE_CHECKING:
    from pandas import DataFrame

UNTOLD = 1e-4
"""Fraction of a site's largest share of the information below which a share is rounding."""

COLLINEAR = 1e-6
"""Fraction of the largest eigenvalue of a precision below which an eigenvalue is rounding."""

DIFFER = 0.05
"""Value of p of Q below which sites differ."""

FEWEST = 5
"""Fewest rows that the table names; a smaller number is ``<5``."""

FAR = 10.0
"""Size of a standardised coefficient from which it is separation's, and not the data's."""

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


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of a posterior of coefficients.

    Attributes
    ----------
    contrasts : Contrasts
        What the p coefficients are.
    turn, mode : ndarray
        Rᵀ, (p, p), and v, (p,).
    prior_precision : float
        λ; 0 for a flat prior.
    sites : mapping of str to Site
        Each site's factor by its name.
    degrees : float
        Degrees of freedom of the intervals' t; infinite for a normal.
    """

    contrasts: Contrasts
    turn: np.ndarray
    mode: np.ndarray
    prior_precision: float
    sites: Mapping[str, Site]
    degrees: float = np.inf

    @cached_property
    def precision(self) -> np.ndarray:
        """Λ, (p, p)."""
        total = self.prior_precision * np.eye(len(self.mode))
        return total + sum(site.precision for site in self.sites.values())

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
        """Standard deviation of each coefficient, (p,)."""
        return np.asarray(np.linalg.norm(self.turn @ self.root, axis=1))

    @property
    def prior_stds(self) -> np.ndarray:
        """Standard deviation of each coefficient under the prior, (p,)."""
        size = np.linalg.norm(self.turn, axis=1)
        return size / np.sqrt(self.prior_precision) if self.prior_precision else size * np.inf

    @property
    def prior_shifts(self) -> np.ndarray:
        """How far the prior moves each estimate, in its standard deviations, (p,)."""
        pull = self.root @ (self.root.T @ (self.prior_precision * self.mode))
        return np.asarray(-(self.turn @ pull) / self.stds)

    def own(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a site's own estimates and their standard deviations; NaN where it tells none."""
        site, axes = self.sites[name], self.turn @ self.root
        precision, slope = site.alone or (site.precision, site.slope)
        shares, vectors = np.linalg.eigh(self.root.T @ precision @ self.root)
        told = shares > UNTOLD * max(shares[-1], 0)
        along = axes @ vectors
        step = along[:, told] @ ((vectors.T @ (self.root.T @ slope))[told] / shares[told])
        stds = np.linalg.norm(along[:, told] / np.sqrt(shares[told]), axis=1) * site.spread
        known = self._known(along, told)
        return np.where(known, self.estimates - step, np.nan), np.where(known, stds, np.nan)

    def without(self, name: str) -> np.ndarray:
        """Return the estimates with a site's factor divided out; NaN where no other tells one."""
        gone = self.sites[name]
        others = sum(site.precision for key, site in self.sites.items() if key != name)
        shares, vectors = np.linalg.eigh(
            self.root.T @ (others + np.zeros_like(gone.precision)) @ self.root
        )
        known = self._known(self.turn @ self.root @ vectors, shares > UNTOLD * max(shares[-1], 0))
        left = np.linalg.pinv(self.precision - gone.precision, hermitian=True)
        return np.where(known, self.estimates + self.turn @ (left @ gone.slope), np.nan)

    @staticmethod
    def _known(along: np.ndarray, told: np.ndarray) -> np.ndarray:
        """Return which coefficients have no part in directions that are not told."""
        untold = np.linalg.norm(along[:, ~told], axis=1)
        return np.asarray(untold < 1e-3 * np.linalg.norm(along, axis=1))


class Heterogeneity(NamedTuple):
    """How the own estimates of sites differ; NaN where too few are known."""

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
        What it is of.
    notes : tuple of str
        Lines on rows that are not used, and on what to beware of.
    sites : tuple of str
        The sites' names.
    level : float
        Level of all intervals.
    """

    table: DataFrame
    title: str
    notes: tuple[str, ...]
    sites: tuple[str, ...]
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
        if site is not None and site not in self.sites:
            raise SettingError("site", site, f"a site of this run: {', '.join(self.sites)}")
        low, high = ends(self.level)
        ratio = next((name for name in RATIOS.values() if name in self.table), None)
        numbers = {"estimate": "estimate", "std": "std", low: low, high: high}
        numbers |= {ratio: "exp"} if ratio else {}
        numbers |= {"P(> 0)": "P(> 0)", "tau": "tau", "I2": "I2", "p of Q": "p of Q"}
        numbers |= {f"HK {low}": f"HK {low}", f"HK {high}": f"HK {high}"}
        numbers |= {site: site, f"{site} std": "std"} if site else {}
        numbers |= {"rows": "rows", "events": "events", "flag": ""}
        parts = [self.title, *self.notes]
        for outcome, lines in self.table.groupby("outcome", sort=False):
            names = [f"{t} {u}".strip() for t, u in zip(lines["term"], lines["unit"], strict=True)]
            parts += ["", *_aligned(names, str(outcome), lines[list(numbers)], [*numbers.values()])]
            if without_each:
                columns = [f"without {name}" for name in self.sites]
                shown = lines[["estimate", *columns]]
                parts += ["", *_aligned(names, str(outcome), shown, list(shown))]
        return "\n".join(parts)


def ends(level: float) -> tuple[str, str]:
    """Return the names of the ends of an interval."""
    return f"lower {100 * level:g} %", f"upper {100 * level:g} %"


def tabulated(factors: Factors, level: float) -> DataFrame:
    """Return the table: a line for each outcome and term, in the columns' own units.

    Its columns are ``outcome``, ``term`` and ``unit``; ``estimate``, ``std`` and its interval; the
    ratio exp(β) with its interval where the link has one; ``P(> 0)``; ``rows`` and ``events``;
    ``tau``, ``I2``, ``Q`` and ``p of Q`` of the sites' own estimates, ``random mean`` with its
    Hartung-Knapp interval (``HK``) and the interval of a ``new site``; ``shift by prior`` in
    standard deviations; ``flag``; and for each site its own estimate, its std, and the estimate
    ``without`` it.
    """
    import pandas

    told, (low, high) = factors.contrasts, ends(level)
    outcomes, terms = len(told.outcomes), len(told.terms)
    estimates, stds, degrees = factors.estimates, factors.stds, factors.degrees
    half = stdtrit(degrees, (1 + level) / 2) * stds
    own = {name: factors.own(name) for name in factors.sites}
    pairs = np.array(list(own.values()))
    differ = [heterogeneity(*pairs[:, :, j].T, level) for j in range(len(stds))]
    by = {
        name: np.array(values)
        for name, values in zip(Heterogeneity._fields, zip(*differ, strict=True), strict=True)
    }
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
        "tau": by["tau"],
        "I2": by["i2"],
        "Q": by["q"],
        "p of Q": by["p"],
        "random mean": by["mean"],
        f"HK {low}": by["low"],
        f"HK {high}": by["high"],
        f"new site {low}": by["new_low"],
        f"new site {high}": by["new_high"],
        "shift by prior": factors.prior_shifts,
        "flag": flags(factors, terms),
    }
    for name, (estimate, std) in own.items():
        left = factors.without(name) if len(own) > 1 else np.full_like(estimate, np.nan)
        columns |= {name: estimate, f"{name} std": std, f"without {name}": left}
    return pandas.DataFrame(columns)


def flags(factors: Factors, terms: int) -> list[str]:
    """Return ``held by the prior`` for each coefficient that the rows alone do not hold."""
    far = FAR * np.linalg.norm(factors.turn, axis=1)
    far[terms - 1 :: terms] = np.inf  # an intercept lies where the columns' zeros are
    held = (np.abs(factors.turn @ factors.mode) > far) | (factors.stds > factors.prior_stds / 2)
    return ["held by the prior" if each else "" for each in held]


def counted(rows: float) -> str:
    """Return a number of rows as the table shows it: "" if unknown, ``<5`` below 5."""
    return "" if np.isnan(rows) else f"<{FEWEST}" if rows < FEWEST else f"{rows:.0f}"


def _aligned(
    names: Sequence[str], corner: str, values: DataFrame, heads: Sequence[str]
) -> list[str]:
    """Return lines of a table: names on the left, numbers with four digits on the right."""
    cells = [[corner, *heads]]
    for name, row in zip(names, values.itertuples(index=False), strict=True):
        cells.append([name, *(f"{c:.4g}" if isinstance(c, float) else str(c) for c in row)])
    cells = [["" if cell == "nan" else cell for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]

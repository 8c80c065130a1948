"""Sites beside each other: which of them lies far from the others in a column, by their sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.data.standardise import Sums
from fedbary.texts import listed

UNITS = (
    (2.2046, "kg and lb"),
    (2.54, "in and cm"),
    (7.5006, "kPa and mmHg"),
    (10.0, "g/dL and g/L"),
    (12.0, "years and months"),
    (17.1, "mg/dL and µmol/L of bilirubin"),
    (18.02, "mmol/L and mg/dL of glucose"),
    (24.0, "days and hours"),
    (38.67, "mmol/L and mg/dL of cholesterol"),
    (60.0, "hours and minutes"),
    (88.4, "mg/dL and µmol/L of creatinine"),
    (100.0, "m and cm"),
    (365.25, "years and days"),
    (1000.0, "g and mg"),
)
"""Factors between two units of one quantity."""

AFFINE = ((1.8, 32.0, "°C and °F"), (1.0, 273.15, "°C and K"))
"""Slopes and intercepts between two units of one quantity."""

FEWEST = 5
"""Values of a column at a site below which the site is not compared."""

FAR = 12.0
"""Distance from the other sites that no site of another population has."""

WIDE = 1e4
"""Standard deviation in those of the other sites, beyond which a site is named whatever its mean.
The others' numbers are then as one to a common scale."""

SCALED, ALIKE, APART = math.log(6.5), 0.4, 1.0
"""Least factor that needs no unit; how far those of mean and deviation may differ, both as
logarithms; least distance."""

OF_MEAN, OF_STD, SMALL_APART = 0.1, 0.2, 2.3
"""For smaller factors: tolerances of mean and deviation, as logarithms; least distance."""

OF_SHIFT, AFFINE_APART = 0.6, 3.0
"""For units with a shift: tolerance of the mean, in standard deviations; least distance."""

NAMED = 0.25
"""Logarithm by which a factor may differ from that of a unit that is named."""


MOST_COLUMNS = 10
"""Most columns in which a site is named for its numbers' size."""

REMEDY = "if it stands for a missing value, missing_words= names it"
"""What to do about a number that repeats far from all others."""


@dataclass(frozen=True)
class Far:
    """A site that lies far from the others in a column.

    Attributes
    ----------
    site, column : int
        Their places.
    mean, others : float
        m, the mean of the site's column; m₀, the median of all sites' means, or the other's of two.
    distance : float
        |m − m₀| in pooled standard deviations: over √(max(s², s₀²) + b²), with the site's variance
        s², the median variance s₀², and the robust deviation of the sites' means, b.
    units : tuple of str
        What may explain it, the likeliest first; empty if no factor or unit does.
    spread : float
        s/s₀, if it is beyond `WIDE`; else 1.
    """

    site: int
    column: int
    mean: float
    others: float
    distance: float
    units: tuple[str, ...] = ()
    spread: float = 1.0


def far_sites(sums: Sequence[Sums]) -> list[Far]:
    """Return the sites that lie far from the others, by columns; only the larger of two.

    A site in another unit has the others' mean and standard deviation times one factor. So it is
    named if both factors agree and are large, or are a unit's, or if its distance is beyond `FAR`.
    Sites that differ in population have no such pair of factors. A column of 0 and 1 is not
    compared. `benchmarks/beside.py` counts false alarms.

    Parameters
    ----------
    sums : sequence of Sums
        Each site's sums of the same columns.
    """
    if len(sums) < 2:
        return []
    mean, var = (torch.stack([getattr(each, name) for each in sums]) for name in ("mean", "var"))
    counts = [mean.new_full((mean.shape[1],), s.count) if s.seen is None else s.seen for s in sums]
    coded = (var + mean.square() - mean).abs() <= 1e-9
    known = (torch.stack(counts) >= FEWEST) & ~(coded | (torch.stack(counts) == 0)).all(0)
    mean, var = mean.where(known, torch.nan), var.where(known, torch.nan)
    centre, usual = mean.flip(0), var.flip(0)
    between = torch.zeros_like(mean)
    if len(sums) > 2:
        centre, usual = (t.nanmedian(0).values.expand_as(t) for t in (mean, var))
        between = 1.4826 * (mean - centre).abs().nanmedian(0).values
    distance = (mean - centre).abs() / (var.maximum(usual) + between.square()).sqrt()
    factor, spread = (mean / centre).log(), (var / usual).log() / 2
    alike = (factor.abs() >= SCALED) & ((factor - spread).abs() <= ALIKE) & (distance >= APART)
    found = alike | ((distance >= FAR) & (usual > 0))
    for size, _ in UNITS:
        off, apart = (factor.abs() - math.log(size)).abs(), (factor - spread).abs()
        found |= (off <= OF_MEAN) & (apart <= OF_STD) & (distance >= SMALL_APART)
    for slope, shift, _ in AFFINE:
        found |= _affine(mean, var, centre, usual, slope, shift) & (distance >= AFFINE_APART)
    if len(sums) == 2:
        found &= mean > centre
    wide = spread.exp().where((spread > math.log(WIDE)) & (usual > 0), 1.0)
    found |= wide > 1
    return [
        Far(
            site,
            column,
            float(mean[site, column]),
            float(centre[site, column]),
            float(distance[site, column]),
            _units(*(t[site, column] for t in (distance, mean, var, centre, usual))),
            float(wide[site, column]),
        )
        for column, site in found.T.nonzero().tolist()
    ]


def _affine(
    mean: Tensor, var: Tensor, centre: Tensor, usual: Tensor, slope: float, shift: float
) -> Tensor:
    """Return where one side has the other's numbers times a slope, and shifted."""
    there = torch.zeros_like(mean, dtype=torch.bool)
    for low, low_var, high, high_var in ((centre, usual, mean, var), (mean, var, centre, usual)):
        off = (high - slope * low - shift).abs() / high_var.sqrt()
        spread = ((high_var / low_var).log() / 2 - math.log(slope)).abs()
        there |= (off <= OF_SHIFT) & (spread <= OF_STD)
    return there


def _units(
    distance: Tensor, mean: Tensor, var: Tensor, centre: Tensor, usual: Tensor
) -> tuple[str, ...]:
    """Return what may explain a site's mean and variance beside the others'."""
    factor = float((mean / centre).log())
    gap = abs(float((var / usual).log()) / 2 - factor)
    for slope, shift, words in AFFINE if distance >= AFFINE_APART and not gap <= OF_STD else ():
        if _affine(mean, var, centre, usual, slope, shift):
            return (words,)
    off = sorted((abs(abs(factor) - math.log(size)), size, words) for size, words in UNITS)
    near = [f"factor {size:g}: {words}" for far, size, words in off[:2] if far <= NAMED]
    return tuple(near) if gap <= ALIKE else ()


def lines(sums: Mapping[str, Sums], columns: Sequence[str]) -> Iterator[str]:
    """Yield lines on columns in which sites lie far off, or one number repeats far away.

    A column where half of the sites or more have such a number is not compared. No site hides what
    is said of others: it is named in `MOST_COLUMNS`, and in one line on its numbers.

    Parameters
    ----------
    sums : mapping of str to Sums
        Each site's sums of the same columns, which may be more than are named.
    columns : sequence of str
        The columns' names.
    """
    held, sites = [each.first(len(columns)) for each in sums.values()], list(sums)
    odd = [
        frozenset(n for n, s in zip(sites, held, strict=True) if any(s.repeated[k : k + 1]))
        for k in range(len(columns))
    ]
    for at in dict.fromkeys(odd):
        names = [column for column, here in zip(columns, odd, strict=True) if here == at]
        if at:
            said = f"column{'s' * (len(names) > 1)} {listed(names)}: a number far from all others"
            yield f"{said} repeats at {listed(n for n in sites if n in at)}; {REMEDY}"
    found: dict[int, list[str]] = {}
    times: Counter[str] = Counter()
    for far in far_sites(held):
        name, marked = sites[far.site], odd[far.column]
        if name in marked or 2 * len(marked) >= len(sites):
            continue
        times[name] += 1
        if times[name] > MOST_COLUMNS:
            continue
        said = f"{name} (mean {far.mean:.4g}, elsewhere {far.others:.4g}, "
        said += f"{far.distance:.1f} standard deviations away"
        said += f"; {' or '.join(far.units)}" if far.units else ""
        said += f"; spread {far.spread:.1g} times as elsewhere" if far.spread > 1 else ""
        found.setdefault(far.column, []).append(f"{said})")
    for place, far_off in sorted(found.items()):
        yield f"column {columns[place]} may have another unit at {', '.join(far_off)}"
    for name, count in times.items():
        if count > MOST_COLUMNS:
            yield f"{name} lies far off in {count - MOST_COLUMNS} more columns"

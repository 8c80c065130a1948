"""Findings of a look: a sentence each, the gravest first, with what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from fedbary.data import beside
from fedbary.data.standardise import CONSTANT, dependent
from fedbary.tasks._look.dialogue import MOST_PRODUCTS, Look
from fedbary.tasks._look.rules import (
    AS_TEXT,
    DATES,
    EMPTY,
    FAR_CELL,
    LEAST,
    LEVELS,
    MIXED,
    NEARLY_CONSTANT,
    NUMBERS,
    RARE,
    ROW_NAMES,
    TEXTS,
    Told,
)
from fedbary.texts import SCREEN, alike, listed, one_line

LEFT_OVER = 1e-8
"""Share of a column's variance that other columns leave, below which they determine it."""

PART = 1e-6
"""Standardised weight from which on a column takes part in a combination."""

MANY_MISSING = 0.3
"""Share of missing cells that is a finding."""

OF_KIND = {
    EMPTY: "has a value in fewer than five rows; leave_out= leaves it out",
    DATES: "holds dates, which are not read; write days since one date",
    TEXTS: "holds names or notes; leave_out= leaves it out, id= if it names the rows",
    ROW_NAMES: "numbers the rows; id= or leave_out= leaves it out",
    MIXED: "holds numbers and words; missing_words= names words that stand for a missing value",
    AS_TEXT: "holds numbers as text, such as 1,5 or 5 %; write them with a point and no sign",
}
"""Lines on columns of kinds that no model takes."""


def findings(look: Look) -> list[str]:
    """Return the findings."""
    parts = (copies(look), of_ids(look), unlike(look), of_columns(look), combined(look))
    return [one_line(line, SCREEN) for line in itertools.chain(*parts)]


def copies(look: Look) -> Iterator[str]:
    """Yield a line on each two sites whose rows have the same sums."""
    for (one, first), (other, second) in itertools.combinations(look.sums.items(), 2):
        if look.rows[one] == look.rows[other] and all(
            torch.allclose(getattr(first, part), getattr(second, part), rtol=1e-10, atol=0)
            for part in ("total", "squares", "seen")
        ):
            said = "have the same sums in all columns, so they hold the same rows"
            yield f"{one} and {other} {said}: start without one of them"


def of_ids(look: Look) -> Iterator[str]:
    """Yield a line on each two sites that have ids in common."""
    for (one, first), (other, second) in itertools.combinations(look.ids.items(), 2):
        if count := len({*first} & {*second}):
            said = f"{count}" if count >= LEAST else f"fewer than {LEAST}"
            logs = "their rows count twice; the sites' own logs name them"
            yield f"{one} and {other} have {said} ids in common: {logs}"


def unlike(look: Look) -> Iterator[str]:
    """Yield lines on columns in other units, and on numbers that stand for a missing value."""
    for line in beside.lines(look.sums, look.names):
        yield line if beside.REMEDY in line else f"{line}; convert it there"


def of_columns(look: Look) -> Iterator[str]:
    """Yield lines on columns that sites lack, or hold in another way, and on their levels."""
    for name in dict.fromkeys(name for columns in look.columns.values() for name in columns):
        held = {site: columns[name] for site, columns in look.columns.items() if name in columns}
        where = f"column {name}"
        if lacking := look.columns.keys() - held.keys():
            said = "the sites need it, or leave_out="
            yield f"{where} is not at {listed(sorted(lacking))}; {said}"
        yield from _kinds(where, held)
        yield from _spread(where, name, held, look)
        yield from _missing(where, held, look)
        yield from _levels(where, held)


def _kinds(where: str, held: Mapping[str, Told]) -> Iterator[str]:
    kinds: dict[str, list[str]] = {}
    for site, told in held.items():
        kinds.setdefault(told.kind, []).append(site)
    for kind, said in OF_KIND.items():
        if sites := kinds.get(kind):
            yield f"{where}{_at(sites, held)} {said}"
    if NUMBERS in kinds and LEVELS in kinds:
        said = f"text at {listed(kinds[LEVELS])}, numbers at {listed(kinds[NUMBERS])}"
        yield f"{where} is {said}; code it alike"


def _at(sites: Sequence[str], held: Mapping[str, Told]) -> str:
    """Name sites, unless they are all that have the column."""
    return "" if len(sites) == len(held) else f" at {listed(sites)}"


def _spread(where: str, name: str, held: Mapping[str, Told], look: Look) -> Iterator[str]:
    for kept, said in (
        (NEARLY_CONSTANT, "has one value in all but fewer than five rows"),
        (FAR_CELL, "holds a value so far from all others that a sum would tell it"),
    ):
        if sites := [site for site, told in held.items() if told.kept == kept]:
            yield f"{where}{_at(sites, held)} {said}; the site keeps its sums; look at it there"
    if name not in look.names:
        levels = {level for told in held.values() for level in told.levels}
        if len(levels) == 1 and RARE not in levels:
            yield f"{where} holds one level, {next(iter(levels))}: it has no effect"
        return
    place, constant = look.names.index(name), []
    for site, sums in look.sums.items():
        seen, std, mean = (float(t[place]) for t in (sums.seen, sums.var.sqrt(), sums.mean))  # type: ignore[index]
        if seen and std <= max(CONSTANT, 1e-9) * abs(mean):
            constant.append(site)
    total = look.total
    alone = total.var[place].sqrt() <= 1e-9 * total.mean[place].abs()
    if constant and alone and len(constant) == len(held):
        yield f"{where} is constant at all sites: it has no effect"
    elif constant:
        yield f"{where} is constant at {listed(constant)}: it tells the site from the others"


def _missing(where: str, held: Mapping[str, Told], look: Look) -> Iterator[str]:
    empty = {
        site: told.missing / look.rows[site]
        for site, told in held.items()
        if told.kind != EMPTY and told.missing > MANY_MISSING * look.rows[site]
    }
    if empty:
        said = listed(f"{site} ({share:.0%})" for site, share in empty.items())
        yield f"{where} has many missing cells at {said}; missing= says how they are filled"


def _levels(where: str, held: Mapping[str, Told]) -> Iterator[str]:
    of_site = {site: told.levels for site, told in held.items() if told.kind == LEVELS}
    names = sorted({level for levels in of_site.values() for level in levels} - {RARE})
    for one, other in alike(names):
        yield f"{where} has levels {one} and {other}, which differ in case or blanks; write one"
    for level in names:
        without = [s for s, levels in of_site.items() if not levels.keys() & {level, RARE}]
        if without:
            yield f"{where} has no row of level {level} at {listed(without)}"
    if rare := [site for site, levels in of_site.items() if RARE in levels]:
        yield f"{where} has levels in fewer than five rows at {listed(rare)}; join them to others"


def combined(look: Look) -> Iterator[str]:
    """Yield a line on each column that the columns before it determine, by their products."""
    if len(look.names) > MOST_PRODUCTS and look.products is None:
        said = f"{len(look.names)} columns are too many for products, {MOST_PRODUCTS} the most"
        yield f"{said}: columns that follow from others are not found; columns= names fewer"
    if look.products is None:
        return
    names, _, products = look.products
    scale = products.diagonal().sqrt()
    for place, kept, weights in dependent(products / scale / scale[:, None], LEFT_OVER):
        others = [names[k] for k, w in zip(kept, weights.tolist(), strict=True) if abs(w) > PART]
        yield f"column {names[place]} follows from {listed(others)}; leave_out= one of them"

"""A look on paper: a table for the screen, a CSV file, a page, a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.figures.document import Document
from fedbary.figures.sheet import COLORS, literal, open_frame, sheet
from fedbary.tasks._look.dialogue import TWO_VALUED, Look
from fedbary.tasks._look.findings import findings
from fedbary.tasks._look.rules import LEAST, LEVELS, RARE, SOME
from fedbary.texts import listed
from fedbary.trained.writing import write_table, written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AT = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
"""Quantiles of all sites' rows together."""

TOGETHER = "together"
"""Name of all sites in a table."""

MOST_LINES = 120
"""Lines of the table on the screen; beyond, it has those of all sites together alone."""

NOTHING = "the sites' columns agree"
"""The line without a finding."""

ACROSS, TOGETHER_SHOWN, MOST_SHOWN = 2, 8, 12
"""Columns in a row of a picture, and in one picture; levels, or cells of a site, of a column."""

MOST_DRAWN = 100
"""Columns that are drawn, those with findings first."""

HEADER = ("column", "site", "rows", "missing", "mean", "sd", "5 %", "median", "95 %")


def rows_of(look: Look) -> Iterator[dict[str, Any]]:
    """Yield a row for each column at all sites together and at each that has it."""
    sites = {name: look.rows[name] for name in look.columns}
    for name in dict.fromkeys(name for held in look.columns.values() for name in held):
        held = {site: look.columns[site][name] for site in sites if name in look.columns[site]}
        kinds = {told.kind for told in held.values()}
        levels: dict[str, int] = {}
        for told in held.values():
            for level, rows in told.levels.items():
                levels[level] = levels.get(level, 0) + rows
        lacking = [told.missing for told in held.values()]
        most = sum(lacking) + lacking.count(SOME) * (LEAST - SOME)
        kept = [site for site, told in held.items() if told.kept]
        yield {
            **{"column": name, "site": TOGETHER, "type": " or ".join(sorted(kinds))},
            "rows": sum(sites[site] for site in held),
            "missing": f"<{most}" if SOME in lacking else most,
            **_numbers(look, name),
            "levels": _said(levels),
            "note": f"without {listed(kept)}" if kept else "",
        }
        for site, told in held.items():
            yield {
                **{"column": name, "site": site, "type": told.kind, "rows": sites[site]},
                "missing": f"<{LEAST}" if told.missing == SOME else told.missing,
                **_numbers(look, name, site),
                "levels": _said(told.levels),
                "note": told.kept,
            }


def _numbers(look: Look, name: str, site: str = "") -> dict[str, float]:
    """Return mean and deviation of a column, and over all sites its quantiles; NaN for none."""
    found = dict.fromkeys(("mean", "sd", *AT), math.nan)
    if name not in look.names or (site and site not in look.sums):
        return found
    place, sums = look.names.index(name), look.sums[site] if site else look.total
    seen = 0.0 if sums.seen is None else float(sums.seen[place])
    if seen > 1:
        found["mean"] = float(sums.mean[place])
        found["sd"] = math.sqrt(float(sums.var[place]) * seen / (seen - 1))
    if not site:
        found |= dict(zip(AT, look.quantiles(name, [*AT.values()]).tolist(), strict=True))
    return found


def _said(levels: Mapping[str, int]) -> str:
    """Return levels with their rows, the commonest first, the rare ones last."""
    order = sorted(levels.items(), key=lambda level: (level[0] == RARE, -level[1], level[0]))
    return "; ".join(f"{name or 'rare'} {rows}" for name, rows in order)


def lines(look: Look) -> list[str]:
    """Return the findings, and a table of at most 100 characters a line."""
    rows = list(rows_of(look))
    if len(rows) > MOST_LINES:
        rows = [row for row in rows if row["site"] == TOGETHER]
    cells = [HEADER, *(tuple(_cells(row)) for row in rows)]
    most = (24, 16, 8, 8, 9, 9, 9, 9, 9)
    widths = [min(w, max(len(line[k]) for line in cells)) for k, w in enumerate(most)]
    table = []
    for row, line in zip([None, *rows], cells, strict=True):
        parts = [
            _fit(cell, w) if k < 2 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        if row is not None and math.isnan(row["mean"]):
            parts = [*parts[:4], row["levels"] or row["note"] or row["type"]]
        elif row is not None:
            parts.append(row["note"])
        table.append(_fit("  ".join(parts), 100).rstrip())
    told = findings(look) or [NOTHING]
    return [*(f"- {line}" for line in told), "", *table]


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _cells(row: dict[str, Any]) -> Iterator[str]:
    first = row["site"] == TOGETHER
    yield row["column"] if first else ""
    yield from (str(row[key]) for key in ("site", "rows", "missing"))
    for key in ("mean", "sd", "q05", "median", "q95"):
        yield "" if math.isnan(row[key]) else f"{row[key]:.4g}"


def write(look: Look, output: Path, force: bool = False) -> None:
    """Write look.csv, look.md, look.html and the picture to a folder.

    Raises
    ------
    SettingError
        If the folder exists, unless `force`.
    """
    rows, told = list(rows_of(look)), findings(look) or [NOTHING]
    with written_whole(output, force) as folder:
        document = Document(folder, "A look at the sites", "look")
        sites = ", ".join(f"{name} ({rows} rows)" for name, rows in look.rows.items())
        document.text("{sites}.", sites=sites)
        document.heading("Findings")
        document.bullets(told)
        document.heading("Columns")
        caption = "Each column at each site: its density, or the shares of its levels."
        document.figures((("columns", figure) for figure in pictures(look, told)), caption)
        if (drawn := len(_drawn(look))) > MOST_DRAWN:
            said = "{most} of {drawn} columns are drawn, those with findings first."
            document.text(said, most=str(MOST_DRAWN), drawn=str(drawn))
        cells = [(*_cells(row), row["levels"] or row["type"], row["note"]) for row in rows]
        document.table((*HEADER, "levels, or type", "note"), cells)
        document.write()
        columns = {key: np.array([row[key] for row in rows], object) for key in rows[0]}
        write_table(folder / "look.csv", columns)


def _drawn(look: Look) -> list[str]:
    """Return the names of the columns that have a picture."""
    names = dict.fromkeys(
        name
        for held in look.columns.values()
        for name, told in held.items()
        if told.kind == LEVELS or (name in look.names and _is_drawn(look, name))
    )
    return [*names]


def pictures(look: Look, told: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield small multiples of columns: the sites' densities, or shares of their levels.

    At most `MOST_DRAWN` columns are drawn, those that the findings `told` name first.
    """
    shown = _drawn(look)
    if len(shown) > MOST_DRAWN:
        words = {word for line in told for word in re.findall(r"[^\s,;:()]+", line)}
        shown = sorted(shown, key=lambda name: name not in words)[:MOST_DRAWN]
    for first in range(0, len(shown), TOGETHER_SHOWN):
        yield _picture(look, shown[first : first + TOGETHER_SHOWN])


def _picture(look: Look, shown: Sequence[str]) -> Figure:
    down = math.ceil(len(shown) / ACROSS)
    figure = sheet(4.6, 0.5 + 1.6 * down)
    axes = figure.subplots(down, ACROSS, squeeze=False).ravel()
    sites = list(look.columns)
    colours = {s: COLORS[1 + k % (len(COLORS) - 1)] for k, s in enumerate(sites)}
    for frame, name in zip(axes, shown, strict=False):
        is_wide = name in look.names and not look.is_coded(name)
        draw = _draw_numbers if is_wide else _draw_levels
        draw(frame, look, name, colours)
        frame.set_title(literal(_fit(name, 24).rstrip()), fontsize=9, loc="left")
        frame.tick_params(labelsize=7)
        open_frame(frame)
    for frame in axes[len(shown) :]:
        frame.set_visible(False)
    handles = [figure.gca().plot([], [], color=colours[s], label=literal(s))[0] for s in sites]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    return figure


def _is_drawn(look: Look, name: str) -> bool:
    place = look.names.index(name)
    wide = (
        len(cells[place].edges) > (look.seen(site, name) >= TWO_VALUED)
        for site, cells in look.cells.items()
    )
    return look.is_coded(name) or any(wide)


def _draw_numbers(frame: Axes, look: Look, name: str, colours: dict[str, str]) -> None:
    place = look.names.index(name)
    frame.set_yticks([])
    for site, held in look.cells.items():
        cells = held[place]
        if not len(cells.edges):
            continue
        steps = np.arange(1, 6) / 2
        first, last = (cells.edges[k] for k in (0, -1))
        low, high = first - cells.tails[0] * steps[::-1], last + cells.tails[1] * steps
        inner = cells.edges[:: math.ceil(len(cells.edges) / MOST_SHOWN)]
        points = np.r_[low, inner, last, high] if inner[-1] < last else np.r_[low, inner, high]
        density = np.diff(cells.below(points)) / np.diff(points)
        frame.stairs(density, points, color=colours[site], linewidth=1.1)


def _levels_of(look: Look, site: str, name: str) -> Mapping[str, float]:
    """Return rows of levels; of a column of 0 and 1 their shares."""
    if name not in look.names:
        return look.columns[site][name].levels
    ones = float(look.sums[site].mean[look.names.index(name)])
    return {"0": 1 - ones, "1": ones}


def _draw_levels(frame: Axes, look: Look, name: str, colours: dict[str, str]) -> None:
    held = {s: _levels_of(look, s, name) for s, told in look.columns.items() if name in told}
    different = {level for levels in held.values() for level in levels}
    names = sorted(different, key=lambda level: (level == RARE, level))[:MOST_SHOWN]
    width = 0.8 / len(colours)
    for k, site in enumerate(colours):
        levels = held.get(site, {})
        rows = sum(levels.values()) or 1
        places = np.arange(len(names)) + width * (k + 0.5) - 0.4
        frame.bar(places, [levels.get(n, 0) / rows for n in names], width, color=colours[site])
    labels = [literal(_fit(level or "rare", 9).rstrip()) for level in names]
    frame.set_xticks(range(len(names)), labels, rotation=(0, 30, 90)[min(2, len(names) // 4)])

"""Common part of tasks on tables: the source of rows, and a site's notes on its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbary.data import deal
from fedbary.data.beside import lines
from fedbary.data.deal import Shard
from fedbary.data.examples import Examples
from fedbary.data.frame import Frame
from fedbary.data.grouping import id_repeats
from fedbary.data.sites import Site
from fedbary.data.standardise import SAME, Sums
from fedbary.data.tables import (
    Choice,
    Layout,
    coded_rows,
    load_table,
    plain,
    read_rows,
    require_rows,
    row_numbers,
)
from fedbary.errors import CellError
from fedbary.runs.answered import hashes_of
from fedbary.settings.task_words import OfGuarantees, OfRows
from fedbary.tasks import _sums
from fedbary.tasks._calibrated import row_names
from fedbary.tasks._task import Task
from fedbary.tasks._values import Dialogue, Facts
from fedbary.texts import SCREEN, listed, names_in, one_line

if TYPE_CHECKING:
    from pandas import DataFrame

UNTOLD = "columns or cells that do not fit"
"""Message to the server about a site's table; the site's own log says more."""

NO_SPREAD = "columns without spread in training have no effect"
"""Beginning of the line that names them."""


class Rows(Task):
    """A task on the rows of a table."""

    facts = "standardiser"

    @cached_property
    def own(self) -> OfRows:
        """The task's own settings."""
        return self.settings.of_task(OfRows)

    @cached_property
    def deal(self) -> deal.Deal:
        """Rules by which the rows are dealt; each split has draws of its own."""
        return replace(super().deal, split=self.own.split)

    @property
    def choice(self) -> Choice:
        """Columns that the settings use, and treatment of missing values."""
        own = self.own
        columns = () if own.columns == "all" else tuple(map(plain, names_in(own.columns)))
        leave_out = () if own.leave_out == "none" else tuple(map(plain, names_in(own.leave_out)))
        words = () if own.missing_words == "none" else tuple(names_in(own.missing_words))
        name = "" if own.id == "none" else plain(own.id)
        return Choice(columns, leave_out, name, own.missing, words, plain(self.group))

    @property
    def fills(self) -> bool:
        """True if missing values are filled in."""
        return self.own.missing != "refuse"

    @abstractmethod
    def load(self, name: str, layout: Layout | None = None) -> Examples:
        """Return the rows of a source, coded by a layout, by default their own."""

    @property
    def held(self) -> Examples:
        """The table that the settings name."""
        return self.load(self.settings.dataset)

    def table(self, site: Site) -> Frame:
        """Return all columns of a site's rows as their source has them, the target among them.

        Errors are as in `shard`.
        """
        by, choice = self.settings, self.choice
        how = by.download, choice, "read" if self.numbers else "read_labelled"
        if site.partition is None:
            with told_apart():
                return load_table(site.data_path, by.data_dir, "", *how)
        held = load_table(by.dataset, by.data_dir, self.own.target, *how)
        dealable = row_numbers(held, choice, not self.numbers)
        kept = deal.client_rows(dealable, self.deal, site.partitions)[site.partition]
        assert held.target is not None
        return replace(held, columns={**held.columns, self.own.target: held.target}).rows(kept)

    def hashes(self, site: Site) -> np.ndarray:
        """Return hashes (N,) of a site's own rows, of all cells, whatever the settings use."""
        by, how = self.settings, "read" if self.numbers else "read_labelled"
        with told_apart():
            return hashes_of(load_table(site.data_path, by.data_dir, "", by.download, function=how))

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the device, the data, the split or the model cannot be had."""
        deal.evaluation_data(self.held, self.deal)
        if self.settings.of_task(OfGuarantees).conformal is not None:
            row_names(self.settings, self.signature())
        super().check(own_data)

    def notes(self) -> tuple[str, ...]:
        """Return a line on what the settings' table holds."""
        return (_note(self.held), *id_repeats(self.held.groups, self.group, self.own.id))

    def site_notes(self, site: Site, signature: Layout) -> tuple[str, ...]:
        """Return such a line on a site's own table."""
        if site.partition is not None:
            return ()
        table = self.load(site.data_path, signature)
        return (_note(table, self.group), *id_repeats(table.groups, self.group, self.own.id))

    def signature(self) -> Layout:
        """Return the columns, their levels and the classes of the server's data."""
        return self.held.layout

    def signature_from(self, config: Mapping[str, Any]) -> Layout:
        """Return the layout that a ConfigRecord holds."""
        return Layout.from_config(config)

    def zeros(self, signature: Layout) -> Tensor:
        """Return two rows of zeros (2, D)."""
        return torch.zeros(2, len(signature.features), dtype=torch.float64)

    def shard(self, site: Site, signature: Layout) -> Shard:
        """Return a site's rows, coded as the server's, and their targets.

        Raises
        ------
        CellError
            If a table of the site's own cannot be had or does not fit; the part that may be told
            quotes none of its content.
        """
        if site.partition is not None:
            table = self.load(self.settings.dataset, signature)
            return deal.client_shard(table, self.deal, site.partitions, site.partition)
        with told_apart():
            table = self.load(site.data_path, signature)
            return deal.site_shard(*table.examples, self.deal, site.key, table.groups)

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with counts of the features' values."""
        if question == _sums.MEDIANS:
            return _sums.answer_medians(shard.x, asked)
        return super().answer(question, shard, asked, tensors)

    def ask_fill(self, sums: Sums, layout: Layout) -> Dialogue[dict[str, Tensor]]:
        """Ask for the values that replace missing ones; return them, (D,), if some are filled in.

        Levels and indicators are always filled with their means, the levels' shares.
        """
        if not self.fills:
            return {}
        of_features = sums.first(len(layout.features))
        if self.own.missing != "median":
            return {"fill": of_features.mean}
        medians = yield from _sums.ask_medians(of_features)
        names = [name for name, levels in layout.columns if not levels]
        are_numbers = torch.tensor([feature in names for feature in layout.features])
        return {"fill": torch.where(are_numbers, medians, of_features.mean)}

    def beside(self, answers: Mapping[str, Sums], columns: Sequence[str]) -> Iterator[str]:
        """Yield lines on sites that differ from the others, by the sums of columns."""
        yield from lines(answers, columns)
        layout, place = self.signature(), 0
        for column, levels in layout.columns if self.own.missing == "indicator" else ():
            empty = [
                n for n, s in answers.items() if s.seen is not None and s.seen[place] < s.count
            ]
            if empty and column not in layout.indicated:
                said = (
                    f"column {column} has empty cells at {listed(empty)}, and none in the server's"
                )
                yield f"{said} table: they are filled, and no feature marks them"
            place += max(1, len(levels))

    def idle(self, facts: Facts) -> tuple[str, ...]:
        """Return a line that names the features without spread."""
        names = self.signature().features
        idle = [names[place] for place in _idle(facts, names)]
        return (one_line(f"{NO_SPREAD}: {', '.join(idle)}", SCREEN),) if idle else ()

    def compared(
        self, examples: Examples, facts: Facts, said: Mapping[str, Any] | None
    ) -> tuple[str, ...]:
        """Return a line on rows that differ in features without spread."""
        names, x, differ = examples.layout.features, examples.x, []
        for place in _idle(facts, names):
            usual = facts["mean"][place]
            other = int(((x[:, place] - usual).abs() > SAME * usual.abs()).sum())
            differ += [f"{names[place]} ({other} rows hold another value)"] if other else []
        return (one_line(f"{NO_SPREAD}: {', '.join(differ)}", SCREEN),) if differ else ()

    def inputs(self, x: Tensor | DataFrame, signature: Layout) -> Tensor:
        """Return rows as features (N, D), after a check; columns of a DataFrame by their names.

        Raises
        ------
        SettingError
            As `require_rows` and `coded_rows` do.
        """
        if isinstance(x, Tensor):
            return require_rows(x, signature)
        return coded_rows(x, self.own.target, signature)

    def examples(self, path: Path, signature: Layout) -> Examples:
        """Read the rows of a file."""
        return read_rows(path, self.own.target, signature, self.choice)


@contextmanager
def told_apart() -> Iterator[None]:
    """Raise any error about a site's own table as a CellError that the server may hear of."""
    try:
        yield
    except CellError as error:
        told = error.told or UNTOLD
        raise CellError(error.setting, error.value, error.allowed, told) from None
    except Exception as error:  # any error of reading a file may quote it
        raise CellError("data-path", error, "a table that can be read", UNTOLD) from error


def _idle(facts: Facts, names: Sequence[str]) -> list[int]:
    """Return the places of the features without spread."""
    return facts["std"][: len(names)].isinf().nonzero()[:, 0].tolist() if facts else []


def _note(held: Examples, group: str = "") -> str:
    """Describe a table: rows, numbers and levels, and columns that are not used, nor for groups."""
    columns = held.layout.columns
    numbers = sum(not levels for _, levels in columns)
    parts = [f"{len(held.x)} rows", f"{numbers} columns of numbers"]
    if texts := [f"{name} ({len(levels)})" for name, levels in columns if levels]:
        parts.append(f"levels: {', '.join(texts)}")
    if gone := int(held.x.isnan().any(1).sum()):
        parts.append(f"{gone} rows with missing values")
    parts.extend(held.notes)
    if held.groups is not None:
        parts.append(f"{len(held.groups.unique())} groups")
    if unused := [name for name in held.unused if name != group]:
        parts.append(f"not used: {', '.join(unused)}")
    return f"{held.source}: {'; '.join(parts)}"

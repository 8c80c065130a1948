"""A client's answers in a look, see `fedbary.tasks._look.rules`: of its table, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedbary.client_app.answers import require_same_app, software
from fedbary.client_app.discretion import AnswerRefused
from fedbary.client_app.limits import LimitReached, Told, count, require_size
from fedbary.client_app.node import node_of
from fedbary.data.forms import user_path
from fedbary.data.frame import Frame
from fedbary.data.ids import digests, split
from fedbary.data.sites import Limits, Site
from fedbary.data.tables import Choice
from fedbary.errors import SettingError
from fedbary.runs.answered import Asked, fewest, kept_apart, unusual
from fedbary.runs.functions import of_all_runs
from fedbary.strategies.internals import log
from fedbary.tasks import _sums, task_of
from fedbary.tasks._look import rules
from fedbary.tasks._look.rules import (
    DIGESTS,
    IDS,
    REPEATED,
    WORDS,
    answer,
    own_lines,
    table_told,
)
from fedbary.tasks._rows import Rows
from fedbary.tasks._shown import OF
from fedbary.texts import SCREEN, listed, one_line


def look(message: Message, context: Context) -> Message:
    """Answer a question of a look; without one, say who this is and how many rows it has."""
    node, config = node_of(context), message.content.config_records["config"]
    site, task = node.site, task_of(node.settings)
    if "answers" in site.withheld:
        raise AnswerRefused("this site withholds its answers, and takes no part in a look")
    if not isinstance(task, Rows):
        raise SettingError("task", node.settings.task, "tables or regression")
    whole = task.table(site)
    limits = task.disclosure(site) if site.partition is None else None
    told = Told(whole.count, len(_told(whole, task.choice)))
    require_size(limits, told)
    table = _apart(task, site, whole) if site.partition is None else whole
    columns, question = _told(table, task.choice), str(config.get("question", ""))
    if question:
        if question == "columns":
            for line in own_lines(whole, columns):
                log(WARNING, "%s", one_line(f"{site.name}: {line}", SCREEN))
        log(INFO, "answers a look: %s", question)
        if question in (IDS, REPEATED):
            found = {**_of_ids(site, whole, task.choice.id, config), "count": table.count}
        else:
            found = answer(question, columns, config)
        words = {key: found.pop(key) for key in WORDS if key in found}
    else:
        require_same_app(config)
        part = -1 if site.partition is None else site.partition
        found = {"partition-id": part, "num-partitions": site.partitions, "label-counts": []}
        found |= {"num-examples": table.count, "num-held-out": 0}
        words = {"name": site.name, "content": "", **software()}
    records = RecordDict({"metrics": MetricRecord(found), "site": ConfigRecord(words)})
    terms = told.columns if question == _sums.MOMENTS else 0
    return count(node, limits, told, Message(records, reply_to=message), terms)


def _of_ids(site: Site, table: Frame, column: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digests of the ids, if the site has a key; or log which of them others have."""
    held: dict[bytes, list[int]] = {}
    if site.id_key and (cells := table.columns.get(column)) is not None:
        names = zip(cells.names, cells.missing.tolist(), strict=True)
        held = digests(("" if is_missing else name for name, is_missing in names), site.id_key)
    if asked["question"] == IDS:
        return {DIGESTS: b"".join(held)}
    repeated = split(asked.get(DIGESTS, b""))
    if rows := sorted(row + 1 for digest in repeated for row in held.get(digest, ())):
        said = f"{len(rows)} rows have ids that other sites have, too: {listed(map(str, rows))}"
        log(WARNING, "%s", one_line(f"{site.name}: {said}", SCREEN))
    return {}


def _apart(task: Rows, site: Site, table: Frame) -> Frame:
    """Return a table without the rows that a look and the runs together would show."""
    limits, told = task.disclosure(site) or Limits(), _told(table, task.choice)
    if not (limits.budget and site.state_path) or table.count < fewest(limits, len(told)):
        return table
    folder = user_path(site.state_path)
    with of_all_runs(folder, {OF + name: [f"{name} 0"] for name in told}) as functions:
        count = {name: len(functions[OF + name]) for name in told}
    least = None if max(count.values(), default=1) > 1 else 1
    marks = [m for name, column in told.items() for m in unusual(column.numbers, count[name])]
    held = np.stack(marks, 1) if marks else np.zeros((table.count, 0), dtype=bool)
    asked = Asked(task.hashes(site), held, held[:, :0], len(told))
    kept = kept_apart(folder, asked, limits, least).rows
    if not len(kept):
        raise LimitReached("this site's rows differ from those of earlier answers by too few")
    return table if len(kept) == table.count else _part(table, kept.tobytes())


@lru_cache(maxsize=4)
def _part(table: Frame, kept: bytes) -> Frame:
    return table.rows(np.frombuffer(kept, dtype=np.int64))


@lru_cache(maxsize=4)
def _told(table: Frame, choice: Choice) -> dict[str, rules.Told]:
    return table_told(table, choice)

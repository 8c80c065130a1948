"""A client's answers in a look, see `fedbary.tasks._look.rules`: of its table, without a model."""

from __future__ import annotations

from functools import lru_cache
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedbary.client_app.answers import require_same_app, software
from fedbary.client_app.discretion import AnswerRefused
from fedbary.client_app.limits import count, require_size
from fedbary.client_app.node import node_of
from fedbary.data.frame import Frame
from fedbary.data.tables import Choice
from fedbary.errors import SettingError
from fedbary.strategies.internals import log
from fedbary.tasks import task_of
from fedbary.tasks._look.rules import WORDS, Told, answer, own_lines, table_told
from fedbary.tasks._rows import Rows
from fedbary.texts import SCREEN, one_line


def look(message: Message, context: Context) -> Message:
    """Answer a question of a look; without one, say who this is and how many rows it has."""
    node, config = node_of(context), message.content.config_records["config"]
    site, task = node.site, task_of(node.settings)
    if "answers" in site.withheld:
        raise AnswerRefused("this site withholds its answers, and takes no part in a look")
    if not isinstance(task, Rows):
        raise SettingError("task", node.settings.task, "tables or regression")
    table = task.table(site)
    columns = _told(table, task.choice)
    limits = task.disclosure(site) if site.partition is None else None
    require_size(limits, table.count, len(columns))
    if "question" in config:
        question = str(config["question"])
        if question == "columns":
            for line in own_lines(table, columns):
                log(WARNING, "%s", one_line(f"{site.name}: {line}", SCREEN))
        log(INFO, "answers a look: %s", question)
        found = answer(question, columns, config)
        words = {key: found.pop(key) for key in WORDS if key in found}
    else:
        require_same_app(config)
        part = -1 if site.partition is None else site.partition
        found = {"partition-id": part, "num-partitions": site.partitions, "label-counts": []}
        found |= {"num-examples": table.count, "num-held-out": 0}
        words = {"name": site.name, "content": "", **software()}
    records = RecordDict({"metrics": MetricRecord(found), "site": ConfigRecord(words)})
    return count(node, limits, table.count, len(columns), Message(records, reply_to=message))


@lru_cache(maxsize=4)
def _told(table: Frame, choice: Choice) -> dict[str, Told]:
    return table_told(table, choice)

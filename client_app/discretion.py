"""Discretion of a site: the gate that every reply and every error passes.

Flower sends the text of every error to the server. So errors are rewritten here: content and path
of a site's own data appear only in its own log.
"""

from __future__ import annotations

import re
import traceback
from logging import ERROR
from typing import Any

from flwr.app import Context, Message, MessageType, MetricRecord

from fedbary.client_app.limits import LimitReached
from fedbary.data.forms import user_path
from fedbary.data.sites import Site, site_from
from fedbary.errors import CellError, SettingError
from fedbary.runs.record import SITE_RECORDS, append, entry, who
from fedbary.runs.whole import private_folder
from fedbary.strategies.internals import ClientAppCallable, log
from fedbary.strategies.wire import digest_of, size_of, words_of
from fedbary.texts import printable

EXAMPLES = "num-examples"
"""Metric that every reply holds: it is the reply's weight."""

PLACES = ("data-path", "state-path", "backbone-weights")
"""Keys of a node config that hold paths; no error tells them to the server."""

_SETTING = re.compile(r"(node config: )?[a-z]+([-_][a-z]+)*")


class AnswerRefused(ValueError):
    """The site withholds its answer; the message may go to the server."""


def discretion(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message without withheld facts; an error names only the expected values.

    The site's record has the answer, or the error, before it leaves.
    """
    try:
        site = site_from(context.node_config)
    except SettingError as error:
        raise _error(error, context) from None
    if not site.state_path:
        return _answer(message, context, site, call_next)
    asked = {**words_of(message), "asked": size_of(message.content)}
    try:
        reply = _answer(message, context, site, call_next)
    except Exception as error:
        _record(site, message, context, {**asked, "error": str(error)})
        raise
    size, digest = size_of(reply.content), digest_of(reply.content)
    _record(site, message, context, {**asked, "answered": {**size, "digest": digest}})
    return reply


def _record(site: Site, message: Message, context: Context, words: dict[str, Any]) -> None:
    """Append a message to the site's record; an AnswerRefused if that cannot be written."""
    told = {"node": str(context.node_id), "id": message.metadata.message_id}
    run, folder = context.run_id, user_path(site.state_path) / SITE_RECORDS
    file = folder / f"{run}.jsonl"
    try:
        private_folder(folder.parent)
        private_folder(folder)
        begins = [] if file.exists() else [entry("start", run, name=site.name, **who())]
        append(file, [*begins, entry("message", run, **told, **words)], private=True)
    except OSError as error:
        log(ERROR, "the record %s cannot be written: %s", file, error)
        raise AnswerRefused("the site cannot write its record, and answers nothing") from None


def _answer(
    message: Message, context: Context, site: Site, call_next: ClientAppCallable
) -> Message:
    try:
        reply = call_next(message, context)
    except (AnswerRefused, LimitReached):
        raise
    except Exception as error:  # noqa: BLE001 - whatever went wrong is told by this gate alone
        raise _error(error, context) from None
    phase = message.metadata.message_type.partition(".")[0]
    for metrics in reply.content.metric_records.values() if reply.has_content() else ():
        _withhold(metrics, phase, site.withheld)
    return reply


def _error(error: Exception, context: Context) -> Exception:
    """Log an error, and return what the server may know of it; of a partition, all."""
    config = context.node_config
    if {"partition-id", "num-partitions"} & config.keys():
        return error
    log(ERROR, "%s", _logged(error))
    places = [str(config.get(key, "")) for key in PLACES]
    told = _told(error, [place for place in places if place])
    return ValueError(f"{told}; the site's log says more")


def _logged(error: Exception) -> str:
    """Return an error for the site's own log: whole, without control characters."""
    if isinstance(error, SettingError):
        return str(error)
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(map(printable, lines))


def _told(error: Exception, places: list[str]) -> str:
    """Return an error for the server: its own words for it, or the expected values."""
    if isinstance(error, CellError):
        return getattr(error, "told", "") or "columns or cells that do not fit"
    said = type(error).__name__
    if isinstance(error, SettingError):
        said = f"expected {error.allowed}"
        if _SETTING.fullmatch(error.setting) and error.setting not in places:
            said = f"{error.setting}: {said}"
    return type(error).__name__ if any(place in said for place in places) else said


def _withhold(metrics: MetricRecord, phase: str, withheld: frozenset[str]) -> None:
    """Take withheld facts out of a reply's metrics."""
    if phase == MessageType.QUERY:
        if "label-counts" in withheld and "label-counts" in metrics:
            metrics["label-counts"] = []
        return
    for key in [*metrics]:
        kind = "seconds" if key == "train-seconds" else "scores"
        if key != EXAMPLES and kind in withheld:
            del metrics[key]

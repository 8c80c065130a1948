"""Discretion of a site: the gate that every reply and every error passes.

Flower sends the text of every error to the server. So errors are rewritten here: content and path
of a site's own data appear only in its own log.
"""

from __future__ import annotations

import re
import traceback
from logging import ERROR

from flwr.app import Context, Message, MessageType, MetricRecord

from fedbary.client_app.limits import LimitReached
from fedbary.data.sites import site_from
from fedbary.errors import CellError, SettingError
from fedbary.strategies.internals import ClientAppCallable, log
from fedbary.texts import printable

EXAMPLES = "num-examples"
"""Metric that every reply holds: it is the reply's weight."""

PLACES = ("data-path", "state-path", "backbone-weights")
"""Keys of a node config that hold paths; no error tells them to the server."""

_SETTING = re.compile(r"(node config: )?[a-z]+([-_][a-z]+)*")


class AnswerRefused(ValueError):
    """The site withholds its answer; the message may go to the server."""


def discretion(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message without withheld facts; an error names only the expected values."""
    config = context.node_config
    try:
        withheld = site_from(config).withheld
        reply = call_next(message, context)
    except (AnswerRefused, LimitReached):
        raise
    except Exception as error:  # noqa: BLE001 - whatever went wrong is told by this gate alone
        if {"partition-id", "num-partitions"} & config.keys():
            raise
        log(ERROR, "%s", _logged(error))
        places = [str(config.get(key, "")) for key in PLACES]
        told = _told(error, [place for place in places if place])
        raise ValueError(f"{told}; the site's log says more") from None
    phase = message.metadata.message_type.partition(".")[0]
    for metrics in reply.content.metric_records.values() if reply.has_content() else ():
        _withhold(metrics, phase, withheld)
    return reply


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

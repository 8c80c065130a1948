"""A client mod for Flower's old interface, which its SecAgg and SecAgg+ speak.

Their workflows send FitIns and expect FitRes: arrays without names. Clients of fedbary answer
messages whose arrays have names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedbary.errors import SettingError

from .internals import ClientAppCallable, with_content

SECURE = "secaggplus_state"
"""The record in a node's state that Flower's SecAgg+ mod keeps."""


@dataclass(frozen=True)
class FitMessages:
    """A Flower client mod, ``ClientApp(mods=[secaggplus_mod, FitMessages(keys)])``.

    The client receives the config and the arrays of FitIns, under these keys. FitRes holds the
    arrays of its reply, in this order. Other messages pass unchanged.

    Flower's SecAgg+ silently clips numbers to ± `clipping_range`, and gives a wrong sum above
    `max_weight` examples. The mod refuses such a reply.

    Parameters
    ----------
    keys : sequence of str
        The names of the model's arrays, as its state dict has them.
    """

    keys: Sequence[str]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer FitIns by FitRes.

        Raises
        ------
        SettingError
            If a secure aggregation would clip the reply.
        """
        sent = message.content
        if "fitins.parameters" not in sent:
            return call_next(message, context)
        arrays = (array.numpy() for array in sent.array_records["fitins.parameters"].values())
        named = {key: Array(array) for key, array in zip(self.keys, arrays, strict=True)}
        config = ConfigRecord({"server-round": 1, **sent.config_records["fitins.config"]})
        asked = RecordDict({"arrays": ArrayRecord(named), "config": config})
        reply = call_next(with_content(message, asked), context)
        found = [array.numpy() for array in reply.content.array_records["arrays"].values()]
        examples = cast(int, reply.content.metric_records["metrics"]["num-examples"])
        if SECURE in context.state:
            _require_within(context.state.config_records[SECURE], found, examples)
        numbered = {str(i): Array(array) for i, array in enumerate(found)}
        answer = RecordDict(
            {
                "fitres.parameters": ArrayRecord(numbered),
                "fitres.num_examples": MetricRecord({"num_examples": examples}),
                "fitres.metrics": ConfigRecord({}),
                "fitres.status": ConfigRecord({"code": 0, "message": ""}),
            }
        )
        return with_content(reply, answer)


def _require_within(secure: ConfigRecord, found: Sequence[np.ndarray], examples: int) -> None:
    """Raise a SettingError if SecAgg+ would clip these arrays, or their weight."""
    limit, most = cast(float, secure["clipping_range"]), cast(int, secure["max_weight"])
    if any(array.size and np.abs(array).max() > limit for array in found):
        allowed = "above every number that a client sends; the largest product of two features"
        raise SettingError("clipping_range", limit, allowed)
    if examples > most:
        raise SettingError("max_weight", most, "at least the examples of every client")

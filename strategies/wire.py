"""A message on its way, in words and numbers, for both sides' records of a run."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from flwr.app import Array, Message, RecordDict


def words_of(message: Message) -> dict[str, Any]:
    """Return a message's kind, its round and its question, if it has them."""
    config = {k: v for record in message.content.config_records.values() for k, v in record.items()}
    named = {"round": config.get("server-round"), "question": config.get("question")}
    kind = {"kind": message.metadata.message_type}
    return kind | {name: value for name, value in named.items() if value is not None}


def numbers_of(content: RecordDict) -> int:
    """Return how many numbers the arrays and the metrics of a message have."""
    arrays = content.array_records.values()
    held = sum(math.prod(array.shape) for record in arrays for array in record.values())
    metrics = [v for record in content.metric_records.values() for v in record.values()]
    return held + sum(len(value) if isinstance(value, list) else 1 for value in metrics)


def size_of(content: RecordDict) -> dict[str, int]:
    """Return a message's numbers, and its bytes: of arrays, 8 a metric, and of its words."""
    arrays = [array for record in content.array_records.values() for array in record.values()]
    scores = [v for record in content.metric_records.values() for v in record.values()]
    words = [v for record in content.config_records.values() for v in record.values()]
    size = sum(len(array.data) for array in arrays) + sum(len(str(word)) for word in words)
    size += 8 * sum(len(value) if isinstance(value, list) else 1 for value in scores)
    return {"numbers": numbers_of(content), "bytes": size}


def digest_of(content: RecordDict) -> str:
    """Return the SHA-256 of a message's names, types, shapes and values, in the names' order."""
    found = hashlib.sha256()
    for name in sorted(content):
        for key, value in sorted(content[name].items()):
            if isinstance(value, Array):
                head = [name, key, value.dtype, [*value.shape], value.stype, len(value.data)]
                found.update(json.dumps(head).encode())
                found.update(value.data)
            else:
                found.update(json.dumps([name, key, repr(value)]).encode())
    return found.hexdigest()

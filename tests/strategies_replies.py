"""Real Flower messages for the strategies' tests."""

from types import SimpleNamespace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from fedbary.strategies import RKLB, Federation

NO_GRID = SimpleNamespace(get_node_ids=list)
"""A grid without nodes, where the nodes are chosen and the replies made."""


NOBODY = Federation(trainers=lambda server_round: [])
"""A federation in which nobody is asked."""


def state(seed: int) -> dict[str, torch.Tensor]:
    """A small model's state dict in fedbary's names."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(2, 3, generator=generator),
        "bn.running_mean": torch.randn(2, generator=generator),
        "bn.num_batches_tracked": torch.tensor(7 + seed),
        "fc.weight_mean": torch.randn(4, 3, generator=generator),
        "fc.weight_log_var": torch.randn(4, 3, generator=generator) - 4,
        "fc.scalar_mean": torch.randn((), generator=generator),
        "fc.scalar_log_var": torch.randn((), generator=generator),
    }


GLOBAL = ArrayRecord(state(0))


def started(strategy=None, arrays=GLOBAL, server_round=1):
    """A strategy that has sent the global arrays, to nobody."""
    strategy = strategy or RKLB()
    strategy.admission.federation = NOBODY
    assert strategy.configure_train(server_round, arrays, ConfigRecord(), NO_GRID) == []
    return strategy


def metadata(node_id: int) -> Metadata:
    return Metadata(1, f"{node_id}", node_id, 0, "", "", 0.0, 3600.0, "train")


def reply(node_id: int, arrays=None, **metrics) -> Message:
    """A reply with `arrays` (a state dict or record, by default state(node_id)), and metrics.

    The weight is 1 + node_id unless `num_examples` is given; other underscores become hyphens too.
    """
    metrics = {"num_examples": 1 + node_id, **metrics}
    metrics = {key.replace("_", "-"): value for key, value in metrics.items() if value is not None}
    if not isinstance(arrays, ArrayRecord):
        arrays = ArrayRecord(state(node_id) if arrays is None else arrays)
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content, metadata=metadata(node_id))


def failure(node_id: int, reason: str | None) -> Message:
    return Message(Error(2, reason), metadata=metadata(node_id))


def raw(record: ArrayRecord) -> dict[str, bytes]:
    """The bytes of a record, to compare exactly."""
    return {key: array.data for key, array in record.items()}

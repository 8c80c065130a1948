"""What runs are made of, from their settings."""

from torch import nn

from fedbary.settings.config import Settings
from fedbary.tasks import task_of


def network(settings: Settings) -> nn.Module:
    """Return the network of a run on the server's own data."""
    task = task_of(settings)
    return task.make_model(task.signature())

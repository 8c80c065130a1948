"""What a task says of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedbary.parts.parameters import Checked
from fedbary.settings.config import Settings

Condition = tuple[str, bool, str]
"""A setting, whether it fits the others, and what is allowed."""

Conditions = Callable[[Settings], Iterator[Condition]]


class OwnSettings:
    """What a task says of settings; a task below another inherits it.

    Attributes
    ----------
    Parameters : type
        The settings that the task owns, a frozen dataclass.
    defaults : mapping
        A task of one's own: defaults of settings, where they differ from those of its base.
    reads : str
        The folder of its data sets, the function that reads one, and the endings of files that it
        reads. Without endings it reads any path. It is read from the task's file, before PyTorch is
        imported. A task of one's own that leaves it empty reads `dataset` itself, any text.
    best_by : sequence of str
        Scores that may choose the best round; `fedbary.runs.direction` has the better direction.
    conditions : sequence of functions
        Each yields conditions on a run's settings.
    one_class : bool
        False if an example has several classes: methods that learn from one softmax do not fit.
    """

    Parameters: type[Checked]
    defaults: Mapping[str, object] = {}
    reads = ""
    best_by: Sequence[str] = ()
    conditions: Sequence[Conditions] = ()
    one_class = True

"""As what functions a site's columns stood in its answers, over all runs.

Sums of a column in one run and of its square in another combine as those of both in one run do. So
do splines with other knots, and intervals of time with other cuts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.runs.whole import locked, write_whole

FUNCTIONS = "functions.json"
"""The file in a site's state folder that holds them."""


@contextmanager
def of_all_runs(folder: Path, asked: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, list[Any]]]:
    """Yield by column what a site was asked for in all runs.

    These are names of functions, or points where they bend. They are kept unless an error ends the
    block.
    """
    with locked(folder):
        file = folder / FUNCTIONS
        try:
            found = json.loads(file.read_bytes()) if file.exists() else {}
            keys = found.keys() | asked.keys()
            every = {key: sorted({*found.get(key, ()), *asked.get(key, ())}) for key in keys}
        except (ValueError, TypeError, AttributeError) as error:
            allowed = "the file as the site wrote it; without it the site would tell more"
            raise SettingError(str(file), error, allowed) from None
        yield every
        if every != found:
            write_whole(file, json.dumps(every).encode())

"""The end of a process: what PyTorch's import leaves takes a second or two to collect."""

import gc
import sys


def spare_imports() -> None:
    """Leave all that there is now out of every later collection, so that the process ends at once.

    Triton's bindings would complain of what is not collected: where they are loaded nothing is
    spared.
    """
    if "triton" not in sys.modules:
        gc.freeze()

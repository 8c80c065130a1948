"""Pictures: each function returns a matplotlib Figure, which writes itself by ``savefig``."""

import os


def draw_without_screen() -> None:
    """Let matplotlib draw to files alone, whatever a notebook has written into MPLBACKEND.

    It is called before matplotlib is imported, which refuses a backend that is not installed here.
    """
    os.environ["MPLBACKEND"] = "agg"

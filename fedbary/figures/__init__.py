"""Pictures: each function returns a matplotlib Figure, which writes itself by ``savefig``."""

import os


def draw_without_screen() -> None:
    """Let matplotlib draw to files alone, whatever a notebook has written into MPLBACKEND.

    Call it before importing matplotlib, which refuses a backend that is not installed here.
    """
    os.environ["MPLBACKEND"] = "agg"

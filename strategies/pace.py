"""Whether a strategy makes rounds or does not wait: its argument `asynchronous` says so."""

from __future__ import annotations

from typing import Any, Self


class Paced:
    """A strategy that makes rounds, and does not wait if it is given `asynchronous`.

    `RKLB(asynchronous=Asynchronous(buffer=5))` is an `AsynchronousStrategy` and an `RKLB`.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an instance of the class, or of the one that does not wait."""
        # The class that does not wait is a strategy too, so it can only be imported once this is.
        from .asynchronous import without_rounds

        kind: type[Any] = cls
        made: Self = object.__new__(without_rounds(kind) if "asynchronous" in kwargs else kind)
        return made

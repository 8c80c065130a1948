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
        from .arrivals import without_rounds

        kind: Any = cls
        waits = kwargs.get("asynchronous") is None
        made: Self = object.__new__(kind if waits else without_rounds(kind))
        return made

    def __init__(self, *args: Any, asynchronous: None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if asynchronous is not None:
            name = type(self).__name__
            raise TypeError(f"give asynchronous to {name} itself: {name}(asynchronous=…)")

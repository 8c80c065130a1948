"""Durations in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return seconds in their two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

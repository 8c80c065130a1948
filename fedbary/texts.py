"""Texts of strangers, made fit for one line of a log or of a file."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable

LONGEST = 200
"""Characters that are shown of a stranger's text."""

SCREEN = 2000
"""Characters of the longest line that is shown: a screen of 24 lines of 80, and a little."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character of UTF-16, which no text of Unicode holds; a byte that is not UTF-8."""

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_CUT = " … "

_DEAD = re.compile(r"\bActor(Died|Unavailable)Error\b|The actor (died|\S+ is unavailable)")
"""Ray's words for a worker that was killed."""

_PERHAPS = " (perhaps out of memory: Ray kills workers at 95 %)"

_FRAME = "Exception ClientAppException occurred. Message: "
_RAISED = re.compile(r"<class '(?:[^']*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)


def shown(text: object) -> str:
    """Return a text as one printable line of at most `LONGEST` characters.

    White space becomes single spaces. Unprintable characters (escape sequences, marks that turn the
    direction of writing) are escaped as in a Python string. A longer text keeps its beginning,
    which tells its kind, and its end, which holds an error's cause.
    """
    return one_line(str(text), LONGEST)


def one_line(text: str, most: int) -> str:
    """Return a text as `shown` does, of at most `most` characters."""
    if len(text) > 4 * most:  # escapes make a text longer, so more would not fit
        text = text[: 2 * most] + _CUT + text[-2 * most :]
    return cut(printable(" ".join(text.split())), most)


def cut(text: str, most: int = LONGEST) -> str:
    """Return a text of at most `most` characters: the first third of them, and the end."""
    if len(text) <= most:
        return text
    return text[: most // 3] + _CUT + text[most // 3 + len(_CUT) - most :]


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC): ``ä`` is one sign, on every system.

    Characters that control a terminal, a line or the direction of writing are escaped.
    """
    return _CONTROLS.sub(lambda found: printable(found[0]), unicodedata.normalize("NFC", name))


def cause(reason: object) -> str:
    """Return the cause in one of Flower's error replies, as `shown` does.

    Flower frames an exception's kind and message; with Ray it puts Ray's account before them. Ray
    kills a worker when memory runs short, but says so in its own log alone: the cause says it.
    """
    _, frame, message = str(reason).rpartition(_FRAME)
    if frame:
        return shown(message.removesuffix("'>"))
    if _DEAD.search(message):
        return one_line(message, LONGEST - len(_PERHAPS)) + _PERHAPS
    raised = _RAISED.fullmatch(message)
    return shown(f"{raised[1]}: {raised[2]}" if raised else message)


def names_in(text: str) -> list[str]:
    """Return the names in a text with commas between; a name with a comma stands in quotes."""
    try:
        names = next(csv.reader([text], skipinitialspace=True), [""])
    except csv.Error:  # it has a line's end
        names = text.split(",")
    return [name.strip() for name in names]


def listed(names: Iterable[object], between: str = ", ") -> str:
    """Return names with commas between, as `names_in` reads them."""
    return between.join(map(_quoted, map(str, names)))


def _quoted(name: str) -> str:
    if "," not in name and not name.startswith('"'):
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ in case or blanks alone."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        first = seen.setdefault("".join(name.split()).casefold(), name)
        if first != name:
            pairs.append((first, name))
    return pairs


def printable(text: str) -> str:
    """Return a text with unprintable characters escaped as in a Python string."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )

"""The meaning of a cell: a name, a number, or nothing; the same for all formats and sites.

A name (of a class, a level, a column) is the cell's text in Unicode's form NFC, without space
around it. A whole number keeps all its digits: `007` is not `7`, and `1E1` is not `10`. There are
two exceptions, because programs write both forms: `3.0` is `3`, and `true` and `TRUE` are `True`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Texts that stand for a missing value, in capital or small letters."""

BOOLEANS = {"true": "True", "false": "False"}

_WHOLE = re.compile(r"([+-]?(?:0|[1-9]\d*))\.0+", re.ASCII)

DIGITS = r"[+-]?(?:0\d+|\d{16,})"
"""Digits that may be no number."""

EXPONENT = r"\d+E\d+"
"""`1E2` in every cell: a code, for programs write 1E+02."""

_NUMBER = "a number such as -1163.74: a point, no separators, no % and no currency"
_DATE = "a number, such as days since a date: dates and times are not read"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"

_DISGUISED = (
    (r"[+−–-]?\d{1,3}(?:[,.'’_ \u00a0\u202f]\d{3})+(?:[.,]\d+)?", _NUMBER),
    (r"(?=.*[^\x00-\x7f])[+−–-]?[\d٫٬.,]+", _NUMBER),
    (r"0x[\da-f]+", _NUMBER),
    (r"[+−–-]?\d*,\d+", _NUMBER),
    (r"[−–]\d+(?:\.\d+)?|\([\d.,]+\)", _NUMBER),
    (r"[+−–-]?[\d.,]+ ?%", _NUMBER),
    (r"[+−–-]?[$€£¥] ?[\d.,]*\d|[+−–-]?[\d.,]*\d ?[$€£¥]", _NUMBER),
    (r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ].*)?", _DATE),
    (r"\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(?: .*)?", _DATE),
    (rf"(?:\d+[ -])?{_MONTH}(?:[ -]\d+,?)?[ -]\d{{2,4}}", _DATE),
    (r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?", _DATE),
)
"""Texts that people read as numbers or dates, each with what is taken in their place."""

_WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s?(?:(\D+)|([^\w\s]\D*?)\s?\d[\d.,]*)|(Q)[1-4] \d+")


def plain(text: object) -> str:
    """Return a text in one form of Unicode, without space around it."""
    return unicodedata.normalize("NFC", str(text)).strip()


def name_of(cell: object) -> str:
    """Return the name of a class or a level that a cell says."""
    text = plain(cell)
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    return BOOLEANS.get(text.casefold(), text)


def is_code(name: str) -> bool:
    """Return whether a name would lose digits as a number: a leading zero, or those beyond 2^53."""
    if not re.fullmatch(DIGITS, name, re.ASCII):
        return False
    digits = name.lstrip("+-")
    return digits[0] == "0" or len(digits) > 16 or int(digits) > 2**53


def disguised(texts: Iterable[str]) -> str:
    """Return the plain form of texts that people read as numbers or dates; "" for other texts.

    Plain numbers may be among them.
    """
    held = set(texts)
    for form, instead in _DISGUISED:
        odd = {text for text in held if re.fullmatch(form, text, re.IGNORECASE)}
        if odd and all(re.fullmatch(r"[+-]?[\d.,' ]+", text) for text in held - odd):
            return instead
    return ""


def unit_of(texts: Iterable[str]) -> str:
    """Return the unit behind a number, or the sign between two, in all of some texts; or ""."""
    found = [_WITH_UNIT.fullmatch(text) for text in texts]
    units = {match[match.lastindex or 0] if match else "" for match in found}
    return units.pop() if len(units) == 1 and len(found) > 1 else ""


def order_of(names: Iterable[str]) -> list[str]:
    """Return names in their order: whole numbers by size, others in alphabetical order."""
    held = sorted(names)
    if all(re.fullmatch(r"[+-]?\d+", name, re.ASCII) for name in held):
        return sorted(held, key=Decimal)  # int refuses more than 4,300 digits
    return held

"""Contents of a folder of pictures: files that are read, files that are not, and hidden ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedbary.data.image_files import IMAGES
from fedbary.errors import SettingError
from fedbary.texts import shown

SYSTEM = {"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin"}
"""Files and folders that systems leave among a user's, in small letters."""

MOST_NAMED = 5
"""Number of names of one kind that a line shows."""


@dataclass(frozen=True)
class Contents:
    """The files of a folder, at any depth.

    Attributes
    ----------
    pictures : tuple of Path
        Those whose endings are formats of pictures, in the order of their paths.
    others : tuple of Path
        Those that are not read.
    hidden : tuple of str
        Names of hidden files and folders, whose content is not looked at.
    """

    pictures: tuple[Path, ...]
    others: tuple[Path, ...]
    hidden: tuple[str, ...]

    def unread(self) -> list[str]:
        """Describe what is not read, in a line: the number of files by ending, and hidden names."""
        endings = Counter(file.suffix.lower() or "without an ending" for file in self.others)
        parts = [f"{named([f'{n} {e}' for e, n in endings.items()])} not read"] if endings else []
        return [*parts, *([f"hidden: {named(sorted(set(self.hidden)))}"] if self.hidden else [])]


def contents(folder: Path) -> Contents:
    """Return a folder's contents; links to folders and special files are skipped.

    Raises
    ------
    SettingError
        If a folder in it may not be read.
    """
    found: tuple[list[Path], list[Path]] = [], []
    hidden = []
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise SettingError(str(folder), error, "a folder that can be read") from None
    for path in paths:
        if is_hidden(path.name):
            hidden.append(path.name)
        elif path.is_dir() and not path.is_symlink():
            inner = contents(path)
            found[0].extend(inner.pictures)
            found[1].extend(inner.others)
            hidden.extend(inner.hidden)
        elif path.is_file():
            found[path.suffix.lower() not in IMAGES].append(path)
    return Contents(tuple(sorted(found[0])), tuple(sorted(found[1])), tuple(hidden))


def is_hidden(name: str) -> bool:
    """Return whether a name belongs to the system or a program, and so is no data."""
    return name.startswith(".") or name.casefold() in SYSTEM


def formats(pictures: Iterable[Path]) -> str:
    """Return how many pictures of each format there are, such as "120 PNG, 4 JPEG"."""
    counts = Counter(IMAGES[file.suffix.lower()] for file in pictures)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) or "no picture"


def named(names: Iterable[str]) -> str:
    """Return names for a line, the first of many."""
    first, *others = map(shown, names)
    listed = ", ".join([first, *others[: MOST_NAMED - 1]])
    left = len(others) + 1 - MOST_NAMED
    return f"{listed} and {left} more" if left > 0 else listed

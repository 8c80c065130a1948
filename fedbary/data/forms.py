"""Sources of data and backbones: a setting's text, parsed once to a value."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from fedbary.errors import SettingError
from fedbary.parts.registry import accepted_forms, is_factory, modules


def user_path(path: Path | str) -> Path:
    """Return a path whose leading ``~`` is the user's home; of a user unknown here it stays."""
    return Path(os.path.expanduser(path))


def content_of(file: Path) -> bytes:
    """Return what a file holds; an OSError if it cannot be read, see `require_regular`."""
    require_regular(file)
    return file.read_bytes()


def require_regular(file: Path) -> None:
    """Raise an OSError for a pipe or a device, whose reader may wait for ever."""
    try:
        mode = file.stat().st_mode  # once: another process may remove the file meanwhile
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(f"{file} is a pipe or a device")


FUNCTION = "function"
"""The kind of a function of one's own, ``package.module:function``."""

PATH = "path"
"""The kind of the package's own data sets, and of paths whose ending belongs to no format."""

OTHER_ENDINGS = {".csv.gz": "csv", ".tsv": "csv"}
"""Endings of files that a format reads beside that of its own name."""

BACKBONES = "timm:NAME, torchvision:NAME, hf:OWNER/NAME, or package.module:factory"
"""The forms that the name of a backbone may have."""

_OF_BACKBONES = ("timm", "torchvision", "hf")


@dataclass(frozen=True)
class DataSource:
    """Source of data or of a backbone.

    Attributes
    ----------
    text : str
        Text of the setting.
    kind : str
        The file that reads it: in `fedbary.data.sources` for ``kind:place:part``, in
        `fedbary.data.formats` for the path of a file. Otherwise `FUNCTION` or `PATH`.
    place : str
        Name in a library, a module, or a path.
    part : str
        A configuration, a split or a function; "" if the text has none.
    """

    text: str
    kind: str
    place: str
    part: str = ""

    @property
    def is_code(self) -> bool:
        """True for a function of the user's own."""
        return self.kind == FUNCTION

    @property
    def is_path(self) -> bool:
        """True for a path, which has a slash, whatever lies there."""
        return "/" in self.text and not self.is_elsewhere

    @property
    def is_file(self) -> bool:
        """True for a path with a known format's ending, whether the file exists or not."""
        return self.kind in modules("data/formats")

    @property
    def is_elsewhere(self) -> bool:
        """True if a library or a function provides it, so that no file of its name is needed."""
        return self.is_code or self.kind in libraries()

    @property
    def has_columns(self) -> bool:
        """True if its images are a column among others, so that a label column must be named."""
        return any(self.kind in modules(room, "image_columns") for room in _ROOMS)

    @property
    def held(self) -> str:
        """The text without the library's name."""
        return ":".join([self.place, *([self.part] if self.part else [])])

    @property
    def stem(self) -> str:
        """A short name, for a run's folder."""
        return Path(self.part or self.place).stem

    def path(self, data_dir: Path | str) -> Path:
        """Return where it lies if it is a path: absolute, here, or else in a folder."""
        here = user_path(self.held)
        return here if here.exists() else Path(data_dir) / here

    def located(self) -> str:
        """Return the text with an absolute path where it is that of a file or folder here."""
        path = user_path(self.held)
        may_lie_here = self.kind in modules("data/sources", "local")
        if self.is_elsewhere and not may_lie_here:
            return self.text
        is_path = may_lie_here or self.is_path or (path.suffix and path.is_file())
        prefix = f"{self.kind}:" if may_lie_here else ""
        return prefix + str(path.resolve()) if is_path and path.exists() else self.text


_ROOMS = ("data/sources", "data/formats")


def libraries() -> tuple[str, ...]:
    """Return the prefixes of texts, before a colon."""
    return modules("data/sources")


def endings(function: str = "") -> dict[str, str]:
    """Return the formats by file ending; given a function's name, those that define it."""
    known = modules("data/formats", function)
    own = {f".{name}": name for name in known}
    return own | {end: name for end, name in OTHER_ENDINGS.items() if name in known}


def elsewhere(*functions: str) -> str:
    """Return the forms of sources that are no path and define a function, for an error."""
    return ", ".join([*accepted_forms("data/sources", functions), "or package.module:function"])


@lru_cache(maxsize=256)
def source_of(text: str) -> DataSource:
    """Return the source that ``dataset=`` names; a text of no known form is a `PATH`."""
    if found := _of_library(text, libraries()) or _of_function(text):
        return found
    ending = [name for end, name in endings().items() if text.lower().endswith(end)]
    return DataSource(text, ending[0] if ending else PATH, text)


def backbone_of(text: str) -> DataSource | None:
    """Return the source that ``backbone=`` names; None for a text of another form."""
    found = _of_library(text, _OF_BACKBONES)
    return found if found and found.held else None if found else _of_function(text)


def require_backbone(text: str) -> None:
    """Raise a SettingError unless a text has a form that ``backbone=`` reads, or is none."""
    if text != "none" and backbone_of(text) is None:
        raise SettingError("backbone", text, f"none, {BACKBONES}")


def _of_library(text: str, known: tuple[str, ...]) -> DataSource | None:
    kind, colon, held = text.partition(":")
    if not (colon and kind in known):
        return None
    place, _, part = held.partition(":")
    return DataSource(text, kind, place, part)


def _of_function(text: str) -> DataSource | None:
    return DataSource(text, FUNCTION, *text.split(":")) if is_factory(text) else None


ReadOnce = TypeVar("ReadOnce")

_looks: ContextVar[dict[Hashable, Hashable] | None] = ContextVar("looks", default=None)


@contextmanager
def one_state(run: int | None = None) -> Iterator[None]:
    """Look at each file once inside this context; later changes are not read.

    With the number of a run, look once in all contexts of that run; inside another context, that
    context's looks are used.
    """
    outer = _looks.get()
    seen = {} if run is None else _of_run(run) if outer is None else outer
    token = _looks.set(seen)
    try:
        yield
    finally:
        _looks.reset(token)


@lru_cache(maxsize=1)
def _of_run(run: int) -> dict[Hashable, Hashable]:
    """Return what the last run in this process has looked at."""
    return {}


def state_of(path: Path) -> Hashable:
    """Return the state of a file or folder: sizes and times of change.

    Outside `one_state` the path is looked at anew.
    """
    return _once(path.absolute(), lambda: _look(path))


def source_state(source: DataSource, data_dir: Path) -> Hashable:
    """Return the state of a source's data; a user's own function has a new one each time."""
    if source.is_code:
        return _once(source, object)
    return state_of(source.path(data_dir)) if source.text else None


class Kept(Generic[ReadOnce]):
    """Values by key, each with the state of its files; a value of another state is read anew.

    Parameters
    ----------
    most : int
        Largest number of values; the one that is longest unused is dropped.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._held: dict[Hashable, tuple[Hashable, ReadOnce]] = {}

    def get(self, key: Hashable, state: Hashable, read: Callable[[], ReadOnce]) -> ReadOnce:
        """Return the value of a key, read if there is none of this state."""
        found = self._held.pop(key, None)
        if found is None or found[0] != state:
            found = state, read()
        self._held[key] = found
        if len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        return found[1]


def _once(key: Hashable, look: Callable[[], Hashable]) -> Hashable:
    """Return what a look finds; inside `one_state` it is that of the first look for the key."""
    seen = _looks.get()
    if seen is None:
        return look()
    if key not in seen:
        seen[key] = look()
    return seen[key]


def _look(path: Path) -> Hashable:
    """Return a path with size and time of change of a file, or a hash of those in a folder."""
    try:
        found = path.stat()
    except OSError:
        return path.absolute(), None
    if not stat.S_ISDIR(found.st_mode):
        return path.absolute(), found.st_ino, found.st_size, found.st_mtime_ns
    of_files = hashlib.blake2b(digest_size=16)
    for place, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(place, name)
            held = os.stat(file) if os.path.exists(file) else None
            told = (held.st_size, held.st_mtime_ns) if held else None
            of_files.update(repr((file, told)).encode())
    return path.absolute(), of_files.hexdigest()

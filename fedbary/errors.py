"""The errors that end a command with one line instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbary import texts

SHOWN = 500
"""Characters that a message shows of a setting's name, which may be a path, and of its value."""

_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Words in which PyTorch, pandas and C++ say that memory ran out."""


class SettingError(ValueError):
    """A setting, file or argument held a value that is not allowed.

    The message is one line: ``setting: value; expected allowed``. Long texts lose their middle,
    because each may be a stranger's: a value is shown in 500 characters.

    Parameters
    ----------
    setting : str
        The name of the setting, file or argument.
    value : object
        Its value; or the error of reading it, shown in its place.
    allowed : str
        Allowed values, in words that continue "expected".
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        where, wanted = _printable(setting, SHOWN), _printable(allowed, texts.SCREEN)
        super().__init__(f"{where}: {_held(value)}; expected {wanted}")
        self.setting = setting
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["SettingError"], tuple[Any, ...]]:
        return SettingError, (self.setting, self.value, self.allowed)


class CellError(SettingError):
    """A table held what is not allowed; its message may hold names and cells of the table.

    Parameters
    ----------
    setting, value, allowed
        As of `SettingError`.
    told : str
        Message that a site may send to the server.
    """

    def __init__(self, setting: str, value: object, allowed: str, told: str = "") -> None:
        super().__init__(setting, value, allowed)
        self.told = told

    def __reduce__(self) -> tuple[type[SettingError], tuple[Any, ...]]:
        return CellError, (self.setting, self.value, self.allowed, self.told)


class RunError(RuntimeError):
    """A run could not be started or ended without a result; the message is one line."""


class Stopped(BaseException):
    """A signal ends the command; the message says how to resume the run, if there is one."""


def one_line(error: Exception) -> str:
    """Return an error's message in one line; its type if it has none."""
    return texts.one_line(str(error), texts.SCREEN) or type(error).__name__


def last_words(error: Exception) -> str | None:
    """Return the one line with which an error ends a command; None for a fault of the program.

    An error of the memory is no fault: the data, or the model, are too large for this machine.
    """
    if isinstance(error, SettingError | RunError | OSError):
        return one_line(error)
    if is_of_memory(error):
        return f"too little memory here: {one_line(error)}; expected data that fit into memory"
    return None


def is_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, that of a GPU too: libraries have errors of their own."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OF_MEMORY)


def _printable(text: str, most: int) -> str:
    return texts.cut(texts.printable(texts.cut(text, most)), most)


def _held(value: object) -> str:
    if isinstance(value, Exception):
        return texts.cut(one_line(value), SHOWN)
    return _printable(repr(texts.cut(value, SHOWN) if isinstance(value, str) else value), SHOWN)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name a file in the operating system's errors: those of a full disk name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error

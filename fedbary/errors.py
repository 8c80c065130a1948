"""The errors that end a command with one line instead of a traceback."""

from typing import Any

from fedbary.texts import printable


class SettingError(ValueError):
    """A setting, file or argument held a value that is not allowed.

    The message is one line: ``setting: value; expected allowed``.

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
        held = one_line(value) if isinstance(value, Exception) else repr(value)
        super().__init__(printable(f"{setting}: {held}; expected {allowed}"))
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
    return printable(" ".join(str(error).split())) or type(error).__name__

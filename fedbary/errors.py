"""The errors that end a command with one line instead of a traceback."""

from fedbary.texts import printable


class SettingError(ValueError):
    """A setting, file or argument held a value that is not allowed.

    The message is one line: ``setting: value; expected allowed``.

    Parameters
    ----------
    setting : str
        The name of the setting, file or argument.
    value : object
        What it held; or the error that reading it raised, whose text then stands in its place.
    allowed : str
        What is allowed, in words that go on from "expected".
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        held = one_line(value) if isinstance(value, Exception) else repr(value)
        super().__init__(printable(f"{setting}: {held}; expected {allowed}"))
        self.setting = setting
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["SettingError"], tuple[str, object, str]]:
        return SettingError, (self.setting, self.value, self.allowed)


class CellError(SettingError):
    """A cell of a table held a value that is not allowed."""

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, object, str]]:
        return CellError, (self.setting, self.value, self.allowed)


class RunError(RuntimeError):
    """A run could not be started or ended without a result; the message is one line."""


class Stopped(BaseException):
    """A signal ends the command; the message says how to go on, if there is something to go on."""


def one_line(error: Exception) -> str:
    """Return what an error says, in one line; its type where it says nothing."""
    return printable(" ".join(str(error).split())) or type(error).__name__

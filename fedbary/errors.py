"""The errors that end a command with one line instead of a traceback."""


class SettingError(ValueError):
    """A setting, file or argument held a value that is not allowed.

    The message is one line: the name of the setting, what it held, and what is allowed.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        super().__init__(f"{setting}: {value!r} is not allowed; allowed: {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["SettingError"], tuple[str, object, str]]:
        return SettingError, (self.setting, self.value, self.allowed)


class RunError(RuntimeError):
    """A run could not be started or ended without a result; the message is one line."""

"""What is refused: a call raises an error, whose line says why."""

import pytest

from fedbary.errors import SettingError


def refused(match, call, /, *arguments, **more):
    """Hold that a call raises a SettingError whose line matches; return the error."""
    with pytest.raises(SettingError, match=match) as caught:
        call(*arguments, **more)
    return caught.value

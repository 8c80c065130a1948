"""A path's ~ is the user's home."""

from pathlib import Path

import pytest

from fedbary.data.forms import user_path


@pytest.mark.parametrize("rest", ["", "/runs/a b", "/~"])
def test_a_leading_mark_is_the_home_and_no_other(rest):
    assert user_path(f"~{rest}") == Path(f"{Path.home()}{rest}")
    assert user_path(Path(f"here{rest}")) == Path(f"here{rest}")


def test_the_home_of_a_user_who_is_unknown_here_is_a_name_like_any_other():
    assert user_path("~nobody-here/runs") == Path("~nobody-here/runs")

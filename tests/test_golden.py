"""Small runs and lists of words are what the golden files pin.

On the machine of the file bits are compared, elsewhere numbers to rounding.
"""

import json

import golden
import golden_words
import pytest

GOLDEN = json.loads(golden.FILE.read_text(encoding="utf-8"))
WORDS = json.loads(golden_words.FILE.read_text(encoding="utf-8"))
SAME_MACHINE = golden.machine() == GOLDEN["machine"]
NUMBERS = ("scores", "posterior", "state", "predictions")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * bool(i % 8)) for i, n in enumerate(golden.names())],
)
def test_a_run_is_the_pinned_one(name, tmp_path):
    own = f"method/{golden.GOES_ON[name]}" if name in golden.GOES_ON else name
    pinned, made = GOLDEN["runs"][own], golden.made(name, tmp_path / "run")
    for part in NUMBERS:
        assert made[part] == pytest.approx(pinned[part], rel=1e-3, abs=1e-3, nan_ok=True), part
    if name == own:
        assert made.get("folder") == pinned.get("folder")
    if SAME_MACHINE:
        assert made["digest"] == pinned["digest"]


def test_every_pinned_run_is_made():
    assert [*golden.pinned()] == [*GOLDEN["runs"]]


def test_words_make_the_pinned_settings_or_are_refused_by_the_pinned_one():
    assert {words: golden_words.outcome(words) for words in golden_words.lists()} == WORDS

"""What a sweep's bar says of the time that is left."""

import pytest
from rich.progress import Progress

from fedbary.settings.config import resolve
from fedbary.study import meter


@pytest.mark.parametrize("before", [0, 30])
def test_what_is_left_is_told_by_the_rounds_of_this_sweep(monkeypatch, before):
    """Ten rounds in a hundred seconds: ten seconds for each that is left."""
    clock, written = [0.0], [before]
    monkeypatch.setattr(meter.time, "monotonic", lambda: clock[0])
    todo, bar = {"run": resolve({"rounds": 50})}, Progress(disable=True)
    found = meter.Meter(bar, lambda name: written[0], todo, {"run": 5.0}, jobs=1)
    clock[0], written[0] = 100.0, before + 10
    found.update()
    (task,) = bar.tasks
    assert task.fields["left"] == f"about {meter.duration(10 * (40 - before))} left"
    assert task.completed == pytest.approx(5.0 * written[0] / 50)

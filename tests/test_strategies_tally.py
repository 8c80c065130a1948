"""A run whose replies are refused ends as what it is, and says how many of its rounds counted."""

import math
from itertools import groupby

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedbary.errors import RunError, SettingError
from server_app.inline import InlineGrid
from strategies import RKLB

INITIAL = ArrayRecord({"w_mean": torch.zeros(3), "w_log_var": torch.full((3,), -2.0)})


def grid(sound):
    """Two clients whose replies are NaN in the rounds that are not sound."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"].to_torch_state_dict()
        arrays["w_mean"] += 1 if sound[message.content["config"]["server-round"] - 1] else math.nan
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return InlineGrid(app, 2, {})


def run(sound, **arguments):
    strategy = RKLB(fraction_evaluate=0.0, **arguments)
    return strategy.start(grid(sound), INITIAL, num_rounds=len(sound))


@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
def test_a_run_whose_every_reply_is_refused_is_no_success(rounds):
    with pytest.raises(RunError, match=r"skipped; round \d: 0 replies admitted, 1 needed"):
        run([False] * rounds)


@given(
    sound=st.lists(st.booleans(), min_size=1, max_size=8),
    max_skipped=st.none() | st.integers(1, 4),
)
@example(sound=[True, False, False, False, True], max_skipped=3)
@settings(max_examples=40, deadline=None)
def test_a_run_ends_early_or_says_how_many_rounds_counted(sound, max_skipped):
    runs = [len(list(group)) for same, group in groupby(sound[:-1]) if not same]
    ends_early = max_skipped is not None and any(length >= max_skipped for length in runs)
    if ends_early:
        with pytest.raises(RunError, match=f"^{max_skipped} rounds in a row were skipped; round"):
            run(sound, max_skipped=max_skipped)
    elif not any(sound):
        with pytest.raises(RunError, match=f"^every round was skipped; round {len(sound)}: "):
            run(sound, max_skipped=max_skipped)
    else:
        with pytest.MonkeyPatch.context() as patched:
            lines = []
            patched.setattr(
                "strategies.tally.log", lambda _, text, *values: lines.append(text % values)
            )
            result = run(sound, max_skipped=max_skipped)
        assert lines[-1].startswith(f"{sum(sound)} of {len(sound)} rounds counted")
        assert (result.arrays["w_mean"].numpy() == sum(sound)).all()


def test_a_strategy_that_goes_on_counts_the_rounds_before():
    strategy = RKLB(fraction_evaluate=0.0)
    strategy.load_state_dict({}, completed_rounds=5)
    strategy.start(grid([True] * 5 + [False]), INITIAL, num_rounds=1)
    strategy.start(grid([]), INITIAL, num_rounds=0)


def test_no_rounds_are_no_error_and_no_limit_below_one_is_taken():
    RKLB(fraction_evaluate=0.0).start(grid([]), INITIAL, num_rounds=0)
    with pytest.raises(SettingError, match="max_skipped: 0"):
        RKLB(max_skipped=0)

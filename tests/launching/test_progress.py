"""In a terminal a bar shows the running round beside the log; elsewhere nothing changes."""

import forked
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from terminals import shown_in_a_terminal, shows_its_rounds_and_its_lines

from fedbary.launching.environment import progress_in
from fedbary.runs.progress import Progress
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.grids import Watched

ECHO = ClientApp()


@ECHO.train()
def echo(message, context):
    return Message(message.content, reply_to=message)


def messages(count, kind="train"):
    content = {"arrays": ArrayRecord(), "config": ConfigRecord({"server-round": 3})}
    return [Message(RecordDict({**content}), node, kind) for node in range(2, 2 + count)]


def test_every_answer_is_counted_as_it_comes_and_none_is_lost(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Progress, "write", lambda self, file: seen.append(self))
    grid = Watched(InlineGrid(ECHO, 4, {}), tmp_path / "progress.json", 5)
    replies = list(grid.send_and_receive(messages(4)))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [2, 3, 4, 5]
    assert seen == [Progress(3, 5, "train", answered, 4) for answered in (1, 2, 3, 4)]
    assert list(grid.get_node_ids()) == [2, 3, 4, 5]


def test_who_never_answers_is_waited_for_until_the_timeout(tmp_path):
    inline = InlineGrid(ECHO, 2, {})
    inline.pull_messages = lambda ids: []
    grid = Watched(inline, tmp_path / "progress.json", 5)
    assert list(grid.send_and_receive(messages(2), timeout=0.2)) == []
    assert Progress.read(tmp_path / "progress.json") == Progress(3, 5, "train", 0, 2)


def test_the_part_grows_from_0_to_1_over_a_run():
    said = [Progress(r, 2, d, a, 2) for r in (1, 2) for d, a in
            (("train", 0), ("train", 1), ("train", 2), ("evaluate", 0))]  # fmt: skip
    assert [progress.part for progress in said] == [0, 0.25, 0.5, 0.5, 0.5, 0.75, 1, 1]


def test_nothing_is_written_where_no_terminal_waits(tmp_path):
    assert progress_in(tmp_path, None) == {}  # pytest captures the output
    assert Progress.read(tmp_path / "progress.json") is None


@pytest.mark.slow
def test_a_run_in_a_terminal_shows_its_rounds_and_its_lines(tmp_path):
    words = "clients=3 rounds=2 local_epochs=1 samples=2 output=run engine=inline".split()
    command = forked.command(), "simulate", *words
    shows_its_rounds_and_its_lines(shown_in_a_terminal(*command, cwd=tmp_path))

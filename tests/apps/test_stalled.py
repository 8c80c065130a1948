"""A run in which no client can train after a round: how it stops, and how it goes on."""

import re
from contextlib import nullcontext
from shutil import copytree

import pytest
import torch
import yaml
from flwr.app import ArrayRecord
from hostile_site import app_of
from runs_of import SHORT, lines

from fedbary import client_app, load
from fedbary.commands.cli import app
from fedbary.errors import RunError, SettingError
from fedbary.launching.simulation import PROGRAMS
from fedbary.runs.location import is_whole
from fedbary.runs.resume import is_changed, resumable, way_back
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.recorder import Recorder
from fedbary.settings.config import resolve

WORDS = {**SHORT, "task": "tables", "clients": 3, "rounds": 8, "evaluate_clients": 0}
CHOSEN = resolve(WORDS)


class Hostile(InlineGrid):
    """In round 2 the last of three sends 9 in every mean; what has such means trains nobody."""

    def __init__(self, chosen=CHOSEN, raises=True):
        def train(message, context):
            sent = message.content["arrays"].to_torch_state_dict()
            if max(float(tensor.abs().max()) for n, tensor in sent.items() if "mean" in n) > 2:
                if raises:
                    raise ValueError("training diverged")
                reply = client_app.train(message, context)
                held = reply.content["arrays"].to_torch_state_dict()
                diverged = {name: tensor * torch.nan for name, tensor in held.items()}
                reply.content["arrays"] = ArrayRecord(diverged)
                return reply
            reply = client_app.train(message, context)
            server_round = message.content["config"]["server-round"]
            if context.node_config["partition-id"] == 2 and server_round == 2:
                held = reply.content["arrays"].to_torch_state_dict()
                held |= {n: torch.full_like(t, 9.0) for n, t in held.items() if "mean" in n}
                reply.content["arrays"] = ArrayRecord(held)
            return reply

        super().__init__(app_of(train=train), chosen.clients, chosen.model_dump())


def begun(folder):
    """A run that stalls after round 2; returns the error's line."""
    with pytest.raises(RunError) as caught:
        run(Hostile(), CHOSEN.model_copy(update={"output": str(folder)}), folder)
    return str(caught.value)


@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stalled") / "run"
    return folder, begun(folder)


def begin_and_kill(chosen, folder, round_, monkeypatch):
    """Make a run whose server is interrupted once it has recorded a round."""
    record = Recorder.record

    def cut_off(self, server_round, *args):
        found = record(self, server_round, *args)
        if server_round == round_:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Recorder, "record", cut_off)
        run(Hostile(chosen), chosen, folder)


def resume(folder, *arguments, monkeypatch, raises=True):
    """Go on as `fedbary resume` does with these arguments, in this process."""

    def simulate(prepared):
        run(Hostile(prepared, raises), prepared, folder)
        return 0

    with monkeypatch.context() as patched:
        patched.setitem(PROGRAMS, "inline", lambda: nullcontext(simulate))
        app(["resume", str(folder), *arguments], prog_name="fedbary", standalone_mode=False)


def test_the_run_stops_with_one_line_that_names_the_round_and_how_to_go_on(stalled):
    folder, said = stalled
    assert "\n" not in said
    assert "no client could train after round 2; in it these replies lay farthest" in said
    assert re.search(r"usual distance: partition 2 \(\d+\), partition \d \(", said)
    assert said.endswith(f"fedbary resume {folder} --round 1 and clipping=true or --without SITE")
    assert [line["skipped"] for line in lines(folder)] == [False] * 3 + [True] * 3


def test_the_line_is_of_the_run_s_kind(stalled, tmp_path):
    """A deployed run goes on by its own command, and a method without clipping without it."""
    folder = tmp_path / "run"
    copytree(stalled[0], folder)
    said = way_back(folder, resolve({**WORDS, "method": "PVI"}), 2)
    assert said == f"fedbary resume {folder} --round 1 and --without SITE"
    (folder / "site-keys.json").write_text("{}")
    said = way_back(folder, CHOSEN, 2)
    assert said.startswith(f"the run's command with output={folder} resume=1 and clipping=true or")


def test_a_run_that_is_cut_off_stops_with_the_same_line(stalled, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    chosen = CHOSEN.model_copy(update={"output": str(folder)})
    begin_and_kill(chosen, folder, 3, monkeypatch)
    with pytest.raises(RunError) as caught:
        run(Hostile(), chosen.model_copy(update={"resume": "last"}), folder)
    assert str(caught.value) == stalled[1].replace(str(stalled[0]), str(folder))


def test_it_goes_on_before_that_round_with_clipping(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "run"
    begun(folder)
    first = lines(folder)[1]
    arguments = ["--round", "1", "clipping=true"]
    resume(folder, *arguments, monkeypatch=monkeypatch)
    assert [line["skipped"] for line in lines(folder)] == [False] * 9 and is_whole(folder)
    assert lines(folder)[1] == first
    held = yaml.safe_load((folder / "settings.yaml").read_text())
    assert held["settings"]["clipping"] is True
    assert [note.get("changed") for note in held["resumed"]] == [{"clipping": False}]
    assert "clipping was False, and is True from round 2 on" in caplog.text
    assert load(folder).settings.clipping is True
    # what was changed is no run of its own: a sweep makes such a run anew
    assert is_changed(folder)


@pytest.mark.parametrize("raises", [True, False])
def test_clients_with_a_memory_go_on_from_there_too(tmp_path, monkeypatch, raises):
    """They keep what they had before the round, however often they train in vain after it."""
    folder = tmp_path / "run"
    own = {"projection": "WB", "holdout": 0.3, "evaluate_clients": 1, "output": str(folder)}
    chosen = resolve({**WORDS, **own})
    with pytest.raises(RunError, match="no client could train after round 2"):
        run(Hostile(chosen, raises), chosen, folder)
    resume(folder, "--round", "1", "clipping=true", monkeypatch=monkeypatch, raises=raises)
    assert [line["skipped"] for line in lines(folder)] == [False] * 9
    assert not any(line.get("refused") for line in lines(folder))


def test_it_goes_on_without_a_site(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    begun(folder)
    arguments = ["--round", "1", "--without", "partition 2"]
    resume(folder, *arguments, monkeypatch=monkeypatch)
    found = lines(folder)
    assert [line["skipped"] for line in found] == [False] * 9
    sites = [[each["site"] for each in line.get("clients", [])] for line in found]
    assert sites[1] == ["partition 0", "partition 1", "partition 2"]
    assert sites[2:] == [["partition 0", "partition 1"]] * 7
    (folder / "posterior.safetensors").unlink()
    assert resumable(folder, CHOSEN.model_copy(update={"output": str(folder)})) is None


def test_a_change_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    """The checkpoints before it were of the old defences, those after it of the new."""
    folder = tmp_path / "run"
    begun(folder)
    chosen = resolve({**WORDS, "clipping": True, "output": str(folder), "resume": 1})
    begin_and_kill(chosen, folder, 2, monkeypatch)
    resume(folder, "--previous", "max_weight_ratio=3", monkeypatch=monkeypatch)
    assert [line["skipped"] for line in lines(folder)] == [False] * 9


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--round", "3"], "resume: 3; expected a round whose checkpoint is kept: 1, 4, 5"),
        (["--round", "1", "rule=WB"], "rule: 'WB'; expected one of rounds, max_skipped, clipping"),
        (["--without", "oslo"], "without: 'oslo'; expected a site of the run: partition 0, part"),
        (["--round", "1", "clipping=perhaps"], "clipping: 'perhaps'; expected"),
    ],
)
def test_what_a_run_cannot_go_on_with_is_refused_by_name(stalled, arguments, said, monkeypatch):
    folder, _ = stalled
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    with pytest.raises(SettingError) as caught:
        resume(folder, *arguments, monkeypatch=monkeypatch)
    assert said in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_a_sweep_does_not_go_on_with_other_defences(stalled):
    folder, _ = stalled
    again = resolve({**WORDS, "clipping": True, "output": str(folder)})
    assert resumable(folder, again) is None


def test_the_last_checkpoint_from_which_a_round_counted_stays(tmp_path):
    """Three skipped rounds leave what the last round began from that anybody could train in."""
    folder = tmp_path / "run"

    class Broken(InlineGrid):
        def _answer(self, message):
            sent = message.content
            if "config" in sent and sent["config"].get("server-round", 0) > 2:
                sent["arrays"] = ArrayRecord({"none": torch.zeros(1)})
            return super()._answer(message)

    chosen = CHOSEN.model_copy(update={"output": str(folder), "rounds": 9})
    with pytest.raises(RunError, match="3 rounds in a row were skipped"):
        run(Broken(client_app.app, chosen.clients, chosen.model_dump()), chosen, folder)
    assert [line["skipped"] for line in lines(folder)] == [False] * 3 + [True] * 3
    kept = sorted(int(file.stem[-4:]) for file in folder.glob("checkpoint-*"))
    assert kept == [1, 4, 5]
    for number in kept[1:]:
        (folder / f"checkpoint-{number:04d}.safetensors").unlink()
    again = chosen.model_copy(update={"rounds": 9, "resume": "last"})
    run(InlineGrid(client_app.app, again.clients, again.model_dump()), again, folder)
    assert [line["skipped"] for line in lines(folder)] == [False] * 10

"""A round that is undone, in the journal, in the checkpoints and after a resume."""

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from runs_of import lines

import client_app
from fedbary.errors import RunError
from fedbary.settings.config import resolve
from server_app import run
from server_app.engine.inline import InlineGrid
from server_app.recorder import Recorder

CHOSEN = resolve(
    {"task": "tables", "engine": "inline", "clients": 3, "rounds": 5, "local_epochs": 1,
     "samples": 2, "pictures": False, "evaluate_clients": 0}
)  # fmt: skip


class Hostile(InlineGrid):
    """In round 2 the last of three sends 9 in every mean; what has such means trains nobody."""

    def __init__(self):
        app = ClientApp()
        app.query()(client_app.query)
        app.query("ask")(client_app.ask)
        app.evaluate()(client_app.evaluate)

        @app.train()
        def train(message, context):
            sent = message.content["arrays"].to_torch_state_dict()
            if max(float(tensor.abs().max()) for n, tensor in sent.items() if "mean" in n) > 2:
                raise ValueError("training diverged")
            reply = client_app.train(message, context)
            server_round = message.content["config"]["server-round"]
            if context.node_config["partition-id"] == 2 and server_round == 2:
                held = reply.content["arrays"].to_torch_state_dict()
                held |= {n: torch.full_like(t, 9.0) for n, t in held.items() if "mean" in n}
                reply.content["arrays"] = ArrayRecord(held)
            return reply

        super().__init__(app, CHOSEN.clients, CHOSEN.model_dump())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undone") / "run"
    run(Hostile(), CHOSEN.model_copy(update={"output": str(folder)}), folder)
    return folder


def test_the_journal_says_which_round_was_undone_and_whose_fault_it_was(whole):
    found = lines(whole)
    assert [line["round"] for line in found if line["skipped"]] == [3]
    assert [line.get("undone") for line in found] == [None, None, None, 2, None, None]
    reasons = [[r for r in line["refused"] if "of round 2" in r] for line in found[1:]]
    assert [len(each) for each in reasons] == [0, 0, 1, 1, 1]
    assert all("partition 2" in reason for each in reasons for reason in each)
    assert found[3]["log_var"] == found[1]["log_var"] != found[2]["log_var"]


@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_run_that_goes_on_undoes_the_round_too(whole, tmp_path, cut, monkeypatch):
    record = Recorder.record

    def cut_off(self, server_round, *args):
        found = record(self, server_round, *args)
        if server_round == cut:
            raise KeyboardInterrupt
        return found

    folder = tmp_path / "run"
    chosen = CHOSEN.model_copy(update={"output": str(folder)})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Recorder, "record", cut_off)
        run(Hostile(), chosen, folder)
    run(Hostile(), chosen.model_copy(update={"resume": "last"}), folder)
    name = "posterior.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert [line.get("undone") for line in lines(folder)] == [None, None, None, 2, None, None]


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

"""The Flower Baseline of BA-BFL: its form, and a row of its table at a small scale."""

import tomllib
from pathlib import Path

import pytest
import yaml
from flwr.app import Context, RecordDict
from flwr.cli.config_utils import validate_config
from runs_of import lines

from fedbary.server_app.engine.inline import InlineGrid

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "babfl"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())
SMALL = {"dataset": "digits", "rounds": 1, "local_epochs": 1}


def test_it_has_the_form_of_flower_s_baselines():
    _, front, page = (FOLDER / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(front)
    assert [*told] == ["title", "url", "labels", "dataset"]
    assert 4 <= len(told["labels"]) <= 10
    assert page.lstrip().startswith(f"# {told['title']}\n")
    assert validate_config(PROJECT, project_dir=FOLDER) == (True, [], [])
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["."]
    for part in ("__init__", "client_app", "server_app"):
        assert (FOLDER / PROJECT["project"]["name"] / f"{part}.py").is_file()


@pytest.mark.slow
def test_a_seed_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    from babfl import client_app, server_app

    def started(app=client_app.app, **words):
        config = {**PROJECT["tool"]["flwr"]["app"]["config"], **SMALL, "rounds": 2, **words}
        server_app.app(InlineGrid(app, 2, config), Context(1, 1, {}, RecordDict(), config))

    left, answer = iter("ab"), client_app.app

    def cut_off(message, context):  # by its third message for training
        if message.metadata.message_type == "train" and next(left, None) is None:
            raise KeyboardInterrupt
        return answer(message, context)

    with pytest.raises(KeyboardInterrupt):
        started(cut_off)
    started(resume="last")
    assert [line["round"] for line in lines(Path("results/digits-RKLB-n3-seed0"))] == [0, 1, 2]


@pytest.mark.slow
def test_two_seeds_make_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    from babfl import client_app, server_app

    for seed in (0, 1):
        config = {**PROJECT["tool"]["flwr"]["app"]["config"], **SMALL, "seed": seed}
        grid = InlineGrid(client_app.app, 2, config)
        server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    last = [lines(Path(f"results/digits-RKLB-n3-seed{seed}"))[-1] for seed in (0, 1)]
    *_, row = capsys.readouterr().out.splitlines()
    values = [100 * line["accuracy"] for line in last]
    middle, half = sum(values) / 2, abs(values[0] - values[1]) / 2
    assert row.startswith(f"| digits-RKLB-n3 | 2 | {middle:.2f} ± {half * 2**0.5:.2f} |")

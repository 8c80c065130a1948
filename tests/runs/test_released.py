"""Rows that were released with noise are released once: over questions, runs, starts, resumes."""

import logging
import math
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from runs_of import same
from runs_of_sums import QUICK
from sums_of import CLASSES, WIDTH, examples, network, state

from fedbary import client_app, server_app
from fedbary.data.mechanism import Release, epsilon_of, noise_multiplier
from fedbary.errors import RunError, SettingError
from fedbary.methods import METHODS, Local
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.location import require_startable
from fedbary.runs.released import ReleasedFiles, take_released
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import completed
from fedbary.strategies.state_memory import StateReleases

DELTA = 1e-5
NOISY = {"method": "LDA", "normalise": "none", "max_norm": 5.0, "epsilon": 3.0, "holdout": 0.0}


def said(caplog):
    """What the log says of ε over all runs, line by line."""
    lines = [r.getMessage() for r in caplog.records if "an example has epsilon" in r.getMessage()]
    return [(("again" in line), float(line.split("epsilon=")[-1].split()[0])) for line in lines]


def release(question, rows, multiplier=4.0, draw=None):
    numbers = torch.tensor(rows)
    draw = draw or (lambda: {"a": torch.randn(3, dtype=torch.float64)})
    return Release(question, numbers, 1.0, DELTA, multiplier, draw)


@pytest.fixture(params=["folder", "state"])
def releases(request, tmp_path):
    return ReleasedFiles(tmp_path) if request.param == "folder" else StateReleases(RecordDict())


def test_a_question_has_one_answer_and_others_have_others(releases):
    first = releases.once(release("a", [1, 2]))
    assert same(first, releases.once(release("a", [1, 2])))
    assert not same(first, releases.once(release("b", [1, 2])))
    assert same(first, releases.once(release("a", [1, 2])))


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=5))
def test_several_releases_tell_what_one_of_their_precisions_sum_tells(multipliers):
    """Observations of one Gaussian mean: their precisions add, and so do those of the noise."""
    held, rows = StateReleases(RecordDict()), torch.tensor([7, 8])
    assert held.spent(rows, DELTA) == 0
    for number, multiplier in enumerate(multipliers):
        held.once(release(str(number), [100 + number, 7, 8], multiplier))
        held.once(release(str(number), [100 + number, 7, 8], multiplier))
    held.once(release("apart", [9], 2.0))
    together = math.sqrt(1 / sum(m**-2 for m in multipliers))
    assert held.spent(rows, DELTA) == pytest.approx(epsilon_of(DELTA, together))
    assert held.spent(torch.tensor([9]), DELTA) == pytest.approx(epsilon_of(DELTA, 2.0))
    each = [epsilon_of(DELTA / len(multipliers), m) for m in multipliers]
    assert held.spent(rows, DELTA) <= sum(each) + 1e-9


def test_of_several_processes_that_are_asked_at_once_one_draws(tmp_path):
    def slow():
        time.sleep(0.05)
        return {"a": torch.randn(3)}

    with ThreadPoolExecutor(8) as pool:
        asked = [release("a", [1, 2], draw=slow) for _ in range(8)]
        answers = list(pool.map(lambda each: ReleasedFiles(tmp_path).once(each), asked))
    assert all(same(answers[0], other) for other in answers)


def test_releases_are_for_their_owner_alone_and_a_damaged_one_is_not_drawn_again(tmp_path):
    ReleasedFiles(tmp_path).once(release("a", [1, 2]))
    (file,) = (tmp_path / "released").glob("*.safetensors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(SettingError, match="as the site wrote it"):
        ReleasedFiles(tmp_path).once(release("b", [1, 2]))


def asked(releases, method=None, **changes):
    """What a client with this memory sends of its examples."""
    x, y = examples(1, 60)
    model = network()
    held = {"x": x, "y": y, "release": releases.once, **changes}
    method = method or METHODS["LDA"](max_norm=2.0, epsilon=1.0)
    return method.fit(Local(model, **held), state(model), {}).reply


def test_a_client_s_sums_are_those_it_sent_whatever_the_order_and_the_head(releases):
    x, y = examples(1, 60)
    order = torch.randperm(60)
    one = asked(releases)
    assert same(one, asked(releases, x=x[order], y=y[order]))
    assert same(one, asked(releases, method=METHODS["Ridge"](max_norm=2.0, epsilon=1.0)))


def test_other_rows_labels_bounds_or_noise_are_another_question(releases, caplog):
    caplog.set_level(logging.INFO, "flwr.fedbary")
    x, y = examples(1, 60)
    one = asked(releases)
    others = [
        asked(releases, y=(y + 1) % CLASSES),
        asked(releases, method=METHODS["LDA"](max_norm=3.0, epsilon=1.0)),
        asked(releases, method=METHODS["LDA"](max_norm=2.0, epsilon=2.0)),
        asked(releases, x=x + 1, raw=x),
    ]
    assert not any(same(one, other) for other in others)
    multipliers = [noise_multiplier(e, DELTA) for e in (1, 1, 1, 2, 1)]
    together = math.sqrt(1 / sum(m**-2 for m in multipliers))
    assert said(caplog)[-1] == (False, pytest.approx(epsilon_of(DELTA, together), rel=0.01))
    asked(releases, x=torch.zeros(60, WIDTH) + torch.arange(60)[:, None])
    assert said(caplog)[-1] == (False, pytest.approx(1, rel=0.01)), "rows that never were sent"


def chosen(**changes):
    return completed({**QUICK, **NOISY, **changes})


def sites_of(folder):
    held = load_checkpoint(folder, "last").strategy
    return {name: t for name, t in held.items() if name.startswith("method.sites/")}


def test_a_run_that_starts_from_the_same_data_counts_them_once(tmp_path, caplog):
    """S9: with new noise every site counted twice, and had told its rows twice."""
    caplog.set_level(logging.INFO, "flwr.fedbary")
    run_inline(chosen(), tmp_path / "a")
    run_inline(chosen(start_from=str(tmp_path / "a")), tmp_path / "b")
    run_inline(chosen(start_from=str(tmp_path / "b")), tmp_path / "c")
    assert said(caplog) == [(run > 0, 3.0) for run in range(3) for _ in range(3)]
    assert len(sites_of(tmp_path / "c")) == len(sites_of(tmp_path / "a"))
    assert caplog.text.count("it counts once") == 6


def own_sites(tmp_path, keeps=True):
    sites = []
    for number in range(3):
        x, y = examples(number, 60)
        file = tmp_path / f"{number}.npz"
        np.savez(file, x=x.numpy(), y=y.numpy())
        site = {"data-path": str(file), "name": f"site {number}"}
        sites.append(site | ({"state-path": str(tmp_path / f"state {number}")} if keeps else {}))
    return sites


def own_run(folder, sites, **changes):
    told = {"dataset": "none", "classes": str(CLASSES), "input_shape": str(WIDTH), **changes}
    settings = chosen(**told).model_copy(update={"output": str(folder)})
    require_startable(folder, settings)
    grid = InlineGrid(client_app.app, sites, settings.model_dump())
    server_app.run(grid, settings, folder)


def test_a_site_sends_the_same_sums_in_any_run(tmp_path):
    sites = own_sites(tmp_path)
    for name in "ab":
        own_run(tmp_path / name, sites)
    assert same(sites_of(tmp_path / "a"), sites_of(tmp_path / "b"))
    own_run(tmp_path / "c", sites, epsilon=2.0)
    assert not same(sites_of(tmp_path / "a"), sites_of(tmp_path / "c"))


def test_a_site_whose_state_lies_in_the_run_takes_it_over_before_the_next_begins(tmp_path, caplog):
    """As `fedbary deploy` does: the folder is there before the run's settings are."""
    sites = own_sites(tmp_path, keeps=False)
    for run, earlier in (("a", None), ("b", "a")):
        states = [tmp_path / run / "clients" / site["name"] for site in sites]
        if earlier:
            for state in states:
                take_released(state, tmp_path / earlier / "clients" / state.name)
        start = {"start_from": str(tmp_path / earlier)} if earlier else {}
        own = [{**site, "state-path": str(s)} for site, s in zip(sites, states, strict=True)]
        own_run(tmp_path / run, own, **start)
    assert caplog.text.count("it counts once") == len(sites)


def test_a_resumed_first_round_asks_for_the_same_sums(tmp_path, monkeypatch):
    sites, sent = own_sites(tmp_path), []
    aggregate = METHODS["LDA"].aggregate

    def cut(self, server, replies):
        sent.append({f"{r.client}/{n}": t.clone() for r in replies for n, t in r.tensors.items()})
        if len(sent) == 1:
            raise KeyboardInterrupt
        return aggregate(self, server, replies)

    monkeypatch.setattr(METHODS["LDA"], "aggregate", cut)
    with pytest.raises(KeyboardInterrupt):
        own_run(tmp_path / "run", sites)
    own_run(tmp_path / "run", sites, resume="last")
    assert same(*sent)


def test_a_site_that_cannot_remember_releases_nothing(tmp_path, caplog):
    with pytest.raises(RunError):
        own_run(tmp_path / "run", own_sites(tmp_path, keeps=False), max_skipped=1)
    assert "state-path: 'none'; expected with epsilon a folder" in caplog.text

"""The page's app of a published method with a loop of one's own trains by that loop."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.cli.config_utils import validate_config

from fedbary.gaussian import Factor, Posterior, kl_divergence
from fedbary.server_app.engine.inline import InlineGrid

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "foreign.md"


@pytest.fixture
def app(monkeypatch):
    text = re.findall(r"```python\n# app.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[-1]
    module = ModuleType("own_loop_app")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(text, "app.py", "exec"), module.__dict__)
    return module


def test_flower_takes_the_project(tmp_path):
    """It looks for `client = …` and `server = …` in the text, before it imports the file."""
    text = PAGE.read_text("utf-8")
    (tmp_path / "app.py").write_text(
        re.findall(r"```python\n# app.py\n(.*?)```", text, re.DOTALL)[-1]
    )
    project = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    assert validate_config(project, project_dir=tmp_path) == (True, [], [])


def test_its_divergence_is_the_kl_but_for_a_constant(app):
    generator = torch.Generator().manual_seed(0)
    net = app.network()
    prior, apart = None, []
    for _ in range(2):
        with torch.no_grad():
            for tensor in net.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
        q = Posterior.from_state_dict(
            {name: t.detach().clone() for name, t in net.state_dict().items()}
        )
        gaussian = Posterior({n: q.mean[n] for n in q.log_var}, q.log_var)
        prior = prior or Posterior(
            {n: t.flip(0) for n, t in gaussian.mean.items()},
            {n: t.flip(0) for n, t in gaussian.log_var.items()},
        )
        found = app.divergence(net, Factor.of(prior)).item()
        apart.append(found - kl_divergence(gaussian, prior))
    assert apart[0] == pytest.approx(apart[1], rel=1e-4)


def test_pvi_trains_by_it(app, monkeypatch, capsys):
    trained = []
    mine = app.shifted
    monkeypatch.setattr(app, "shifted", lambda x, noise: trained.append(len(x)) or mine(x, noise))
    torch.manual_seed(0)
    config = {"rounds": 3}
    app.server(InlineGrid(app.client, 3, config), Context(1, 1, {}, RecordDict(), config))
    assert sum(trained) == 3 * 5 * 1200  # rounds, epochs, rows
    nll = [float(each) for each in re.findall(r"'nll': ([\d.]+)", capsys.readouterr().out)]
    assert len(nll) == 3 and nll[0] > nll[1] > nll[2] and nll[2] < 1.6

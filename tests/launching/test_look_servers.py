"""A look at two sites' own tables on real servers is that of one process."""

import sys

import forked
import numpy as np
import pandas as pd
from every_method import night
from processes import MARK

from fedbary.client_app import app
from fedbary.launching.app import LOOKS, write_app
from fedbary.launching.deploy import lab, site_configs
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.look import hold
from fedbary.settings.config import resolve
from fedbary.trained.look_page import rows_of


@night
def test_real_servers_tell_what_one_process_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", f"{forked.tools()}/python")
    monkeypatch.setenv(MARK, str(tmp_path))
    rng, sites = np.random.default_rng(0), []
    for name, rows in (("north", 60), ("south", 80)):
        sites.append(tmp_path / f"{name}.csv")
        columns = {"age": rng.normal(60, 12, rows), "sex": rng.choice(["F", "M"], rows)}
        pd.DataFrame(columns).to_csv(sites[-1], index=False)
    output = tmp_path / "look"
    chosen = resolve({"task": "tables", "clients": 2, "min_replies": 2, "output": str(output)})
    (tmp_path / "lab").mkdir()
    with lab(tmp_path / "lab", site_configs(sites)) as federation:
        app_of_looks = write_app(tmp_path / "app", LOOKS)
        status = federation.run(chosen, app=app_of_looks)
        assert status == "finished:completed", federation.log("superlink")
    grid = InlineGrid(app, site_configs(sites), chosen.model_dump())
    rows = list(rows_of(hold(grid, chosen, True)))
    written = pd.read_csv(output / "look.csv")
    assert written["site"].tolist() == [row["site"] for row in rows]
    for name in ("mean", "sd", "median", "q95"):
        np.testing.assert_allclose(written[name], [row[name] for row in rows], rtol=1e-5)

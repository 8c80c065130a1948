"""Real servers on loopback, started by fedbary deploy."""

import contextlib
import stat
import subprocess
from pathlib import Path

import forked
import pytest
import yaml
from every_method import night, of_tables
from own_sites import cut
from processes import marked, servers_of, wait_until
from runs_of import same
from safetensors.torch import load_file

from fedbary.commands import start
from fedbary.errors import RunError, SettingError, Stopped
from fedbary.launching import deploy as lab_of
from fedbary.launching.deploy import deploy, keep_keys, site_configs, take_keys
from fedbary.launching.programs import stop_tree
from fedbary.launching.superlink import write_site_key
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve


def test_sites_that_are_not_there_or_twice(tmp_path):
    sites = cut(tmp_path)
    with pytest.raises(SettingError, match=r"--site: .*none.npz"):
        site_configs([tmp_path / "none.npz"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.npz").touch()
    names = [config["name"] for config in site_configs([sites[0], tmp_path / "other" / "a.npz"])]
    assert names == [f"{tmp_path.name}/a.npz", "other/a.npz"]
    with pytest.raises(SettingError, match="no other site has the same"):
        site_configs([sites[0], sites[0]])


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), RunError("a server fell")])
def test_what_the_servers_logged_outlives_them_however_the_run_ends(ends, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def broken(folder, configs):
        (folder / "site0.log").write_text("the cause")
        raise ends
        yield

    monkeypatch.setattr("fedbary.launching.deploy.lab", broken)
    chosen = resolve({"clients": 2, "output": str(tmp_path / "run")})
    with pytest.raises(type(ends)) as caught:
        deploy(chosen, [])
    kept = tmp_path / "run-logs"
    assert (kept / "site0.log").read_text() == "the cause"
    assert 'site1.log: {"partition-id": 1' in (kept / "sites.txt").read_text()
    assert not isinstance(ends, RunError) or f"are kept in {kept}" in str(caught.value)


def test_a_federation_that_is_cut_off_loses_its_server_before_its_sites(tmp_path, monkeypatch):
    """A server that outlives its sites counts the round as skipped; a resume would go on after."""
    started, ended = [], []

    def sleeps(command, environment, **how):
        started.append(subprocess.Popen(["sleep", "60"], **how))
        return started[-1]

    def noted(process, **how):
        ended.append([other.poll() is None for other in started])
        stop_tree(process, **how)

    monkeypatch.setattr(lab_of, "start", sleeps)
    monkeypatch.setattr(lab_of, "stop_tree", noted)
    monkeypatch.setattr(lab_of, "wait_for_superlink", lambda *_: None)
    monkeypatch.setattr(lab_of.Lab, "register", lambda *_: None)
    configs = lab_of.partition_configs(resolve({"clients": 2}))
    with pytest.raises(Stopped), lab_of.lab(tmp_path, configs):
        raise Stopped
    assert ended[:2] == [[True, True, True], [False, True, True]]
    assert not any(process.poll() is None for process in started)


@pytest.mark.parametrize("has_begun, has_ended, told", [(0, 0, ()), (1, 0, ("on",)), (1, 1, None)])
def test_a_stopped_run_says_whether_it_goes_on(has_begun, has_ended, told, tmp_path):
    for is_there, name in ((has_begun, "settings.yaml"), (has_ended, "posterior.safetensors")):
        if is_there:
            (tmp_path / name).touch()
    assert start._stopped(tmp_path, "on").args == (
        told or ((f"the run had ended: {tmp_path}",) if has_ended else ())
    )


def test_each_site_has_a_folder_for_what_it_keeps_that_a_resumed_run_finds_again(
    tmp_path, monkeypatch
):
    """The lab's own folder is gone with the lab: the run's is not. Keys that are lost are new."""
    found = []

    @contextlib.contextmanager
    def noted(folder, configs):
        found.append([config["state-path"] for config in configs])
        assert not file.exists()
        raise RunError("a server fell")
        yield

    monkeypatch.setattr("fedbary.launching.deploy.lab", noted)
    chosen = resolve({"clients": 2, "output": str(tmp_path / "run")})
    file = tmp_path / "run" / "site-keys.json"
    file.parent.mkdir()
    for resume in ("none", "last"):
        file.write_text("{}")
        with pytest.raises(RunError):
            deploy(chosen.model_copy(update={"resume": resume}), list(cut(tmp_path)))
    assert found[0] == found[1] and len(set(found[0])) == len(found[0])
    assert all(Path(path).parent == tmp_path / "run" / "clients" for path in found[0])


def test_a_run_that_starts_from_another_has_its_sites_keys_and_new_ones_for_new_sites(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second, tmp_path / "run"):
        place.mkdir()
    assert not take_keys(first, ["north", "south/1"], [tmp_path / "run"])
    public = [write_site_key(first / f"site{k}.key").read_bytes() for k in range(2)]
    keep_keys(first, ["north", "south/1"], tmp_path / "run")
    assert not (tmp_path / "run" / "keys").exists()  # no run has begun there
    (tmp_path / "run" / "settings.yaml").touch()
    keep_keys(first, ["north", "south/1"], tmp_path / "run")
    assert not take_keys(
        second, ["west", "south/1", "north"], [tmp_path / "none", tmp_path / "run"]
    )
    assert [(second / f"site{k}.key.pub").read_bytes() for k in (2, 1)] == public
    assert not (second / "site0.key").exists()
    kept = [*(tmp_path / "run" / "keys").iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept if not file.suffix} == {0o600}


@pytest.mark.parametrize("sites", [["north", "south"], ["partition 0", "partition one"]])
def test_a_run_of_sites_with_data_of_their_own_is_not_resumed_as_a_simulation(sites, tmp_path):
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump({"settings": {}, "sites": sites}))
    with pytest.raises(SettingError, match=r"a simulated run; .*resume=previous"):
        start.resume(tmp_path, "previous")


@night  # by day the walkthrough's model is the simulation's; test_deploy_faults ends such servers
@pytest.mark.slow
def test_deploy_trains_as_simulate_does_and_when_it_is_stopped_stops_every_server(tmp_path):
    """Clients of this method remember, and keep models of their own; by night others, too."""
    (tmp_path / "settings.yaml").write_text(
        yaml.safe_dump(of_tables("pFedVem", rounds=50).model_dump())
    )
    command = [forked.command(), "deploy", "settings.yaml", "output=deployed"]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=marked(tmp_path), stdout=output, stderr=output
        )
    second = tmp_path / "deployed" / "checkpoint-0002.safetensors"
    wait_until(second.exists, alive=process)
    deployed = load_file(second)
    assert servers_of(tmp_path)
    process.terminate()
    assert process.wait(120) == 130
    assert servers_of(tmp_path) == []
    with pytest.raises(SettingError, match="repeat its command with output=.*resume=last"):
        start.resume(tmp_path / "deployed", "last")

    run_inline(of_tables("pFedVem", rounds=2), tmp_path / "simulated")
    simulated = load_file(tmp_path / "simulated" / second.name)
    name_of_the_run = "strategy.run"
    assert deployed.pop(name_of_the_run) != simulated.pop(name_of_the_run)
    assert same(deployed, simulated)

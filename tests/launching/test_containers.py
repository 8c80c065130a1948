"""compose.yaml and Dockerfile: their shape, and by night the README's commands as processes.

No machine of ours has Docker, so nobody has built the image yet.
"""

import re
import shlex
import stat
import tomllib
from pathlib import Path

import forked
import pytest
from containers import COMPOSE, FOLDER, ROOT, RUN, Containers, lines_of_run, mounts
from every_method import night
from runs_of import lines

pytestmark = pytest.mark.slow

KEYS = {
    "build", "command", "depends_on", "entrypoint", "healthcheck", "image", "init", "profiles",
    "restart", "secrets", "user", "volumes",
}  # fmt: skip
"""Of a service, as the Compose specification names them."""

SITES = ("north", "south")


@pytest.fixture
def containers(tmp_path):
    made = Containers(tmp_path, Path(forked.tools()))
    made.prepare()
    yield made
    made.stop()


def test_the_file_has_the_shape_of_the_specification():
    assert {key for key in COMPOSE if not key.startswith("x-")} == {"services", "secrets"}
    assert [*COMPOSE["services"]] == ["superlink", "north", "south", "flwr"]
    for name, service in COMPOSE["services"].items():
        assert service.keys() <= KEYS
        assert set(service["secrets"]) <= COMPOSE["secrets"].keys()
        assert service["init"] is True and service["user"].startswith("${OWNER:?")
        build = service["build"]
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert all(len(volume.split(":")) in (2, 3) for volume in service["volumes"])
        waits = {"superlink": {"condition": "service_healthy"}} if name in SITES else None
        assert service.get("depends_on") == waits
    used = {name for service in COMPOSE["services"].values() for name in service["secrets"]}
    assert used == COMPOSE["secrets"].keys()


def test_a_site_sees_its_own_key_and_data_alone():
    services = COMPOSE["services"]
    for one, other in (("north", "south"), ("south", "north")):
        held = mounts(services[one])
        assert not any(other in place for place in held.values())
        assert "server.key" not in services[one]["secrets"]
    assert not {"north", "south"} & {
        *services["superlink"]["secrets"],
        *services["flwr"]["secrets"],
    }


def test_what_is_mounted_is_made_first_and_keys_are_for_their_owner_alone(containers):
    for service in COMPOSE["services"].values():
        for inside, place in mounts(service).items():
            found = containers.place / place
            assert found.exists(), place
            if inside.startswith("/run/secrets") and found.suffix not in (".crt", ".pub"):
                assert stat.S_IMODE(found.stat().st_mode) == 0o600, place


def test_sites_are_registered_before_they_start():
    (health, *registered, started, run, down) = [shlex.split(line)[2:] for line in lines_of_run()]
    assert health == ["up", "--detach", "--wait", "superlink"] and down == ["down"]
    names = [words[-1] for words in registered]
    assert names == started[2:] == ["north", "south"]
    assert run[:4] == ["run", "--rm", "flwr", "run"]


def test_the_image_installs_what_the_project_says_for_a_site():
    text = (FOLDER / "Dockerfile").read_text()
    (line,) = [line for line in text.splitlines() if "pyproject.toml --extra" in line]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert line.split()[-1] == "site" in project["optional-dependencies"]
    assert all("--compile-bytecode" in row for row in text.splitlines() if "uv pip install" in row)
    assert "PYTHONDONTWRITEBYTECODE" not in text
    copied = re.findall(r"^COPY (.+) \.$", text, re.MULTILINE)
    assert copied == ["pyproject.toml"]


@night  # by day test_deploy_walkthrough.py starts the same programs with the same flags
def test_the_commands_of_the_readme_make_a_run(containers):
    assert RUN.count("rounds=2") == 1
    said = "".join(containers.compose(line) for line in lines_of_run())
    assert "2 of 2 nodes take part" in said
    last = lines(containers.place / "federation" / "results" / "first")[-1]
    assert [client["site"] for client in last["clients"]] == ["north", "south"]
    assert last["round"] == 2

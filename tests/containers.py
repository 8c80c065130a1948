"""The containers of `examples/deployment` as processes: the same commands, our paths."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from processes import marked, servers_of, wait_until

from fedbary.launching.programs import free_port, stop

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "deployment"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
README = (FOLDER / "README.md").read_text()
PREPARE, RUN = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def mounts(service):
    """Return where a container's paths lie on the machine, secrets included."""
    held = {f"/run/secrets/{name}": COMPOSE["secrets"][name]["file"] for name in service["secrets"]}
    for text in service["volumes"]:
        place, inside = text.split(":")[:2]
        held[inside] = place
    return held


class Containers:
    """What `docker compose` does with a copy of the folder, for the commands of its README.

    Parameters
    ----------
    folder : Path
        An empty folder.
    programs : Path
        The folder of Flower's programs.
    """

    def __init__(self, folder, programs):
        self.place = folder / "clone" / "examples" / "deployment"
        self.place.parent.mkdir(parents=True)
        shutil.copytree(FOLDER, self.place, ignore=shutil.ignore_patterns("federation"))
        for name in ("fedbary", "strategies", "client_app", "server_app"):
            shutil.copytree(ROOT / name, folder / "clone" / name)
        for name in ("pyproject.toml", "simulation.yaml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder / "clone")
        self.port, self.folder, self.started = free_port(), folder, []
        paths = [str(programs), os.environ["PATH"]]
        self.environment = {**marked(folder), "PATH": os.pathsep.join(paths)}
        self.environment.pop("PYTHONPATH", None)

    def here(self, text):
        """Return a text with the server's address on this machine."""
        text = text.replace("DNS:superlink", "IP:127.0.0.1").replace("0.0.0.0", "127.0.0.1")
        return re.sub(r"superlink:9092", f"127.0.0.1:{self.port}", text).replace(
            "9092", str(self.port)
        )

    def prepare(self):
        """Run the README's first block."""
        script = self.here(PREPARE).replace("python ", f"{sys.executable} ")
        keys = self.place / "federation" / "keys"
        script = script.replace("/run/secrets", str(keys))
        subprocess.run(["bash", "-ec", script], cwd=self.place, check=True, capture_output=True)

    def words(self, name, words):
        """Return a container's words with its paths on this machine."""
        held = mounts(COMPOSE["services"][name])
        if name == "flwr":  # a run's settings are read where the SuperLink runs
            held["/results"] = mounts(COMPOSE["services"]["superlink"])["/results"]
        paths = re.compile(
            rf"(?<![\w./])({'|'.join(map(re.escape, sorted(held, reverse=True)))})\b"
        )
        return [
            paths.sub(lambda m: str((self.place / held[m[1]]).resolve()), self.here(w))
            for w in words
        ]

    def environment_of(self, name):
        (line,) = re.findall(r"^ENV (.*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
        given = self.words(name, shlex.split(line))
        return {**self.environment, **dict(word.split("=", 1) for word in given)}

    def run(self, name, words):
        """Run a program in a container to its end; return what it printed."""
        done = subprocess.run(
            self.words(name, words), env=self.environment_of(name), cwd=self.place,
            capture_output=True, text=True, check=False, timeout=580,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout + done.stderr

    def logs(self):
        return "".join(file.read_text(errors="replace") for file in self.folder.glob("*.log"))

    def start(self, name):
        """Start a container's program."""
        words = self.words(name, shlex.split(COMPOSE["services"][name]["command"]))
        if name != "superlink":  # each container has ports of its own
            words += ["--port", str(free_port())]
        with open(self.folder / f"{name}.log", "wb") as log:
            started = subprocess.Popen(
                words, env=self.environment_of(name), cwd=self.words(name, ["/state"])[0],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.started.append(started)

    def is_healthy(self):
        """Return whether the SuperLink's health check passes."""
        _, python, *words = self.words(
            "superlink", COMPOSE["services"]["superlink"]["healthcheck"]["test"]
        )
        assert python == "python"
        checked = subprocess.run([sys.executable, *words], check=False, capture_output=True)
        return checked.returncode == 0

    def compose(self, line):
        """Do what a line of the README's second block does; return what it printed."""
        docker, compose, action, *words = shlex.split(line)
        assert (docker, compose) == ("docker", "compose")
        names = [word for word in words if not word.startswith("--")]
        if action == "up":
            for name in names:
                self.start(name)
            if "--wait" in words:
                wait_until(self.is_healthy, 120)
        elif action == "run":
            name, *given = words[1:]
            return self.run(name, [*COMPOSE["services"][name]["entrypoint"], *given])
        else:
            assert action == "down"
            self.stop()
        return ""

    def stop(self):
        stop(servers_of(self.folder))
        while self.started:
            self.started.pop().wait()


def lines_of_run():
    """Return the lines of the README's second block."""
    return [line for line in RUN.replace("\\\n", " ").splitlines() if line]

"""A federation of real servers on this machine: a SuperLink and SuperNodes, TLS and keys."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import quote

from fedbary.data.forms import user_path
from fedbary.data.sites import LONGEST_NAME, site_from
from fedbary.errors import RunError, SettingError
from fedbary.launching.app import app_folder, written_app
from fedbary.launching.environment import flower_environment
from fedbary.launching.programs import free_port, run_program, stop_tree, tool
from fedbary.launching.superlink import (
    last_status,
    public_key,
    to_toml,
    wait_for_superlink,
    write_certificates,
    write_site_key,
)
from fedbary.launching.watcher import start, temporary_folder
from fedbary.runs.location import CLIENTS, KEYS, SETTINGS, SITE_KEYS, is_whole
from fedbary.runs.released import take_released
from fedbary.settings.config import Settings
from fedbary.settings.run_config import to_run_config

NodeConfig = Mapping[str, str | int]

LAB = "lab"
"""Name of the SuperLink in Flower's configuration."""

REFUSALS = 9
"""Refused calls of programs that started too late, three or so a program."""


def deploy(settings: Settings, sites: Sequence[Path], log: IO[str] | None = None) -> None:
    """Run a federation of real servers on 127.0.0.1 to its end, and stop all that it started.

    Parameters
    ----------
    settings
        The run's settings; paths in them are absolute.
    sites
        Each SuperNode's own data; none: `clients` SuperNodes hold the partitions of the data set.
    log
        File of the run's own lines; None: this process's output.

    Raises
    ------
    RunError
        If the run ends without a whole result. The servers' logs are then kept in a folder beside
        the run's, `<output>-logs`, which the message names.
    """
    configs = site_configs(sites) if sites else partition_configs(settings)
    if sites:
        names = [quote(str(config["name"]), safe="") for config in configs]
        states = [Path(settings.output) / CLIENTS / name for name in names]
        for name, state in zip(names, states, strict=True):
            take_released(state, Path(settings.start_from) / CLIENTS / name)
        configs = [{**c, "state-path": str(s)} for c, s in zip(configs, states, strict=True)]
    names, run = [site_from(config).name for config in configs], Path(settings.output)
    with temporary_folder() as folder:
        if not take_keys(folder, names, [run, Path(settings.start_from)]):
            (run / SITE_KEYS).unlink(missing_ok=True)
        try:
            with lab(folder, configs) as servers:
                try:
                    status = servers.run(settings, log, names)
                finally:
                    keep_keys(folder, names, run)
            if status != "finished:completed" or not is_whole(run):
                raise RunError(f"the run ended as {status}")
        except BaseException as error:
            kept = _keep_logs(folder, configs, Path(f"{settings.output}-logs"))
            if isinstance(error, RunError):
                raise RunError(f"{error}; the servers' logs are kept in {kept}") from None
            raise


def take_keys(folder: Path, names: Sequence[str], runs: Sequence[Path]) -> bool:
    """Copy each site's key from the first of some runs' folders that has it; say if all have one.

    A site's name belongs to its key. So a run that goes on, or starts from another, needs the same
    keys.
    """
    found = []
    for number, name in enumerate(names):
        held = (run / KEYS / quote(name, safe="") for run in runs)
        if (kept := next((key for key in held if public_key(key).is_file()), None)) is not None:
            key = folder / f"site{number}.key"
            shutil.copy(kept, key)
            shutil.copy(public_key(kept), public_key(key))
            found.append(name)
    return len(found) == len(names)


def keep_keys(folder: Path, names: Sequence[str], run: Path) -> bool:
    """Copy the sites' keys to a run's folder if it has begun, and say whether it has.

    Their owner alone may read them.
    """
    if not (run / SETTINGS).exists():
        return False
    (run / KEYS).mkdir(parents=True, exist_ok=True, mode=0o700)
    for number, name in enumerate(names):
        key, kept = folder / f"site{number}.key", run / KEYS / quote(name, safe="")
        shutil.copy(key, kept)
        shutil.copy(public_key(key), public_key(kept))
    return True


def _keep_logs(folder: Path, configs: Sequence[NodeConfig], kept: Path) -> Path:
    """Copy the servers' logs, and list in `sites.txt` which log is whose."""
    kept.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.log"):
        shutil.copy(file, kept)
    lines = [f"site{i}.log: {json.dumps({**config})}\n" for i, config in enumerate(configs)]
    (kept / "sites.txt").write_text("".join(lines), encoding="utf-8")
    return kept


def partition_configs(settings: Settings) -> list[NodeConfig]:
    """Return the node configs of SuperNodes that hold the partitions of the data set."""
    return [
        {"partition-id": partition, "num-partitions": settings.clients}
        for partition in range(settings.clients)
    ]


def site_configs(sites: Sequence[Path]) -> list[NodeConfig]:
    """Return the node configs of SuperNodes that hold data of their own.

    Raises
    ------
    SettingError
        If a path does not exist, or two are the same.
    """
    paths = [user_path(site).resolve() for site in sites]
    for site, path in zip(sites, paths, strict=True):
        if not path.exists():
            raise SettingError(
                "--site", str(site), "an .npz, .csv or .parquet file, or a folder of images"
            )
        if paths.count(path) > 1:
            raise SettingError("--site", str(site), "data of which no other site has the same")
    short, long = [path.stem for path in paths], [f"{p.parent.name}/{p.name}" for p in paths]
    names = next((n for n in (short, long) if len(set(n)) == len(n)), [str(p) for p in paths])
    return [
        {"data-path": str(path), "name": name[-LONGEST_NAME:]}
        for path, name in zip(paths, names, strict=True)
    ]


@dataclass
class Lab:
    """The servers at work.

    Attributes
    ----------
    folder
        Folder of their keys and logs.
    environment
        The environment in which Flower's commands reach them.
    port
        The SuperLink's.
    processes
        Every server by its name: ``superlink``, ``site0``, ``site1``, …
    """

    folder: Path
    environment: dict[str, str]
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(
        self,
        settings: Settings,
        log: IO[str] | None = None,
        names: Sequence[str] = (),
        app: Path | None = None,
    ) -> str:
        """Run an app, by default that of runs, with these settings; return how it ended.

        The keys of sites of these names are kept in the run's folder once that is there: if this
        process is killed, the run goes on with them.
        """
        run_config = self.folder / "run.toml"
        run_config.write_text(to_run_config(settings), encoding="utf-8")
        with open(self.folder / "superlink.log", encoding="utf-8", errors="replace") as lines:
            output = Path(settings.output)
            busy = too_busy(lines, output)
            kept = not names

            def is_over() -> bool:
                nonlocal kept
                with suppress(OSError):  # the keys are kept once more at the end
                    kept = kept or keep_keys(self.folder, names, output)
                return busy()

            words = [
                "run",
                str(app or written_app()),
                LAB,
                "--stream",
                "--run-config",
                str(run_config),
            ]
            run_program([tool("flwr"), *words], self.environment, log, is_over)
            if busy():
                raise RunError(
                    "Flower gives a program 30 s to start, and here it takes longer. Repeat the "
                    "command when the machine has less to do"
                )
        return last_status(self.environment, LAB)

    def register(self, public_key: Path, name: str) -> None:
        """Admit the SuperNode with this key, under a name that is then its own."""
        self.flwr("supernode", "register", str(public_key), LAB, f"--name={name}")

    def flwr(self, *words: str) -> str:
        """Run a command of Flower's; return its output.

        Raises
        ------
        RunError
            If it fails.
        """
        done = subprocess.run(
            [tool("flwr"), *words],
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            raise RunError(
                f"flwr {words[0]} failed: {' '.join((done.stdout + done.stderr).split())}"
            )
        return done.stdout

    def start_site(self, name: str, config: NodeConfig, key: Path, ca: Path | None = None) -> None:
        """Start a SuperNode with a private key; it trusts the authority `ca`, else the lab's."""
        node_config = self.folder / f"{name}.toml"
        node_config.write_text(to_toml(config), encoding="utf-8")
        home = self.folder / name
        home.mkdir(exist_ok=True)
        command = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(ca or self.folder / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key), "--port", str(free_port())]
        command += ["--node-config", str(node_config)]
        self.start(name, command, {**self.environment, "FLWR_HOME": str(home)})

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a server; its output goes to `<name>.log`."""
        with open(self.folder / f"{name}.log", "ab") as output:
            self.processes[name] = start(
                command,
                environment,
                cwd=app_folder(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """Return a server's log."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def too_busy(lines: IO[str], output: Path) -> Callable[[], bool]:
    """Return a function that says whether a SuperLink refuses all programs before the run begins.

    It starts the next one every 30 s, without end.
    """
    refusals = 0

    def told() -> bool:
        nonlocal refusals
        refusals += lines.read().count("task-token authentication failed")
        return refusals >= REFUSALS and not output.exists()

    return told


@contextmanager
def lab(folder: Path, configs: Sequence[NodeConfig]) -> Iterator[Lab]:
    """Start a SuperLink and a SuperNode for each config; stop them, and all of theirs, at the end.

    The SuperLink speaks TLS and admits registered keys only; each SuperNode has a key of its own.
    All files are written to `folder`; `site0.key` and further keys that lie there are used.
    """
    write_certificates(folder)
    servers = Lab(folder, flower_environment(folder), free_port())
    address = f"127.0.0.1:{servers.port}"
    connection = {"address": address, "root-certificates": str(folder / "ca.crt")}
    link = f"[superlink.{LAB}]\n{to_toml(connection)}"
    (folder / "config.toml").write_text(link, encoding="utf-8")
    try:
        command = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(servers.port)]
        command += ["--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(folder / "ca.crt")]
        command += ["--ssl-certfile", str(folder / "server.crt")]
        command += ["--ssl-keyfile", str(folder / "server.key")]
        command += ["--disable-runtime-dependency-installation"]
        servers.start("superlink", command, servers.environment)
        log = folder / "superlink.log"
        wait_for_superlink(servers.processes["superlink"], address, log, folder / "ca.crt")
        keys = {f"site{i}": folder / f"site{i}.key" for i in range(len(configs))}
        with ThreadPoolExecutor() as pool:
            public = [
                public_key(key) if key.exists() else write_site_key(key) for key in keys.values()
            ]
            names = [site_from(config).name for config in configs]
            list(pool.map(servers.register, public, names))
        for (name, key), config in zip(keys.items(), configs, strict=True):
            servers.start_site(name, config, key)
        yield servers
    except BaseException:
        if "superlink" in servers.processes:  # first: without its sites it would skip the round
            stop_tree(servers.processes["superlink"], seconds=0)
        raise
    finally:
        for process in reversed(servers.processes.values()):
            stop_tree(process)

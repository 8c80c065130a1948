"""The `fedbary` command: turn settings into the right `flwr run` call, and watch over it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import typer
import yaml

from fedbary.config import DEFAULTS, ROOT, Settings, parse_overrides, resolve
from fedbary.errors import RunError, SettingError
from fedbary.runs import CLONE_VARIABLE, require_new, run_folder

SUPERLINK_SECONDS = 60
STOP_SECONDS = 15

app = typer.Typer(
    help="Bayesian federated learning with Flower.", add_completion=False, no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Keep `simulate` a subcommand while it is the only one."""


@app.command()
def simulate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SETTINGS.yaml] [KEY=VALUE ...]",
            help="A settings file (default: simulation.yaml) and settings that override it.",
        ),
    ] = None,
) -> None:
    """Run a simulated federation on this machine.

    Examples: `fedbary simulate`; `fedbary simulate rule=WB rounds=3`;
    `fedbary simulate mine.yaml dataset=fashionmnist protocol=short`. The settings and their
    defaults stand in simulation.yaml. The results' folder is printed at the end.
    """
    if not (ROOT / "server_app").is_dir():
        raise RunError("simulate needs a clone of fedbary, installed with pip install --editable")
    words = list(arguments or [])
    file = Path(words.pop(0)) if words and "=" not in words[0] else DEFAULTS
    settings = resolve(parse_overrides(words), file)
    folder = _checked(settings)
    settings = settings.model_copy(
        update={
            "output": str(folder),
            "data_dir": str(Path(settings.data_dir).expanduser().resolve()),
            "dataset": _absolute(settings.dataset),
        }
    )
    run = _run_inline if settings.engine == "inline" else _run_flower
    run(settings)
    if not (folder / "posterior.safetensors").exists():
        raise RunError("the run ended without a result; the messages above say why")
    print(f"Results: {folder}")


def main() -> None:
    """Run the command line; a bad setting ends it with one line and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except (SettingError, RunError) as error:
        sys.exit(_say(str(error), 2 if isinstance(error, SettingError) else 1))
    except KeyboardInterrupt:
        sys.exit(_say("stopped", 130))


def _say(text: str, code: int) -> int:
    print(f"fedbary: {text}", file=sys.stderr)
    return code


def _checked(settings: Settings) -> Path:
    """Find every mistake that can be found before the start, and return the run's folder.

    Loading the data set here also downloads it once, before several clients would.
    """
    from fedbary.federation import client_indices, load_dataset, torch_device

    folder = run_folder(settings, Path.cwd())
    require_new(folder)
    torch_device(settings)
    load_dataset(settings)
    client_indices(settings, settings.clients)
    return folder


def _absolute(dataset: str) -> str:
    path = Path(dataset).expanduser()
    return str(path.resolve()) if dataset.endswith(".npz") and path.exists() else dataset


def _run_inline(settings: Settings) -> None:
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        file = Path(scratch) / "settings.yaml"
        file.write_text(yaml.safe_dump(settings.model_dump()))
        command = [sys.executable, "-m", "server_app.inline", str(file)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code != 0:
        raise SystemExit(code)


def _run_flower(settings: Settings) -> None:
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        home = Path(scratch)
        environment = _environment(home)
        run_config = home / "run.toml"
        run_config.write_text(_toml(settings.model_dump()))
        federation = (
            f"num-supernodes={settings.clients} "
            f"client-resources-num-cpus={settings.cpus_per_client} "
            f"client-resources-num-gpus={_gpu_share(settings)}"
        )
        with _superlink(environment, home):
            command = [_tool("flwr"), "run", str(ROOT), "local", "--stream"]
            command += ["--federation-config", federation, "--run-config", str(run_config)]
            code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            status = _last_status(environment)
        if code != 0 or status != "finished:completed":
            raise RunError(f"the run ended as {status}; the messages above say why")


def _environment(home: Path) -> dict[str, str]:
    """Return an environment where Flower has its own home and port and installs nothing."""
    tools = str(Path(sys.executable).parent)
    return {
        **os.environ,
        CLONE_VARIABLE: str(ROOT),
        "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(_free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextmanager
def _superlink(environment: dict[str, str], home: Path) -> Iterator[None]:
    """Run a SuperLink with the simulation runtime, and stop it and all it started at the end."""
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [_tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", port]
    log = home / "superlink.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SUPERLINK_SECONDS
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RunError(f"Flower's SuperLink did not start: {' '.join(last)}")
            time.sleep(0.1)
        yield
    finally:
        _stop(process)


def _stop(superlink: subprocess.Popen[bytes]) -> None:
    """End the SuperLink and all that it started, Ray too: first asked, then killed."""
    if superlink.poll() is not None:
        return
    started = psutil.Process(superlink.pid).children(recursive=True)
    superlink.terminate()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(started, STOP_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    try:
        superlink.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        superlink.kill()


def _is_healthy(port: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _last_status(environment: dict[str, str]) -> str:
    """Return the newest run's status; `flwr run --stream` ends with 0 whatever happened."""
    command = [_tool("flwr"), "list", "local", "--format", "json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    try:
        return str(json.loads(done.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _gpu_share(settings: Settings) -> float:
    """Return the part of a GPU for each client: as many share it as the CPUs serve at once."""
    if settings.gpus_per_client != "auto":
        return float(settings.gpus_per_client)
    from fedbary.federation import torch_device

    if torch_device(settings).type != "cuda":
        return 0.0
    import torch

    at_once = max(1, (os.cpu_count() or 1) // settings.cpus_per_client)
    return min(1.0, torch.cuda.device_count() / min(settings.clients, at_once))


def _toml(values: dict[str, str | int | float | bool]) -> str:
    """Return flat settings as TOML; JSON writes strings, numbers and booleans the same way."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

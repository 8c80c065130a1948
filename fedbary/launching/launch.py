"""Start a simulated federation: in one process, or on a SuperLink of its own."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from fedbary.data.forms import HUB, is_source
from fedbary.errors import RunError, SettingError
from fedbary.launching.app import app_folder
from fedbary.launching.programs import free_port, run_program, stop_tree, tool
from fedbary.launching.warm import WarmProcess
from fedbary.paths import user_path
from fedbary.runs.commit import CLONE_VARIABLE
from fedbary.runs.location import is_left_whole, is_whole, require_startable
from fedbary.runs.lock import require_free
from fedbary.runs.progress import PROGRESS_VARIABLE
from fedbary.settings import limits
from fedbary.settings.config import Settings
from fedbary.settings.run_config import to_run_config

SUPERLINK_SECONDS = 60


@dataclass(frozen=True)
class Flower:
    """A SuperLink with a home of its own, for one simulation; it may not be ready yet.

    Parameters
    ----------
    home : Path
        Its folder, FLWR_HOME.
    environment : mapping
        The variables that its commands need.
    wait : callable
        Waits until it is ready; raises a RunError if it does not start.
    """

    home: Path
    environment: dict[str, str]
    wait: Callable[[], None]


@contextmanager
def flower(log: IO[str] | None = None) -> Iterator[Flower]:
    """Start a SuperLink with a home of its own; stop it, and all it started, at the end.

    What comes to `log` and not to a terminal shows no progress.
    """
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        home = Path(scratch)
        environment = {**flower_environment(home), **progress_in(home, log)}
        with superlink(environment, home) as wait:
            yield Flower(home, environment, wait)


def launch(
    settings: Settings,
    log: IO[str] | None = None,
    warm: WarmProcess | None = None,
    started: Flower | None = None,
) -> None:
    """Run a simulation to its end; the results lie in the folder `output`.

    Parameters
    ----------
    settings
        The run's settings; paths in them are absolute.
    log
        Where the run's own lines go; None: to this process's output.
    warm
        What runs `engine=inline`, if there is a log; None: a process of its own.
    started
        What runs `engine=ray`; None: a SuperLink that is started now.

    Raises
    ------
    RunError
        If the run ends without a whole result.
    """
    if settings.engine == "inline":
        _run_inline(settings, log, warm)
    elif started is not None:
        _run_flower(settings, log, started)
    else:
        with flower(log) as started:
            _run_flower(settings, log, started)
    if not is_whole(Path(settings.output)):
        raise RunError("the run ended without a result; the messages above say why")


def located(settings: Settings, folder: Path) -> Settings:
    """Return settings of a run in a folder, with absolute paths."""
    return settings.model_copy(
        update={
            "output": str(folder),
            "data_dir": str(user_path(settings.data_dir).resolve()),
            "dataset": _absolute(settings.dataset),
            "ood_dataset": _absolute(settings.ood_dataset),
        }
    )


def prepare(settings: Settings, folder: Path, own_data: bool = False) -> Settings:
    """Find every mistake that can be found before the start; return settings with absolute paths.

    Loading the data sets here also downloads them once, before several clients would. With
    `own_data` at the sites the data set is not dealt to them.

    Raises
    ------
    SettingError
        If the folder exists, or does not hold what is to be resumed, or the device, the data or
        the split cannot be had.
    RunError
        If another process is writing to the folder.
    """
    prepared = located(settings, folder)
    for setting in ("dataset", "ood_dataset"):
        _require_file(setting, prepared)
    require_startable(folder, prepared)
    require_free(folder)
    from fedbary.methods import require_method
    from fedbary.runs.resume import checkpoint_to_resume
    from fedbary.tasks import task_of
    from fedbary.tracking import tracker_class

    require_method(settings)
    if settings.tracker != "none":
        tracker_class(settings.tracker)
    task = task_of(settings)
    task.check(own_data)
    if checkpoint_to_resume(folder, prepared):
        task.require_same_data(folder)
    return prepared


def _absolute(dataset: str) -> str:
    """Return the path of a data set that is a file or folder here; others' names as they are."""
    prefix = HUB if dataset.startswith(HUB) else ""
    path = user_path(dataset.removeprefix(prefix))
    is_path = prefix or "/" in dataset or (path.suffix and path.is_file())
    return prefix + str(path.resolve()) if is_path and path.exists() else dataset


def _require_file(setting: str, settings: Settings) -> None:
    """Raise a SettingError if what names a data set is neither a known name nor a path."""
    name = getattr(settings, setting)
    task = settings.task if setting == "dataset" else "classification"
    known = limits.of(task).DATASETS
    places = (user_path(name), Path(settings.data_dir) / name)
    if name in ("none", *known) or is_source(name):
        return
    if not any(place.exists() for place in places):
        raise SettingError(setting, name, f"{', '.join(known)}, or the path of data")


def _run_inline(settings: Settings, log: IO[str] | None, warm: WarmProcess | None) -> None:
    with tempfile.TemporaryDirectory(prefix="fedbary-") as scratch:
        file = Path(scratch) / "settings.yaml"
        file.write_text(yaml.safe_dump(settings.model_dump()))
        if log is not None and warm is not None:
            ended_well = warm.run(file, log)
        else:
            command = [sys.executable, "-m", "server_app.inline", str(file)]
            environment = {**os.environ, **progress_in(Path(scratch), log)}
            ended_well = run_program(command, environment, log) == 0
    if not ended_well:
        raise RunError("the run failed; the messages above say why")


def _run_flower(settings: Settings, log: IO[str] | None, started: Flower) -> None:
    run_config, output = started.home / "run.toml", Path(settings.output)
    run_config.write_text(to_run_config(settings))
    federation = (
        f"num-supernodes={settings.clients} "
        f"client-resources-num-cpus={settings.cpus_per_client} "
        f"client-resources-num-gpus={_gpu_share(settings)}"
    )
    words = ["--federation-config", federation, "--run-config", str(run_config)]
    started.wait()
    flwr_run(started.environment, "local", words, log, lambda: is_left_whole(output))
    if not is_whole(output):
        status = last_status(started.environment, "local")
        raise RunError(f"the run ended as {status}; the messages above say why")


def progress_in(folder: Path, log: IO[str] | None) -> dict[str, str]:
    """Return the variables by which a run in a terminal shows its progress; elsewhere none."""
    if log is not None or not sys.stdout.isatty():
        return {}
    return {PROGRESS_VARIABLE: str(folder / "progress.json"), "PYTHONUNBUFFERED": "1"}


def flwr_run(
    environment: dict[str, str],
    name: str,
    words: list[str],
    log: IO[str] | None,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Run the app on the SuperLink of that name and stream it to its end, whatever that is.

    Once `is_over`, what Flower and Ray still do is not waited for.
    """
    command = [tool("flwr"), "run", str(app_folder()), name, "--stream", *words]
    run_program(command, environment, log, is_over)


def flower_environment(home: Path) -> dict[str, str]:
    """Return an environment where Flower has its own home, port and Ray, and installs nothing.

    Without an address Ray joins the last cluster started on the machine, even a dead one; with
    `RAY_ADDRESS` the user names one to join. Workers that Ray starts beforehand lack what Flower's
    need, and would only be ended again.
    """
    tools = str(Path(sys.executable).parent)
    return {
        **os.environ,
        CLONE_VARIABLE: str(app_folder()),
        "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS") or "local",
    }


@contextmanager
def superlink(environment: dict[str, str], home: Path) -> Iterator[Callable[[], None]]:
    """Start a SuperLink with the simulation runtime; yield what waits until it is ready.

    It is stopped at the end, and all that it started.
    """
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", port]
    log = home / "superlink.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield lambda: wait_for_superlink(process, f"127.0.0.1:{port}", log)
    except BaseException:
        stop_tree(process)
        raise
    stop_tree(process, seconds=0)


def wait_for_superlink(
    process: subprocess.Popen[bytes], address: str, log: Path, ca: Path | None = None
) -> None:
    """Wait until a SuperLink answers, by HTTPS if its certificate's authority is given.

    Raises
    ------
    RunError
        If it ends, or does not answer within a minute; the message is the last line of its log.
    """
    trusted = ssl.create_default_context(cafile=ca) if ca else None
    url = f"{'https' if ca else 'http'}://{address}/health"
    deadline = time.monotonic() + SUPERLINK_SECONDS
    while not _is_healthy(url, trusted):
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RunError(f"Flower's SuperLink did not start: {' '.join(last)}")
        time.sleep(0.1)


def _is_healthy(url: str, trusted: ssl.SSLContext | None) -> bool:
    try:
        with urlopen(url, timeout=1, context=trusted) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def last_status(environment: dict[str, str], name: str) -> str:
    """Return the newest run's status on the SuperLink of that name."""
    command = [tool("flwr"), "list", name, "--format", "json"]
    done = subprocess.run(
        command, cwd=app_folder(), env=environment, capture_output=True, text=True, check=False
    )
    try:
        return str(json.loads(done.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def _gpu_share(settings: Settings) -> float:
    """Return the part of a GPU for each client: as many share it as the CPUs serve at once."""
    if settings.gpus_per_client != "auto":
        return float(settings.gpus_per_client)
    from fedbary.device import torch_device

    if torch_device(settings).type != "cuda":
        return 0.0
    import torch

    at_once = max(1, (os.cpu_count() or 1) // settings.cpus_per_client)
    return min(1.0, torch.cuda.device_count() / min(settings.clients, at_once))


def to_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Return flat settings as TOML; JSON writes all but the delete character the same way."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    return "".join(lines).replace("\x7f", "\\u007f")

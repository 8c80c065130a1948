"""What a user's environment holds does not come between the programs of a run."""

import subprocess
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fedbary.errors import RunError, SettingError
from fedbary.launching import environment, superlink

DEAD = "http://127.0.0.1:9"


@pytest.mark.parametrize("kept", ["", "10.0.0.1,.hospital.example"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY", "no_grpc_proxy"])
def test_loopback_goes_past_a_proxy_and_what_the_user_excepts_stays(name, kept, monkeypatch):
    for other in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, kept)
    for variable, value in environment.past_proxies().items():
        monkeypatch.setenv(variable, value)
        assert {"127.0.0.1", "localhost", *kept.split(",")} - {""} == set(value.split(","))
    monkeypatch.setenv("http_proxy", DEAD)
    assert urllib.request.proxy_bypass_environment("127.0.0.1:4000")
    assert not urllib.request.proxy_bypass_environment("example.org")


def test_the_superlink_is_asked_past_a_proxy(monkeypatch, tmp_path):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(superlink, "SUPERLINK_SECONDS", 5)
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"127.0.0.1:{server.server_port}"
            superlink.wait_for_superlink(process, address, tmp_path / "log")
        finally:
            server.shutdown()
            process.communicate(b"\n")


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (
            ["INFO x", "ERROR [Errno 98] address in use", "INFO shutdown"],
            "ERROR .* address in use$",
        ),
        ([], "no answer within 180 s; is the machine busy"),
    ],
)
def test_a_superlink_that_does_not_start_is_quoted_by_its_error(lines, quoted, tmp_path):
    (tmp_path / "log").write_text("\n".join(lines))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(RunError, match=f"did not start: {quoted}"):
        superlink.wait_for_superlink(process, "127.0.0.1:9", tmp_path / "log")


def test_ray_gets_a_folder_that_its_sockets_fit_into(monkeypatch, tmp_path):
    long = tmp_path / ("deep" * 20)
    long.mkdir()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for folder, expected in ((long, "/tmp"), (Path("/var/tmp"), "/var/tmp")):
        monkeypatch.setattr("tempfile.gettempdir", lambda folder=folder: str(folder))
        assert environment.ray_folder() == {"RAY_TMPDIR": expected}
    monkeypatch.setenv("RAY_TMPDIR", "/dev/shm")
    assert environment.ray_folder() == {"RAY_TMPDIR": "/dev/shm"}
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    with pytest.raises(SettingError, match="RAY_TMPDIR: .*expected a path of at most"):
        environment.ray_folder()


def test_a_full_disk_is_named_before_ray_starts_on_it(monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/proc/there")  # of /proc nothing is free
    with pytest.raises(SettingError, match="RAY_TMPDIR: '/proc/there, .* 0.0 MiB free'; expected"):
        environment.ray_folder()


def test_without_a_short_folder_the_start_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("deep" * 20)))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(SettingError, match="TMPDIR: .*RAY_TMPDIR"):
        environment.ray_folder()

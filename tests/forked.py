"""Commands in forks of one process, which has imported PyTorch, Flower and the apps.

Importing takes seconds, forking milliseconds. `command` returns an executable file that behaves as
a module's `main` in a process of its own: its words, folder, environment, open files and exit code.
What that starts by `python -m` is forked, too, and so are Flower's servers and what they start for
each message; simulations on Ray are started as ever. Signals to the file's process reach the fork
and what it has started, as one from a terminal would; who kills it kills the fork. Among the
children of a process, forks are not found.
"""

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

FIRST_FREE = 500
"""Above the numbers of the files that a command is given."""

SHARED = "FEDBARY_FORKED"
"""The variable of the folder that `share` has made for this session's workers."""

RAY = "flwr-simulation"
"""Flower's program that starts Ray; it is not forked."""


def ask(address: str, function: str, words: list[str]) -> int:
    """Have `module:function` run in a fork, with this process's files; return its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        files = [0, 1, 2, *(fd for fd in range(3, 100) if fd != server.fileno() and _is_passed(fd))]
        what = {"function": function, "words": words, "folder": os.getcwd(), "files": files}
        text = json.dumps({**what, "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [len(text).to_bytes(4, "big")], files)
        server.sendall(text)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: server.send(bytes([number])))
        answer = server.recv(1)
    return answer[0] if answer else 1


def _is_passed(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def serve(folder: str, listening: int) -> None:
    """Fork for every request at a listening socket, until the process that holds stdin ends."""
    import gc
    from importlib import import_module

    import_module("fedbary.server_app.engine.warm")
    for function in _flower().values():
        import_module(function.partition(":")[0])
    os.fsync = lambda descriptor: None  # no test cuts the power
    _look_often()
    gc.freeze()
    with socket.socket(fileno=listening) as server:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
                return
            client, _ = server.accept()
            if os.fork() == 0:
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job ignores it
    size, files, _, _ = socket.recv_fds(client, 4, FIRST_FREE)
    asked = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    child = os.fork()
    if child:
        _answer(client, child)
    client.close()
    os.setsid()
    _become(asked, files, folder)
    _run(*asked["function"].split(":"))


def _look_often() -> None:
    """Let Flower's servers look for messages each quarter of a second, not each three seconds."""
    import time
    from types import SimpleNamespace

    often = SimpleNamespace(**vars(time))
    often.sleep = lambda seconds: time.sleep(min(seconds, 0.25))
    for name, module in list(sys.modules.items()):
        if name.startswith("flwr.") and name.endswith((".http_grid", ".start_client_internal")):
            module.time = often


def _run(module: str, function: str) -> None:
    """Run a function and exit as its process would, without clearing up all modules."""
    import traceback
    from importlib import import_module

    code: object = 0
    try:
        code = getattr(import_module(module), function)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _answer(client: socket.socket, child: int) -> None:
    """Hand signals on to a fork's group, and say how it ended; with nobody to tell, end it."""
    ended = os.pidfd_open(child)
    while ended not in select.select([client, ended], [], [])[0]:
        if number := client.recv(1):
            _kill(child, number[0])
        else:
            _kill(child, signal.SIGKILL)
            break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        client.send(bytes([code % 256]))
    os._exit(0)


def _kill(child: int, number: int) -> None:
    """Send a signal to a fork's group, or to the fork that has none yet."""
    with suppress(ProcessLookupError):
        return os.killpg(child, number)
    os.kill(child, number)


def _become(asked: dict, received: list[int], folder: str) -> None:
    """Take the folder, environment, words and open files of the process that asks."""
    import fcntl

    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, target in zip(moved, asked["files"], strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:0] = [asked["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    sys.argv = asked["words"]
    sys.executable = os.path.join(folder, "python")


def command(module: str = "fedbary.commands.command") -> str:
    """Return an executable file that runs a module's `main` in a fork."""
    name = os.path.join(tools(), module)
    if not os.path.exists(name):
        _write(name, f"sys.exit(forked.ask({tools()!r} + '/socket', '{module}:main', sys.argv))")
    return name


def tools() -> str:
    """Start the process that forks, once; return the folder of its commands and of Flower's."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    if hasattr(tools, "folder"):
        return tools.folder
    if SHARED in os.environ:
        return os.environ[SHARED]
    folder = tools.folder = tempfile.mkdtemp(prefix="forked-")
    address = os.path.join(folder, "socket")
    lines = "words = sys.argv[2:]\nassert sys.argv[1] == '-m', sys.argv"
    _write(
        os.path.join(folder, "python"),
        f"{lines}\nsys.exit(forked.ask({address!r}, words[0] + ':main', words))",
    )
    for name, function in _flower().items():
        _write(
            os.path.join(folder, name), f"sys.exit(forked.ask({address!r}, {function!r}, sys.argv))"
        )
    os.symlink(os.path.join(os.path.dirname(sys.executable), RAY), os.path.join(folder, RAY))
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, folder, str(server.fileno())],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
            stdin=subprocess.PIPE,
            pass_fds=[server.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        with process:
            process.kill()
        shutil.rmtree(folder)

    atexit.register(end)
    return folder


def share() -> None:
    """Start one process that forks for all that this one starts: its imports take 7 s."""
    os.environ[SHARED] = tools()


def _flower() -> dict[str, str]:
    """Return the function, `module:name`, that each of Flower's forked programs calls."""
    from importlib.metadata import entry_points

    programs = entry_points(group="console_scripts")
    return {
        program.name: program.value
        for program in programs
        if program.dist.name == "flwr" and program.name != RAY
    }


def _write(name: str, line: str) -> None:
    """Write an executable file in which `forked` is this module."""
    here = os.path.dirname(os.path.abspath(__file__))
    own = f"{name}.{os.getpid()}"  # another worker may be writing it
    with open(own, "w") as file:
        file.write(f"#!{sys.executable} -IS\nimport sys\n\nsys.path.append({here!r})\n")
        file.write(f"import forked\n\n{line}\n")
    os.chmod(own, 0o700)
    os.rename(own, name)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

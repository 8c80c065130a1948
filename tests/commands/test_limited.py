"""Commands at the limits of a machine, and two at once: one line that says why, nothing half done.

Each command runs in a fork of one process that has imported all of it, with limits of its own.
"""

import csv
import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedbary.settings.config import resolve
from fedbary.texts import SCREEN
from server_app.engine.inline import run_inline

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"engine": "inline", "pictures": False, "clients": 2, "rounds": 1, "local_epochs": 1}
MIB = 2**20

COMMANDS = """
import json, os, resource, sys
import fedbary.trained, fedbary.tasks.tables, fedbary.tasks.classification, matplotlib.figure
import pandas, pyarrow.parquet, server_app.experiment, server_app.engine.inline
import fedbary.trained.judgement, fedbary.figures.run_pictures
from fedbary.commands.cli import main

for words, limits, times in json.load(sys.stdin):
    children = []
    for number in range(times):
        child = os.fork()
        if child:
            children.append(child)
            continue
        for output, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}{number}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), output)
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        for name, most in limits.items():
            most += held if name == "RLIMIT_AS" else 0
            resource.setrlimit(getattr(resource, name), (most, most))
        sys.argv = ["fedbary", *words]
        code = 1
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    texts = [[open(f"{name}{k}", errors="replace").read() for name in ("out", "err")]
             for k in range(times)]
    print(json.dumps([(code, *text) for code, text in zip(codes, texts)]), flush=True)
"""


def commands(folder, *asked):
    """Run each (words, limits, how often at once); return code, output and errors of each."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=folder, input=json.dumps(asked), capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent), "MPLBACKEND": "agg",
             "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
             "PYTHONDONTWRITEBYTECODE": "1"},  # RLIMIT_FSIZE would cut its files short
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def one_line(errors):
    """The last line of a command's errors, which no traceback may precede."""
    assert "Traceback" not in errors, errors[-3000:]
    assert all(len(line) <= SCREEN + len("fedbary: ") for line in errors.splitlines())
    return errors.splitlines()[-1]


def table(rows=60):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, rows)
    died = np.where(age + rng.normal(0, 9, rows) > 55, "died", "lived")
    ward = np.where(np.arange(rows) % 3 > 0, "north", "south")
    return pd.DataFrame({"age": age, "ward": ward, "outcome": died})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `run`, a run on a table, and the table, `rows.csv`."""
    made = tmp_path_factory.mktemp("limited")
    table().to_csv(made / "rows.csv", index=False)
    about = {"task": "tables", "dataset": str(made / "rows.csv"), "target": "outcome"}
    run_inline(resolve({**QUICK, **about}), made / "run")
    return made


def packed(file, start, piece, times):
    """Write a .gz of a beginning and a piece again and again: members of one gzip file."""
    file.write_bytes(gzip.compress(start) + gzip.compress(piece) * times)


def dictionary(rows, text):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def claiming(file, descr, shape, size, packed):
    """An .npz of an array of few bytes; its directory may say that 4 GiB lie packed in it."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(size)
        archive.writestr("x.npy", member)
        archive.filelist[0].compress_size = packed or archive.filelist[0].compress_size
    file.write_bytes(content.getvalue())


@pytest.fixture(scope="module")
def bombs(folder):
    made = folder / "bombs"
    made.mkdir()
    packed(made / "line.csv.gz", b"", b"1" * MIB, 2048)
    packed(made / "cell.csv.gz", b"age,ward\n1,", b"1" * MIB, 2048)
    packed(made / "rows.csv.gz", b"age,ward\n", b"1,1\n" * (MIB // 4), 512)
    names = [f"c{i}" for i in range(31)]
    zeros, n = pa.array(np.zeros(10_000_000, np.int8)), 500_000
    write = {"compression": "zstd"}
    parquet.write_table(pa.table(dict.fromkeys(names, zeros)), made / "rows.parquet", **write)
    text = pa.table({"age": dictionary(n, "x" * 10_000)})
    parquet.write_table(text, made / "levels.parquet", **write)
    parquet.write_table(text, made / "texts.parquet", **write, store_schema=False)
    parquet.write_table(
        pa.table({"age": pa.array(["x" * 10_000] * 100_000)}), made / "delta.parquet", **write,
        use_dictionary=False, column_encoding={"age": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    claiming(made / "lie.npz", "<f8", (300_000_000, 1), MIB, 2**32 - 2)
    return sorted(made.iterdir())


def test_a_small_file_of_a_huge_table_is_refused_before_it_takes_the_memory(folder, bombs):
    assert len(bombs) == 8 and all(file.stat().st_size < 4 * MIB for file in bombs)
    limits = {"RLIMIT_AS": 1200 * MIB}
    done = commands(folder, *((["predict", "run", str(file)], limits, 1) for file in bombs))
    for file, ((code, _, errors),) in zip(bombs, done, strict=True):
        said = one_line(errors)
        assert code == 2 and str(file) in said, (file, errors)
        assert any(w in said for w in ("would take", "longer first line")), said


def test_memory_that_runs_out_is_said_in_one_line(folder):
    claiming(folder / "large.npz", "<f8", (2_000_000, 300), 24 * MIB, 0)
    asked = ["predict", "run", "large.npz"], {"RLIMIT_AS": 1024 * MIB}, 1
    ((code, _, errors),) = commands(folder, asked)[0]
    assert code == 1 and "too little memory here: Unable to allocate" in one_line(errors)


@pytest.mark.parametrize("words", [["predict", "run", "many.csv"], ["export", "run", "m.onnx"]])
def test_a_file_that_cannot_be_written_whole_is_named(folder, words):
    table(600).to_csv(folder / "many.csv", index=False)
    before = set(folder.iterdir())
    ((code, _, errors),) = commands(folder, (words, {"RLIMIT_FSIZE": 8000}, 1))[0]
    name = "m.onnx" if words[0] == "export" else "predictions.csv"
    assert code == 1 and "File too large" in one_line(errors) and name in one_line(errors)
    assert {file.name for file in set(folder.iterdir()) - before} <= {"out0", "err0"}


LONG = MIB
CELLS = {
    "a number": lambda t: t.assign(age=["1" * LONG, *t.age[1:]]),
    "no number": lambda t: t.assign(age=["x" * LONG, *t.age[1:]]),
    "an error": lambda t: t.assign(age=["\x1b" * LONG, *t.age[1:]]),
    "a level": lambda t: t.assign(ward=["x" * LONG, *t.ward[1:]]),
    "a class": lambda t: t.assign(outcome=["x" * LONG, *t.outcome[1:]]),
    "a header": lambda t: t.rename(columns={"ward": "x" * (MIB // 2)}),
    "a header more": lambda t: t.assign(**{"x" * (MIB // 2): 1}),
    "a group": lambda t: t.assign(group=["x" * LONG, "y" * LONG, *t.ward[2:]]),
    "many headers": lambda t: t.join(pd.DataFrame(1, t.index, [f"column{i}" for i in range(999)])),
}
"""What a stranger's table may hold: one of its texts is very long."""


def test_no_text_of_a_table_makes_a_long_line(folder):
    asked = []
    for number, change in enumerate(CELLS.values()):
        change(table()).to_csv(folder / f"long{number}.csv", index=False)
        asked += [
            (["predict", "run", f"long{number}.csv", "--output", f"long{number}.txt"], {}, 1),
            (["simulate", "engine=inline", "task=tables", f"dataset=long{number}.csv", "clients=2",
              "rounds=1", "target=outcome", "pictures=false", f"output=run{number}"], {}, 1),
        ]  # fmt: skip
    by = ["evaluate", "run", "long7.csv", "--by", "group", "--output", "groups"]
    asked.append((by, {}, 1))
    for (words, *_), ((_, out, errors),) in zip(asked, commands(folder, *asked), strict=True):
        assert "Traceback" not in errors, (words, errors[-2000:])
        longest = max(map(len, (out + errors).splitlines()), default=0)
        assert longest <= SCREEN + 200, (words, longest, (out + errors)[:500])


def test_of_two_commands_with_one_output_one_writes_it_whole_and_the_other_says_so(folder):
    kept = {}
    for times, place in ((1, "alone"), (2, "both"), (3, "both-of-three")):
        words = ["evaluate", "run", "rows.csv", "--output", place]
        done = commands(folder, (words, {}, times))[0]
        assert sorted(code > 0 for code, *_ in done) == [False] + [True] * (times - 1), done
        for code, _, errors in done:
            if code:
                said = one_line(errors)
                assert "is being written by process" in said or "does not exist yet" in said
        kept[place] = {file.name: file.read_bytes() for file in (folder / place).iterdir()}
        assert kept[place] == kept["alone"]
    assert not list(folder.glob(".*partial*"))
    done = commands(folder, (["predict", "run", "rows.csv", "--output", "p.csv"], {}, 3))[0]
    assert sorted(code > 0 for code, *_ in done) == [False, True, True], done
    with open(folder / "p.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 60
    done = commands(folder, ([*words, "--force"], {}, 3))[0]
    assert any(code == 0 for code, *_ in done)
    assert {file.name: file.read_bytes() for file in (folder / place).iterdir()} == kept["alone"]

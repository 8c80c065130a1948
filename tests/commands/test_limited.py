"""Commands at the limits of a machine, and two at once: a line says why, nothing is half done."""

import csv
import gzip
import io
import json
import struct
import subprocess
import zipfile

import forked
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.texts import SCREEN

pytestmark = pytest.mark.slow

QUICK = {"engine": "inline", "pictures": False, "clients": 2, "rounds": 1, "local_epochs": 1}
MIB = 2**20


def commands(folder, *words, times=1, **limits):
    """Run a command under limits, several times at once; return codes and what was said."""
    command = [forked.command("limited_fedbary"), json.dumps(limits), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, cwd=folder, **pipes) for _ in range(times)]
    said = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


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
    names = [f"c{i}" for i in range(18)]
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
    for file in bombs:
        ((code, _, errors),) = commands(folder, "predict", "run", file, RLIMIT_AS=1200 * MIB)
        said = one_line(errors)
        assert code == 2 and str(file) in said, (file, errors)
        assert any(w in said for w in ("would take", "longer first line", "zip bomb")), said


def test_memory_that_runs_out_is_said_in_one_line(folder):
    claiming(folder / "large.npz", "<f8", (2_000_000, 300), 24 * MIB, 0)
    ((code, _, errors),) = commands(folder, "predict", "run", "large.npz", RLIMIT_AS=1024 * MIB)
    assert code == 1 and "too little memory here: Unable to allocate" in one_line(errors)


@pytest.mark.parametrize("words", [["predict", "run", "many.csv"], ["export", "run", "m"]])
def test_a_file_that_cannot_be_written_whole_is_named(folder, words):
    table(600).to_csv(folder / "many.csv", index=False)
    before = set(folder.iterdir())
    ((code, _, errors),) = commands(folder, *words, RLIMIT_FSIZE=8000)
    name = "model.onnx" if words[0] == "export" else "predictions.csv"
    assert code == 1 and "File too large" in one_line(errors) and name in one_line(errors)
    assert set(folder.iterdir()) == before


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
    "many headers": lambda t: t.join(pd.DataFrame(1, t.index, [f"column{i}" for i in range(300)])),
}
"""What a stranger's table may hold: one of its texts is very long."""


def test_no_text_of_a_table_makes_a_long_line(folder):
    simulate = ["simulate", "engine=inline", "task=tables", "clients=2", "rounds=1", "samples=2"]
    simulate += ["local_epochs=1", "pictures=false", "target=outcome"]
    by = ["evaluate", "run", "a group.csv", "--by", "group", "--output", "groups"]
    for name, change in CELLS.items():
        change(table()).to_csv(folder / f"{name}.csv", index=False)
        for words in (
            ["predict", "run", f"{name}.csv", "--output", f"{name}.txt"],
            [*simulate, f"dataset={name}.csv", f"output={name}"],
            *([by] if name == "a group" else []),
        ):
            ((_, out, errors),) = commands(folder, *words)
            assert "Traceback" not in errors, (words, errors[-2000:])
            longest = max(map(len, (out + errors).splitlines()), default=0)
            assert longest <= SCREEN + 200, (words, longest, (out + errors)[:500])


def written(folder):
    """The content of each file of a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_of_two_commands_with_one_output_one_writes_it_whole_and_the_other_says_so(folder):
    kept = {}
    for times, place in ((1, "alone"), (3, "one-of-three")):
        words = ["evaluate", "run", "rows.csv", "--output", place]
        done = commands(folder, *words, times=times)
        assert sorted(code > 0 for code, *_ in done) == [False] + [True] * (times - 1), done
        for code, _, errors in done:
            if code:
                said = one_line(errors)
                assert "is being written by process" in said or "does not exist yet" in said
        kept[place] = written(folder / place)
        assert kept[place] == kept["alone"]
    assert not list(folder.glob(".*partial*"))
    done = commands(folder, "predict", "run", "rows.csv", "--output", "p.csv", times=2)
    assert sorted(code > 0 for code, *_ in done) == [False, True], done
    with open(folder / "p.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 60
    done = commands(folder, *words, "--force", times=2)
    assert any(code == 0 for code, *_ in done)
    assert written(folder / place) == kept["alone"]

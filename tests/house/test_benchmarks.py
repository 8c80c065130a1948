"""Benchmarks that need what a test machine lacks run here too, on tiny sizes or up to there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from every_method import night

from benchmarks import authors

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path):
    """A folder with just what the corrections are made on."""
    for file, text in {
        "train.py": "",
        "utils/FL/aggregation_functions.py": "a = means.cpu() + covs.cpu()\n",
        "arg_parser.py": '"noniid-labeldir" : {"comm_round": 50},\n"iid" : {"comm_round": 50}\n',
    }.items():
        (tmp_path / "clone" / "BFL" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / "BFL" / file).write_text(text)
    return tmp_path / "clone"


def test_the_authors_code_is_corrected_on_a_copy(clone, tmp_path):
    before = {file: file.read_bytes() for file in clone.rglob("*.py")}
    copy = authors.corrected(clone, tmp_path)
    assert (copy / "utils/FL/aggregation_functions.py").read_text() == "a = means + covs\n"
    assert re.findall(r"\d+", (copy / "arg_parser.py").read_text()) == ["1", "50"]
    assert (copy / "ivon.py").is_file()
    assert before == {file: file.read_bytes() for file in clone.rglob("*.py")}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        *((file, None, file) for file in ("train.py", *(c.file for c in authors.CORRECTIONS))),
        *((correction.file, "pass\n", correction.why) for correction in authors.CORRECTIONS),
    ],
)
def test_a_clone_that_lacks_a_file_or_reads_otherwise_is_refused_in_one_line(
    clone, file, text, said
):
    (clone / "BFL" / file).unlink()
    if text:
        (clone / "BFL" / file).write_text(text)
    with pytest.raises(SystemExit, match=rf"^authors: clone: .*{re.escape(said)}.*$"):
        authors.main([str(clone)])


def test_a_command_without_a_whole_round_is_told_in_one_line(tmp_path):
    command = ["python", "-c", "raise SystemExit('such is life')"]
    with pytest.raises(authors.RunError, match="no whole round; it ended with: such is life"):
        authors.timed(command, tmp_path, "1", lambda: 0)


@night  # by day the golden runs' bits, and the whole suite's time
@pytest.mark.slow
def test_nothing_is_dearer_than_its_kept_count():
    words = [sys.executable, "-m", "benchmarks.all"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

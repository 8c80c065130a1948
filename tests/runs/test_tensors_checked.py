"""Files of tensors: what is read is what was written, to the last bit, or an error."""

import stat

import pytest
import torch
from safetensors.torch import save_file

from fedbary.runs.whole import private_folder, read_tensors, write_tensors

TENSORS = {"a_mean": torch.arange(3.0), "b": torch.tensor([1, 2]), "c": torch.tensor(True)}


@pytest.mark.slow
def test_every_bit_that_is_flipped_is_noticed(tmp_path):
    file = tmp_path / "x.safetensors"
    write_tensors(file, TENSORS, {"round": "3"})
    whole = file.read_bytes()
    for place in range(8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[place // 8] ^= 1 << place % 8
        file.write_bytes(spoilt)
        with pytest.raises(ValueError):
            read_tensors(file, ("round",))


def test_what_was_written_is_read_and_a_file_without_digest_has_no_marks(tmp_path):
    file = tmp_path / "x.safetensors"
    write_tensors(file, TENSORS, {"round": "3"})
    found, marks = read_tensors(file, ("round",))
    assert marks == {"round": "3"}
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    save_file(TENSORS, file)
    assert read_tensors(file, ("round",))[1] == {}


def test_a_file_is_as_private_as_its_folder(tmp_path):
    private_folder(tmp_path / "own" / "inner")
    (tmp_path / "shared").mkdir(mode=0o755)
    modes = {}
    for name in ("own/inner", "shared"):
        file = tmp_path / name / "x.safetensors"
        write_tensors(file, TENSORS)
        modes[name] = stat.S_IMODE(file.stat().st_mode)
    assert modes["own/inner"] == 0o600
    assert modes["shared"] & 0o400 and modes["shared"] != 0o600

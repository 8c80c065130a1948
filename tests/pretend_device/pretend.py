"""`torch.pretend`: a device on host memory that refuses what CUDA refuses. Importing it makes it known.

Its C++ is compiled once for each version of PyTorch, half a minute; the library stays in the cache.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("pretend.cpp")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbary"


def library():
    """The file of the compiled library: it is there, or `build` makes it."""
    made_of = SOURCE.read_bytes() + torch.__version__.encode()
    return CACHE / f"pretend-{hashlib.blake2b(made_of, digest_size=8).hexdigest()}.so"


def buildable():
    """Whether the library is there, or a compiler is."""
    return library().exists() or shutil.which("g++") is not None


def build():
    """Compile the library if it is not there; a process that comes meanwhile compiles its own."""
    if library().exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    part, home = library().with_suffix(f".{os.getpid()}"), Path(torch.__file__).parent
    flags = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", "-ltorch_cpu", "-lc10"]
    places = [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include", f"-L{home}/lib"]
    subprocess.run(["g++", SOURCE, "-o", part, *places, *flags], check=True)
    part.replace(library())


def register():
    """Load the library, and be `torch.pretend`."""
    build()
    torch.ops.load_library(library())
    torch.utils.rename_privateuse1_backend("pretend")
    here, module = torch.ops.pretend, types.ModuleType("torch.pretend")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: int(os.environ.get("PRETEND_DEVICES", "1")),
        current_device=lambda: 0,
        synchronize=lambda device=None: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        get_device_name=lambda device=None: "pretend accelerator",
        _is_in_bad_fork=lambda: False,
        manual_seed=here.seed,
        manual_seed_all=here.seed,
        get_rng_state=lambda device=None: here.state(),
        set_rng_state=lambda state, device=None: here.restore(state),
        device=lambda device: contextlib.nullcontext(),
    )
    torch._register_device_module("pretend", module)
    sys.modules["torch.pretend"] = module
    # As on CUDA, a parameter stays the same object, and tied ones tied, when a module is moved.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


if __name__ == "__main__":
    build()
else:
    register()

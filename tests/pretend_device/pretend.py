"""`torch.pretend`: a device on host memory that refuses what CUDA refuses; import makes it."""

import contextlib
import os
import sys
import types

import torch
from compiled import compiled

torch.ops.load_library(compiled())
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
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def moved(module, *args, apply=torch.nn.Module._apply, **kwargs):
    """Move a module: as on CUDA, a parameter stays the same object, and tied ones tied."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return apply(module, *args, **kwargs)
    finally:  # a state dict that is loaded does not swap
        torch.__future__.set_swap_module_params_on_conversion(before)


torch.nn.Module._apply = moved

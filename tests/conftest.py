"""One torch thread: bitwise equality needs one number of them, and Ray's actors need the cores."""

import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

"""The operators' tests that run on the CPU and on a GPU."""

import os
import sys

import torch


def from_arguments():
    """Loads the library that sys.argv names first. The device, and the dtypes that its kernels take; without the GPU that --device asks for, ctest
    counts the test as skipped, or as failed under LETHE_REQUIRE_GPU=1."""
    torch.ops.load_library(sys.argv.pop(1))
    if sys.argv[1:2] != ["--device"]:
        return "cpu", [torch.float64, torch.float32, torch.bfloat16]
    device = sys.argv.pop(2)
    del sys.argv[1]
    if not torch.cuda.is_available() and os.environ.get("LETHE_REQUIRE_GPU") != "1":
        print("needs a GPU")
        sys.exit(77)
    return device, [torch.float32, torch.bfloat16, torch.float16]

"""The GPU of the binding's tests, and the library that they are given."""
import os
import sys

import torch

# Of the first GPU. A build with LETHE_AS_A100 runs on a Hopper GPU what an A100 runs: its tests have LETHE_AS_A100=1 in the environment.
AS_A100 = os.environ.get("LETHE_AS_A100") == "1"
CAPABILITY = ((8, 0) if AS_A100 else torch.cuda.get_device_capability()) if torch.cuda.is_available() else (0, 0)
HOPPER = CAPABILITY == (9, 0)
NEEDS_HOPPER = "needs a GPU of compute capability 9.0"


def load_library_or_skip():
    """The operators, of the library that the command line begins with."""
    if CAPABILITY < (8, 0) and os.environ.get("LETHE_REQUIRE_GPU") != "1":
        print("needs a GPU of compute capability 8.0 or more")
        sys.exit(77)  # which ctest counts as skipped
    torch.ops.load_library(sys.argv.pop(1))

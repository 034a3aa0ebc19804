"""Of the main kernels: warps late, now and then, where one waits for another, meets others or hands back what it has read. They break nothing: the
suite's tests must pass. Not delayed: who arrives at a named barrier and goes on, the loading threads' own arrivals, the turns of the fixed order.
"""

from .mutant import Mutant

SLEEP = "if (clock() / 32 % 4 == 0) __nanosleep(3000);"  # of whole warps, one time in four
PLACES = [
    # behind a wait for the copy engine, for stages that fall free, for what is said of a step or a tile
    ("wait", "cuda/hopper/ptx/barrier.cuh", "return done != 0;", f"if (done) {{\n    {SLEEP}\n  }}\n  return done != 0;"),
    # before and behind a meeting of warps: a turn, a slice, the other warpgroup's dS
    ("meeting", "cuda/hopper/ptx/barrier.cuh",
     '  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");\n',
     f'  {SLEEP}\n  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");\n  {SLEEP}\n'),
    # before a warp hands back what it has read
    ("release", "cuda/hopper/handover.cuh", "  __syncwarp();\n", f"  __syncwarp();\n  {SLEEP}\n"),
]
MUTANTS = [Mutant(f"late_{suite}_{place}", suite, file, old, new, breaks=False)
           for suite in ("forward", "backward") for place, file, old, new in PLACES]

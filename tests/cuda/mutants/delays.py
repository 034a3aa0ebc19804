"""Of the main kernels: warps that are late, now and then, where one waits for another, meets others or releases what it has read. They break
nothing: the suite's tests must pass. Not delayed: a warp that arrives at a named barrier without waiting, the loading threads' own arrivals,
the turns of the fixed order.
"""

from .mutant import Mutant

SLEEP = "if (clock() / 32 % 4 == 0) __nanosleep(3000);"  # of whole warps, one time in four
MEETING = 'asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");'
PLACES = (
    # after a wait for the copy engine, for stages that fall free, for the description of a step or a tile
    ("wait", "mbarrier_try_wait", "return done != 0;", f"if (done) {{ {SLEEP} }} return done != 0;"),
    # before and after a meeting of warps: a turn, a slice, the other warpgroup's dS
    ("meeting", "named_barrier_sync", MEETING, f"{SLEEP} {MEETING} {SLEEP}"),
    # before a warp releases what it has read
    ("release", "release", "__syncwarp();", f"__syncwarp(); {SLEEP}"),
)
MUTANTS = [Mutant(f"late_{suite}_{place}", suite, function, statement, new, breaks=False)
           for suite in ("forward", "backward") for place, function, statement, new in PLACES]

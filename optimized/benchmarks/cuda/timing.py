"""The time of calls on a GPU that is kept busy until they are queued."""
import time

import torch

BUSY_CYCLES = 4_000_000  # of the GPU, some 2 ms: longer than the CPU takes to queue a few calls


def milliseconds(call, calls, device):
    """Of one call(i), the mean of some in a row."""
    if device == "cpu":
        begin = time.perf_counter()
        for i in range(calls):
            call(i)
        return 1e3 * (time.perf_counter() - begin) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    begin.record()
    for i in range(calls):
        call(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls

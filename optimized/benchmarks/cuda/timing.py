"""The time of calls on a GPU that is kept busy until they are queued, and what a file of times says of its run."""
import contextlib
import datetime
import pathlib
import subprocess
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


def provenance(device, commit):
    """GPU, driver, torch, commit and date; `commit`: that of a tree that is no checkout, else empty."""
    def said(*command):
        with contextlib.suppress(OSError):
            run = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
            if run.returncode == 0 and run.stdout.strip():
                return run.stdout.splitlines()[0].strip()
        return ""

    on_gpu = device == "cuda"
    return {"gpu": torch.cuda.get_device_name() if on_gpu else "cpu",
            "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "unknown" if on_gpu else "none",
            "torch": torch.__version__,
            "commit": commit or said("git", "rev-parse", "HEAD") or "unknown",
            "dirty": None if commit else bool(said("git", "status", "--porcelain", "--untracked-files=no")),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}

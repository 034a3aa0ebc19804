#!/usr/bin/env python3
"""Times gated_state and delta_state, forward and backward, against the time in which the card copies as many bytes as a call must read and write.

usage: matrix_state.py LIBRARY [--output FILE.json] [--only NAME]… [--rounds N] [--commit HASH]

A floor counts every input, gradient and output once, at the speed of a copy of 384 MB in the same process; that of one token is the time of a copy of
as many bytes, whose launch is no shorter. The L2 cache is filled by reading another
array before each call: dirty lines of a write would be written back inside the call. A time is the median between CUDA events on a GPU that is kept
busy until the call is queued. The backward is that of all inputs, without its forward.
"""
import argparse
import json
import statistics
import sys

import torch

BUSY_CYCLES = 2_000_000
MEGABYTE = 1 << 20
bf16 = torch.bfloat16

# name: (sequences, length, heads, rows, columns, the call's gates)
CASES = {
    "no gate": (8, 4096, 24, 64, 64, ""),
    "no gate, 16k": (2, 16384, 24, 64, 64, ""),
    "token gate": (8, 4096, 24, 64, 64, "token"),
    "token gate, 16k": (2, 16384, 24, 64, 64, "token"),
    "token gate, 128 x 64": (8, 4096, 24, 128, 64, "token"),
    "token gate, 128 x 128": (8, 4096, 12, 128, 128, "token"),
    "normalized": (8, 4096, 24, 64, 64, "token normalized"),
    "key gate": (8, 4096, 24, 64, 64, "key"),
    "key and value gates": (32, 1024, 12, 32, 64, "key value"),
    "delta": (8, 4096, 24, 64, 64, "delta"),
    "delta, token gate": (8, 4096, 12, 128, 128, "delta token"),
    "delta, key gate": (8, 4096, 12, 128, 128, "delta key"),
    "one token, 16": (16, 1, 24, 64, 64, "token state"),
    "one token, 64": (64, 1, 24, 64, 64, "token state"),
}


def inputs_of(batch, length, heads, rows, columns, form):
    """Arguments by name, None where the form has none."""
    normal = lambda *shape, dtype=bf16: torch.randn(batch, length, heads, *shape, device="cuda").to(dtype)
    gate = lambda *shape: torch.nn.functional.logsigmoid(normal(*shape, dtype=torch.float32) + 3)
    query, key, value = normal(rows), torch.nn.functional.normalize(normal(rows), dim=-1), normal(columns)
    if "normalized" in form:
        query, key = query.abs(), key.abs()
    return {"query": query, "key": key, "value": value, "beta": gate().exp() if "delta" in form else None,
            "key_gate": gate() if "token" in form else gate(rows) if "key" in form else None,
            "value_gate": gate(columns) if "value" in form else None,
            "state": torch.randn(batch, heads, rows, columns, device="cuda") if "state" in form else None}


def run(given, form):
    head = (given["query"], given["key"], given["value"])
    if "delta" in form:
        return torch.ops.lethe.delta_state(*head, given["beta"], given["key_gate"], given["state"])
    return torch.ops.lethe.gated_state(*head, given["key_gate"], given["value_gate"], given["state"], normalize="normalized" in form)


def nbytes(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def microseconds(call, rounds, other):
    times = []
    for _ in range(rounds + 1):
        other.sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(BUSY_CYCLES)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times[1:])


def copy_of(count, rounds, other):
    """Microseconds of a copy that reads and writes `count` bytes in all."""
    source = torch.ones(max(1, count // 8), device="cuda")
    target = torch.empty_like(source)
    return microseconds(lambda: target.copy_(source), rounds, other)


def measured(name, rounds, other, speed):
    """The case's rows: a direction, its time, its floor and the floor's share of the time."""
    *sizes, form = CASES[name]
    given = inputs_of(*sizes, form)
    with torch.no_grad():
        forward = microseconds(lambda: run(given, form), rounds, other)
    leaves = [tensor.requires_grad_() for tensor in given.values() if tensor is not None]
    values, state = run(given, form)
    # The last state's gradient counts as little as the state itself where there is none at the beginning.
    read = nbytes(leaves) + values.nbytes
    rows = [("forward", forward, read + (state.nbytes if given["state"] is not None else 0))]
    if sizes[1] > 1:
        direction = torch.randn_like(values)
        backward = microseconds(lambda: torch.autograd.grad(values, leaves, direction, retain_graph=True), rounds, other)
        rows.append(("backward", backward, read + nbytes(leaves)))
    floors = [copy_of(count, rounds, other) if sizes[1] == 1 else count / speed for _, _, count in rows]
    return [{"case": name, "direction": direction, "microseconds": time, "floor_microseconds": floor, "share": floor / time}
            for (direction, time, _), floor in zip(rows, floors)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--output", help="JSON file of all rows")
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("device: expected a CUDA device, found none")
    torch.ops.load_library(arguments.library)
    torch.manual_seed(1)
    other, source = (torch.ones(megabytes * MEGABYTE // 4, device="cuda") for megabytes in (256, 384))
    target = torch.empty_like(source)
    speed = 2 * source.nbytes / microseconds(lambda: target.copy_(source), arguments.rounds, other)  # bytes a microsecond
    print(f"{torch.cuda.get_device_name()}: copies at {speed / 1e3:.0f} GB/s")
    print(f"{'case':24} {'direction':9} {'µs':>9} {'floor':>8} {'share':>7}")
    rows = []
    for name in arguments.only or CASES:
        for row in measured(name, arguments.rounds, other, speed):
            rows.append(row)
            print(f"{name:24} {row['direction']:9} {row['microseconds']:9.1f} {row['floor_microseconds']:8.1f} {row['share']:7.3f}", flush=True)
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": arguments.commit,
                       "copy_gigabytes_per_second": speed / 1e3, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times gated_state and delta_state, forward and backward, against the time in which the card copies as many bytes as a call must read and write.

usage: matrix_state.py LIBRARY [--fla FOLDER] [--peers FOLDER…] [--gates usual near-one] [--type TYPE] [--output FILE.json]
                       [--only NAME]… [--rounds N] [--commit HASH]
       matrix_state.py LIBRARY --profile FILE.log [--gates usual near-one] [--type TYPE] [--only NAME]… [--rounds N] [--commit HASH]

A floor counts every input, gradient and output once, at the speed of a copy of 384 MB in the same process; that of one token is the time of a copy of
as many bytes, whose launch is no shorter. The L2 cache is filled by reading another
array before each call: dirty lines of a write would be written back inside the call. A time is the median between CUDA events on a GPU that is kept
busy until the call is queued. The backward is that of all inputs, without its forward.

With --fla, a checkout of flash-linear-attention, and with --peers, folders from which packages of others are imported (matrix_state_rivals.py lists
them), their operators of the same mechanism are timed with the same clock on the same problem; a row has the fastest of each package. One that
raises, or whose values or gradients are not within --tolerance of ours (the norm of the difference over ours), has no time of that direction. On
Hopper FLA's chunked backward with a gate a token asks for Triton 3.7.1 (its issue 640).

With --profile, no times but those of each kernel, by torch.profiler: of a forward with the backward of all inputs, the mean of --rounds calls.
"""
import argparse
import importlib.metadata
import json
import pathlib
import statistics
import sys

import torch

from matrix_state_rivals import MODULES, gradients_of, of_rivals, packages_at_hand, rivals_of
from timing import provenance

SEED = 1
BUSY_CYCLES = 10_000_000  # longer than the CPU takes to queue a call, FLA's many kernels too
MEGABYTE = 1 << 20
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

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
# name: ((least share of the floor, forward and backward), the shares aimed at)
GOALS = {
    "no gate": ((0.80, 0.60), (0.90, 0.78)),
    "no gate, 16k": ((0.70, 0.50), (0.82, 0.63)),
    **dict.fromkeys(("token gate", "token gate, 128 x 64", "normalized"), ((0.78, 0.58), (0.87, 0.70))),
    "key gate": ((0.50, 0.35), (0.70, 0.45)),
    "key and value gates": ((0.40, 0.28), (0.58, 0.38)),
    "delta": ((0.45, 0.25), (0.65, 0.36)),
    "delta, token gate": ((0.50, 0.18), (0.66, 0.25)),
    "delta, key gate": ((0.30, 0.12), (0.50, 0.20)),
    "one token, 16": ((0.75,), (0.85,)),
    "one token, 64": ((0.75,), (0.85,)),
}
LOGITS = {"usual": 3.0, "near-one": 8.0}  # mean logit of a gate


def inputs_of(batch, length, heads, rows, columns, form, gates="usual", dtype=torch.bfloat16):
    """Arguments by name, None where the form has none; gates, strengths and states are float32."""
    normal = lambda *shape, dtype=dtype: torch.randn(batch, length, heads, *shape, device="cuda").to(dtype)
    gate = lambda *shape: torch.nn.functional.logsigmoid(normal(*shape, dtype=torch.float32) + LOGITS[gates])
    query, key, value = normal(rows), torch.nn.functional.normalize(normal(rows), dim=-1), normal(columns)
    if "normalized" in form:
        query, key = query.abs(), key.abs()
    return {"query": query, "key": key, "value": value, "beta": gate().exp() if "delta" in form else None,
            "key_gate": gate() if "token" in form else gate(rows) if "key" in form else None,
            "value_gate": gate(columns) if "value" in form else None,
            "state": torch.randn(batch, heads, rows, columns, device="cuda") if "state" in form else None}


def run(given, form):
    head, get = (given["query"], given["key"], given["value"]), given.get
    if "delta" in form:
        return torch.ops.lethe.delta_state(*head, given["beta"], get("key_gate"), get("state"))
    return torch.ops.lethe.gated_state(*head, get("key_gate"), get("value_gate"), get("state"), normalize="normalized" in form)


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


def reached(name, side, share):
    """The goals of a row of GOALS, and which of them its share reaches."""
    if name not in GOALS:
        return {}
    must, aim = (goal[side == "backward"] for goal in GOALS[name])
    return {"must": must, "aim": aim, "reached": "aim" if share >= aim else "must" if share >= must else "no"}


def measured(name, gates, arguments, other, speed):
    """The case's rows: a direction, its time, its floor and the floor's share of the time; with rivals the fastest's time and its ratio to ours, and
    all of them."""
    *sizes, form = CASES[name]
    given = inputs_of(*sizes, form, gates, TYPES[arguments.type])
    clock = lambda call: microseconds(call, arguments.rounds, other)
    with torch.no_grad():
        forward = clock(lambda: run(given, form))
    leaves = [tensor.requires_grad_() for tensor in given.values() if tensor is not None]
    values, state = run(given, form)
    # The last state's gradient counts as little as the state itself where there is none at the beginning.
    read = nbytes(leaves) + values.nbytes
    rows = [("forward", forward, read + (state.nbytes if given["state"] is not None else 0))]
    if sizes[1] > 1:
        direction = torch.randn_like(values)
        backward = clock(lambda: torch.autograd.grad(values, leaves, direction, retain_graph=True))
        rows.append(("backward", backward, read + nbytes(leaves)))
    floors = [copy_of(count, arguments.rounds, other) if sizes[1] == 1 else count / speed for _, _, count in rows]
    rivals, reasons = of_rivals(given, rivals_of(form, arguments.packages), lambda theirs: run(theirs, form), [side for side, _, _ in rows],
                                arguments.tolerance, clock)
    for side, time, _ in rows:
        rivals[side] = [row | {"ratio": row["rival_microseconds"] / time} for row in rivals[side]]
    for side, reason in ((side, reason) for side in reasons for reason in reasons[side]):
        print(f"{name:24} {gates:8} {side:9} no time of {reason}")
    shape = dict(zip(("batch", "tokens", "heads", "rows", "columns"), sizes))
    return [{"case": name, **shape, "gates": gates, "direction": side, "microseconds": time, "floor_microseconds": floor, "share": floor / time,
             **reached(name, side, floor / time), **({**rivals[side][0], "rivals": rivals[side]} if rivals[side] else {}),
             **({"no_time_of": reasons[side]} if reasons[side] else {})}
            for (side, time, _), floor in zip(rows, floors)]


def rivals_asked_for(arguments, about):
    """The packages of --fla and --peers that can be imported; their versions, and why others cannot, go into what the file says of itself."""
    sys.path[:0] = [*([arguments.fla] if arguments.fla else []), *arguments.peers]
    wanted = [package for package in MODULES if (arguments.fla if package == "fla" else arguments.peers)]
    versions, missing = packages_at_hand(wanted)
    if versions:
        about |= {"triton": importlib.metadata.version("triton"), "packages": versions}
    if missing:
        about |= {"not_at_hand": missing}
    if "fla" in versions:
        about["fla"] = versions["fla"]
    for package, reason in missing.items():
        print(f"not at hand: {package}: {reason}")
    return list(versions)


def kernels_of(name, gates, dtype, rounds, other):
    """Of a call's kernels, forward and backward: (microseconds, launches, name) of each, means of `rounds` calls with a cold L2 cache, the longest
    first."""
    *sizes, form = CASES[name]
    given = {member: tensor if tensor is None else tensor.requires_grad_() for member, tensor in inputs_of(*sizes, form, gates, dtype).items()}
    direction = torch.randn_like(given["value"])

    def call():
        with torch.set_grad_enabled(sizes[1] > 1):
            values = run(given, form)[0]
        if sizes[1] > 1:
            gradients_of(values, given, direction)

    times = {}
    for count in range(rounds + 1):  # the first is not counted
        other.sum()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        for event in found.key_averages() if count else ():
            if event.device_time_total:
                time, launches = times.get(event.key, (0.0, 0.0))
                times[event.key] = time + event.device_time_total / rounds, launches + event.count / rounds
    return sorted(((*figures, kernel) for kernel, figures in times.items()), reverse=True)


def profile_lines(title, kernels):
    return [f"-- {title}", *(f"{time:8.1f} us  {launches:4.1f} x  {kernel[:110]}" for time, launches, kernel in kernels)]


def profile(arguments, cases, other):
    """Writes --profile, and prints its lines."""
    about = provenance("cuda", arguments.commit)
    dirty = {None: " (as told)", True: ", changed,", False: ""}[about["dirty"]]
    lines = [f"# microseconds a kernel by torch.profiler, forward with backward of the cases of optimized/benchmarks/cuda/matrix_state.py, mean of "
             f"{arguments.rounds} calls of {arguments.type}, with the library of {about['commit']}{dirty}, {about['gpu']}, "
             f"torch {about['torch']}, {about['date'][:10]}"]
    print(lines[0])
    for name, gates in cases:
        kernels = kernels_of(name, gates, TYPES[arguments.type], arguments.rounds, other)
        found = profile_lines(name if gates == "usual" else f"{name}, gates {gates}", kernels)
        print("\n".join(found), flush=True)
        lines += found
        arguments.profile.write_text("\n".join(lines) + "\n")  # after each case: a job that runs out of time keeps what it has


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--fla", help="a checkout of flash-linear-attention, timed beside ours; it needs transformers and einops")
    parser.add_argument("--peers", nargs="+", default=[],
                        help="folders that hold packages of others, timed beside ours: mamba_ssm, flashinfer, flash_qla, flash_kda, t2fw")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of a rival's values and gradients")
    parser.add_argument("--gates", nargs="+", choices=list(LOGITS), default=["usual"],
                        help="near-one: logits of 8 instead of 3, in cases that have gates")
    parser.add_argument("--type", choices=list(TYPES), default="bfloat16", help="of queries, keys and values")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file of all rows")
    parser.add_argument("--profile", type=pathlib.Path, help="a file for the kernels' times, which are all that is measured")
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=None, help="default: 9 times, or 5 calls with --profile")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    arguments.rounds = (5 if arguments.profile else 9) if arguments.rounds is None else arguments.rounds
    if arguments.rounds < 1:
        parser.error(f"--rounds: expected at least 1, found {arguments.rounds}")
    for option in ("output", "fla", "peers"):
        if arguments.profile and getattr(arguments, option):
            parser.error(f"--profile: expected none of --output, --fla and --peers beside it, found --{option}")
    for option in ("output", "profile"):
        path = getattr(arguments, option)
        if path and not path.absolute().parent.is_dir():
            parser.error(f"--{option}: expected a file in a folder that exists, found {path}")
    if arguments.fla and not (pathlib.Path(arguments.fla) / "fla/ops").is_dir():
        parser.error(f"--fla: expected a checkout of flash-linear-attention, found {arguments.fla}")
    for folder in arguments.peers:
        if not pathlib.Path(folder).is_dir():
            parser.error(f"--peers: expected a folder, found {folder}")
    if not torch.cuda.is_available():
        sys.exit("device: expected a CUDA device, found none")
    torch.ops.load_library(arguments.library)
    torch.manual_seed(SEED)
    cases = [(name, gates) for name in arguments.only or CASES for gates in arguments.gates
             if gates == arguments.gates[0] or {"token", "key"} & set(CASES[name][-1].split())]
    other, source = (torch.ones(megabytes * MEGABYTE // 4, device="cuda") for megabytes in (256, 384))
    if arguments.profile:
        return profile(arguments, cases, other)
    target = torch.empty_like(source)
    speed = 2 * source.nbytes / microseconds(lambda: target.copy_(source), arguments.rounds, other)  # bytes a microsecond
    about = provenance("cuda", arguments.commit) | {"rounds": arguments.rounds, "seed": SEED, "type": arguments.type,
                                                          "copy_gigabytes_per_second": speed / 1e3}
    arguments.packages = rivals_asked_for(arguments, about)
    print(f"{torch.cuda.get_device_name()}: copies at {speed / 1e3:.0f} GB/s")
    print(f"{'case':24} {'gates':8} {'direction':9} {'µs':>9} {'floor':>8} {'share':>7}" + f" {'rival µs':>9} {'ratio':>6}"
          * bool(arguments.packages))
    rows = []
    for name, gates in cases:
        for row in measured(name, gates, arguments, other, speed):
            rows.append(row)
            rival = "".join(f" {found['rival_microseconds']:9.1f} {found['ratio']:6.2f} {found['rival']}, {found['rival_error']:.2%} of "
                            f"{found['rival_error_of']}"
                            for found in row.get("rivals", ()))
            print(f"{name:24} {gates:8} {row['direction']:9} {row['microseconds']:9.1f} {row['floor_microseconds']:8.1f} {row['share']:7.3f}{rival}",
                  flush=True)
        if arguments.output:  # after each case: a job that runs out of time keeps what it has
            arguments.output.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times forgetting_attention by the kernels for every GPU, and beside them Hopper's, against what each row of a table must reach and aims at.

usage: portable.py LIBRARY [--output FILE.json] [--only ROW]… [--length N] [--rounds N] [--commit HASH] [--device DEVICE]

A row compares ours with another side, forward and backward: Torch's attention without a gate, or our own call without what the row adds. Both run in
turn, in a new random order each round, on inputs that rotate past the L2 cache; a time is the mean of a slot between CUDA events on a GPU that is
kept busy until the calls are queued. The ratio is the median over rounds of the other side's time per work over ours. Work: 1 beside Torch, visited
pairs beside ourselves. Batch 1, H·D = 2048 (float32: 1024); packed: four times the tokens at H·D = 1024, beside a batch of equal lengths.

Before its times a side is checked: values and gradients of a short call, and rows of the long one, against float64; Torch's against ours with an open
gate. A row of ours that fails has no time, and makes the exit status 1; a missed bound does not.
"""
import argparse
import gc
import json
import math
import os
import pathlib
import random
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, replace
from typing import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from timing import milliseconds, provenance

SLOT_MILLISECONDS, SLOT_CALLS = 10, 8
SEED = 1
WIDTH = 2048  # heads · head dim: 128 tiles of 128 queries a head at T = 16384, several waves of any GPU
SHORT = 1024  # tokens of the call whose gradients are checked
LOG_TOLERANCE = -10.0
SEQUENCES = 32  # packed: their mean length is an eighth of --length
FAMILIES = {"portable": ("portable", "sm_80 kernels"), "hopper": ("", "sm_90a kernels")}  # LETHE_KERNELS; what the operator then names
BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "memory-efficient": SDPBackend.EFFICIENT_ATTENTION}
DIRECTIONS = ("forward", "backward")
# Relative errors of bfloat16, as in tools/compare_attention.py; the gate's gradient is a sum of terms that nearly cancel.
BUDGETS = {"values": 1e-2, "query": 2e-2, "key": 2e-2, "value": 1e-2, "log_forget": 3e-2}
OF_BUDGET = {torch.bfloat16: 1.0, torch.float32: 0.05}


@dataclass(frozen=True)
class Call:
    """A call of ours, and the inputs that it takes."""
    family: str
    dim: int
    dtype: torch.dtype = torch.bfloat16
    gate: str = "open"  # or "bimodal": of seven heads in ten the past is gone after some hundred tokens
    tolerance: float | None = None
    window: int | None = None
    packed: bool = False

    def __call__(self, inputs, gate=None, with_statistics=False):
        os.environ["LETHE_KERNELS"] = FAMILIES[self.family][0]  # read at every call
        operator = torch.ops.lethe.forgetting_attention_with_statistics if with_statistics else torch.ops.lethe.forgetting_attention
        return operator(inputs.query, inputs.key, inputs.value, inputs.log_forget if gate is None else gate, log_pruning_tolerance=self.tolerance,
                        window=self.window, cu_seqlens=inputs.cu_seqlens)


@dataclass(frozen=True)
class Torch:
    """Torch's causal attention by one backend, without a gate."""
    backend: str

    def __call__(self, inputs):
        with sdpa_kernel(BACKENDS[self.backend]):
            by_head = (tensor.transpose(1, 2) for tensor in (inputs.query, inputs.key, inputs.value))
            return scaled_dot_product_attention(*by_head, is_causal=True).transpose(1, 2)


class Inputs:
    """query, key, value, log_forget and the incoming gradient, [B, T, H, …]; with the lengths of packed sequences their cu_seqlens."""

    def __init__(self, call, batch, length, heads, device, seed, lengths=None):
        generator = torch.Generator(device).manual_seed(seed)
        normal = lambda: torch.randn(batch, length, heads, call.dim, generator=generator, device=device).to(call.dtype)
        self.query, self.key, self.value = (tensor.requires_grad_() for tensor in (rms_norm(normal(), (call.dim,)), rms_norm(normal(), (call.dim,)),
                                                                                   normal()))
        self.grad = normal()
        mean = torch.full((heads,), -1e-4, device=device)
        if call.gate == "bimodal":
            mean[: round(0.7 * heads)] = -0.1
        self.log_forget = (2 * mean * torch.rand(batch, length, heads, generator=generator, device=device)).requires_grad_()
        self.lengths = lengths or [length]
        self.cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int() if lengths else None

    def leaves(self, gate):
        return [self.query, self.key, self.value] + [self.log_forget] * gate


def lognormal_lengths(total, count, seed=SEED):
    """`count` lengths ≥ 1 of exactly `total` tokens, log-normal with σ = 1."""
    generator = random.Random(seed)
    weights = [generator.lognormvariate(0, 1) for _ in range(count)]
    lengths = [max(1, math.floor(total * weight / sum(weights))) for weight in weights]
    lengths[lengths.index(max(lengths))] += total - sum(lengths)
    return lengths


def equal_lengths(lengths):
    """(batch, length) of about as many tokens and as many FLOPs, the length a multiple of 128."""
    length = 128 * max(1, round(sum(n * n for n in lengths) / sum(lengths) / 128))
    return max(1, round(sum(lengths) / length)), length


# ---- What is right

def within_budget(name, actual, wanted, dtype, times=1):
    error, budget = float((actual.double() - wanted.double()).norm() / wanted.double().norm()), times * BUDGETS[name] * OF_BUDGET[dtype]
    if not error <= budget:
        raise RuntimeError(f"{name}: expected a relative error up to {budget:.0e}, found {error:.1e}")


def exact_values(call, inputs, tensors, head, rows):
    """Of one head of the last sequence of the batch, in float64; `tensors`: query, key, value, log_forget."""
    query, key, value, log_forget = (tensor[-1, :, head].double() for tensor in tensors)
    keys, decay = torch.arange(len(key), device=key.device), log_forget.cumsum(0)
    sequence = torch.repeat_interleave(torch.tensor(inputs.lengths, device=key.device))
    seen = (keys <= rows[:, None]) & (keys > rows[:, None] - (call.window or len(key))) & (sequence == sequence[rows, None])
    logits = call.dim**-0.5 * query[rows] @ key.T + decay[rows, None] - decay
    return logits.masked_fill(~seen, -math.inf).softmax(-1) @ value


def check_short(call, length, device):
    """Values and all gradients of a short call of two heads."""
    short = min(length, SHORT)
    call = replace(call, window=call.window and call.window * short // length + 5)
    inputs = Inputs(call, 1, short, 2, device, SEED, lognormal_lengths(short, 8) if call.packed else None)
    values = call(inputs)
    gradients = torch.autograd.grad(values, inputs.leaves(True), inputs.grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs.leaves(True)]
    rows = torch.arange(short, device=device)
    wanted = torch.stack([exact_values(call, inputs, exact, head, rows) for head in range(2)], 1)[None]
    wanted_gradients = torch.autograd.grad(wanted, exact, inputs.grad.double())
    for name, one, other in zip(BUDGETS, (values, *gradients), (wanted, *wanted_gradients)):
        within_budget(name, one.detach(), other.detach(), call.dtype)


def check_rows(call, inputs):
    """Some rows of the first and the last head of the call that is timed."""
    with torch.no_grad():
        values = call(inputs)
        length, heads = values.shape[1:3]
        rows = torch.linspace(0, length - 1, min(length, 67), dtype=torch.float64).long().to(values.device)
        for head in (0, heads - 1):
            within_budget("values", values[-1, rows, head], exact_values(call, inputs, inputs.leaves(True), head, rows), call.dtype)


def check_beside(call, other, inputs):
    """The other's values and gradients against ours with an open gate: coarsely, since both round."""
    sides = []
    for run in (lambda: other(inputs), lambda: call(inputs, torch.zeros_like(inputs.log_forget))):
        values = run()
        sides.append((values.detach(), *torch.autograd.grad(values, inputs.leaves(False), inputs.grad)))
    for name, one, reference in zip(BUDGETS, *sides):
        within_budget(name, one, reference, call.dtype, times=3)


def check_family(call, inputs, device):
    os.environ["LETHE_KERNELS"], family = FAMILIES[call.family]
    found = torch.ops.lethe.forgetting_attention_implementation(inputs.query, inputs.key, inputs.value)
    if device == "cuda" and not found.startswith(family):
        raise RuntimeError(f"kernels: expected {family}, found {found}")


# ---- The table

@dataclass
class Side:
    """What is timed: a call, sets of inputs that rotate, and its work."""
    name: str
    call: Callable
    sets: list
    work: float = 1.0

    def prepare(self):
        self.leaves = [inputs.leaves(isinstance(self.call, Call)) for inputs in self.sets]
        self.results = [self.call(inputs) for inputs in self.sets]

    def forward(self, i):
        return self.call(self.sets[i % len(self.sets)])

    def backward(self, i):
        i %= len(self.sets)
        if isinstance(self.call, Call):
            os.environ["LETHE_KERNELS"] = FAMILIES[self.call.family][0]
        return torch.autograd.grad(self.results[i], self.leaves[i], self.sets[i].grad, retain_graph=True)


@dataclass(frozen=True)
class Row:
    """A row of the table: of each case ours, and the names or the call of the other sides."""
    name: str
    title: str
    bounds: dict  # must and aim by direction; empty: there is none
    cases: Callable  # length -> (Call, backends or Call)…
    at_most: bool = False  # the bound is on time, not on speed


both = lambda must, aim: {direction: (must, aim) for direction in DIRECTIONS}
every_family = lambda **options: [Call(family, dim, **options) for family in FAMILIES for dim in (64, 128)]
ROWS = (
    Row("gate", "with the gate, × FlashAttention-2", {"forward": (1.0, 1.2), "backward": (0.9, 1.05)},
        lambda length: [(Call("portable", dim), ["FlashAttention-2"]) for dim in (64, 128)]),
    Row("pruned", "pruned, × unpruned / (1 − p)", both(0.85, 0.93),
        lambda length: [(Call("portable", dim, gate="bimodal", tolerance=LOG_TOLERANCE), Call("portable", dim, gate="bimodal"))
                        for dim in (64, 128)]),
    Row("dims", "other head dims, × Torch's best", both(0.8, 1.0),
        lambda length: [(Call(family, dim), list(BACKENDS)) for family, dim in
                        (("hopper", 32), ("portable", 32), ("hopper", 96), ("portable", 96), ("hopper", 256), ("portable", 256))]),
    # What a GPU without wgmma compares with: cuDNN's kernels for Hopper, the best above, run on no other.
    Row("flash", "other head dims, × FlashAttention-2", {}, lambda length: [(Call("portable", dim), ["FlashAttention-2"]) for dim in (32, 96, 256)]),
    Row("float32", "float32, × Torch's best", both(0.5, 1.0), lambda length: [(Call("portable", 64, torch.float32), list(BACKENDS))]),
    Row("window", "window, time over share of the full", both(1.2, 1.1),
        lambda length: [(replace(call, window=max(1, length // 8)), call) for call in every_family()], at_most=True),
    Row("packed", "packed, × equal lengths", both(0.88, 0.95),
        lambda length: [(call, replace(call, packed=False)) for call in every_family(packed=True)]),
)


def sides_of(call, others, length, device):
    """Ours, the other sides that are right, and why the rest was left out."""
    width = WIDTH if call.dtype == torch.bfloat16 and not call.packed else WIDTH // 2
    heads = 2 if device == "cpu" else width // call.dim
    lengths = lognormal_lengths(4 * length, SEQUENCES) if call.packed else None
    make = lambda of, batch, tokens, lengths=None: [Inputs(of, batch, tokens, heads, device, SEED + i, lengths) for i in range(2)]
    sets = make(call, 1, sum(lengths), lengths) if lengths else make(call, 1, length)
    sides, left_out = [Side("ours", call, sets)], {}
    if isinstance(others, Call):
        name = "equal lengths" if call.packed else "unpruned" if call.tolerance is not None else "full"
        sides.append(Side(name, others, make(others, *equal_lengths(lengths)) if lengths else sets))
    for side in sides:
        check_family(side.call, side.sets[0], device)
        check_short(side.call, length, device)
        check_rows(side.call, side.sets[0])
    if isinstance(others, Call):
        for side in sides:
            with torch.no_grad():
                side.work = float(side.call(side.sets[0], with_statistics=True)[2].sum())
        return sides, left_out
    for name in others:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Torch's reasons why a backend does not take a call
                check_beside(call, Torch(name), sets[0])
            sides.append(Side(name, Torch(name), sets))
        except Exception as error:  # another's failure is a result
            left_out[name] = first_line(error)
    if len(sides) == 1:
        raise RuntimeError(f"other sides: expected one that runs and agrees, found {left_out}")
    return sides, left_out


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def series(sides, rounds, device):
    """{(side's index, direction): milliseconds a round}"""
    calls = {(i, direction): getattr(side, direction) for i, side in enumerate(sides) for direction in DIRECTIONS}
    counts = {}
    for key, call in calls.items():
        milliseconds(call, 1, device)
        counts[key] = 1 if device == "cpu" else max(1, min(SLOT_CALLS, round(SLOT_MILLISECONDS / milliseconds(call, 1, device))))
    times = {key: [] for key in calls}
    for round_number in range(rounds + 1):  # the first one warms up
        for key in random.sample(list(calls), len(calls)):
            duration = milliseconds(calls[key], counts[key], device)
            if round_number:
                times[key].append(duration)
    return times


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def compared(row, sides, times):
    """The numbers of a case in each direction: ours beside the fastest other side."""
    for direction in DIRECTIONS:
        best = min(range(1, len(sides)), key=lambda i: statistics.median(times[i, direction]))
        ours, other, work = times[0, direction], times[best, direction], sides[0].work / sides[best].work
        speeds = [work * theirs / own for own, theirs in zip(ours, other)]
        ratios = [1 / speed for speed in speeds] if row.at_most else speeds
        ratio, (must, aim) = statistics.median(ratios), row.bounds.get(direction, (None, None))
        reaches = (lambda bound: ratio <= bound) if row.at_most else (lambda bound: ratio >= bound)
        yield {"direction": direction, "milliseconds": statistics.median(ours), "milliseconds_spread": spread(ours), "beside": sides[best].name,
               "beside_milliseconds": statistics.median(other), "beside_milliseconds_spread": spread(other), "work": work, "ratio": ratio,
               "ratio_spread": spread(ratios), "at_most": row.at_most, "must": must, "aim": aim,
               "reached": "" if must is None else "aim" if reaches(aim) else "must" if reaches(must) else "no",
               "others": {side.name: statistics.median(times[i + 1, direction]) for i, side in enumerate(sides[1:])}}


def measured(row, call, others, arguments):
    """The table's lines of one case; one with an error where ours is wrong or fails."""
    about = {"row": row.name, "title": row.title, "family": call.family, "head_dim": call.dim, "dtype": str(call.dtype).removeprefix("torch.")}
    try:
        sides, left_out = sides_of(call, others, arguments.length, arguments.device)
        for side in sides:
            side.prepare()
        shape = dict(zip(("batch", "tokens", "heads"), sides[0].sets[0].query.shape))
        return [about | shape | line | {"left_out": left_out, "error": None} for line in compared(row, sides,
                                                                                                  series(sides, arguments.rounds, arguments.device))]
    except Exception as error:
        return [about | {"error": first_line(error)}]


def printed(line):
    case = f"{line['row']:8} {line['family']:8} {line['head_dim']:4}"
    if line["error"]:
        return f"{case} {line['error']}"
    bounds = "" if line["must"] is None else f" {'≤' if line['at_most'] else '≥'} {line['must']:4.2f} {line['aim']:5.2f}  {line['reached']}"
    return (f"{case} {line['direction']:9} {line['milliseconds']:9.3f} {line['beside']:17} {line['beside_milliseconds']:9.3f} "
            f"{line['ratio']:6.3f} ± {line['ratio_spread']:5.3f}{bounds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file of all rows")
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--length", type=int, default=16384, help="tokens; a multiple of 128, from 256 on")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default="")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    if arguments.length < 256 or arguments.length % 128:
        parser.error(f"--length: expected a multiple of 128 from 256 on, found {arguments.length}")
    if arguments.rounds < 1:
        parser.error(f"--rounds: expected at least 1, found {arguments.rounds}")
    if arguments.output and not arguments.output.absolute().parent.is_dir():
        parser.error(f"--output: expected a file in a folder that exists, found {arguments.output}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("device: expected a CUDA device, found none")
    torch.ops.load_library(arguments.library)
    torch.set_float32_matmul_precision("highest")
    random.seed(SEED)
    lines, about, begin = [], provenance(arguments.device, arguments.commit) | {"length": arguments.length, "rounds": arguments.rounds,
                                                                                "seed": SEED}, time.monotonic()
    print(f"{'row':8} {'family':8} {'D':>4} {'direction':9} {'ms':>9} {'beside':17} {'ms':>9} {'ratio':>14}   {'must':>4} {'aim':>5}  reached")
    for row in ROWS:
        if arguments.only and row.name not in arguments.only:
            continue
        for call, others in row.cases(arguments.length):
            if call.family == "hopper" and arguments.device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
                continue
            for line in measured(row, call, others, arguments):
                lines.append(line)
                print(printed(line), flush=True)
            gc.collect()
            if arguments.output:  # after each case: a job that runs out of time keeps what it has
                arguments.output.write_text(json.dumps(about | {"seconds": round(time.monotonic() - begin, 1), "rows": lines}, indent=1) + "\n")
    if any(line["error"] for line in lines):
        sys.exit("portable: expected every row of ours right, found otherwise")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times Forgetting Attention on a GPU beside other attention kernels, forward and backward, in one process.

usage: tools/compare_attention.py --library build/cuda/lib/liblethe_torch.so --output results/h200
           [--length T]… [--dim D]… [--gate NAME]… [--only NAME]… [--all] [--rounds N] [--commit HASH]

Every implementation is called once and held against float64 before it is timed: one whose error is over its budget is an error in the
table, never a time. Then all run in turn, in a new random order each round, on inputs that rotate past the L2 cache; a time is the
median between CUDA events, on a GPU that is kept busy until forward and backward are queued: what the kernels take, without the CPU
that launches them. FlexAttention is compiled anew for every shape and FLA tunes itself for each: they take part at T = 65536, and FLA at
4096, only if named or with --all. The TFLOP/s are "effective": 2·B·H·T²·D forward and 2.5 times that backward, whatever was pruned. What
isn't installed is left out and named in the certificate. A rival that fails or misses a budget is a result; one of ours makes the exit status 1.

Writes <output>/attention_throughput.csv, and .json with where the numbers come from. The whole may be the work of several jobs: a case
(length, head dim, gate) that is there already stays until it is measured again, as a whole, and its run's certificate with it.
tools/report.py makes page and figures.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import importlib.metadata
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from attention_implementations import LOG_TOLERANCE, implementations, those_at
from long_work import telling_what_is_long
from throughput_results import COLUMNS, GATES, case_of, earlier_runs, joined, write

HEADS = {64: 24, 128: 12}
RIVAL_PACKAGES = ("triton", "flash_attn", "forgetting_transformer", "fla")
BUSY_CYCLES = 4_000_000  # of the GPU, some 2 ms: longer than the CPU takes to queue a forward and a backward pass
SEED = 1
# Relative error allowed in bf16: of values twice the operators' own budget, since others round more often; of gradients more, since O and dS are
# stored in 16 bits too; of the gate's gradient most, a sum of terms that nearly cancel.
BUDGETS = {"values": 1e-2, "query": 2e-2, "key": 2e-2, "value": 1e-2, "log_forget": 3e-2}


@dataclass(frozen=True)
class Case:
    length: int
    dim: int
    gate: str

    @property
    def batch(self):
        return max(1, (65536 if self.length == 65536 else 32768) // self.length)

    @property
    def heads(self):
        return HEADS[self.dim]

    @property
    def forward_flops(self):
        return 2.0 * self.batch * self.heads * self.length**2 * self.dim


class Inputs:
    """query, key, value, log_forget and the incoming gradient of one case; all [B, T, heads, …]."""

    def __init__(self, case, seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        shape = (case.batch, case.length, case.heads, case.dim)
        normal = lambda: torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        normed = lambda: torch.nn.functional.rms_norm(normal(), (case.dim,))
        self.case = case
        self.query, self.key, self.value = (tensor.requires_grad_() for tensor in (normed(), normed(), normal()))
        self.grad = normal()
        self.log_forget = gate(case, generator).requires_grad_()
        self.zero_gate = torch.zeros_like(self.log_forget).requires_grad_()
        self.decay = self.log_forget.detach().double().cumsum(1).transpose(1, 2).float().contiguous()  # [B, H, T]
        # scale·|q|·|k| of normalised queries and keys, with the rounding up of 16 bits: a layer with such norms has it beforehand
        self.logit_bound = torch.full((case.heads,), 1.01 * math.sqrt(case.dim), device="cuda")
        self.block_mask = None

    def leaves(self, with_gate):
        return [self.query, self.key, self.value] + ([self.log_forget] if with_gate else [])


def gate(case, generator):
    shape = (case.batch, case.length, case.heads)
    if case.gate == "init":  # log σ(0)
        return torch.full(shape, -math.log(2), device="cuda")
    mean = torch.full((case.heads,), -1e-4, device="cuda")
    if case.gate == "bimodal":
        mean[: round(0.7 * case.heads)] = -0.1
    return mean * 2 * torch.rand(shape, generator=generator, device="cuda")


def reference(inputs, gated, batch, head):
    """Values and all gradients of one head in float64, a block of rows at a time."""
    take = lambda tensor: tensor.detach()[batch, :, head].double()
    query, key, value, grad = (take(t) for t in (inputs.query, inputs.key, inputs.value, inputs.grad))
    decay = take(inputs.log_forget).cumsum(0) * float(gated)
    scale, length = key.shape[1] ** -0.5, key.shape[0]
    values, d_query = torch.empty_like(value), torch.empty_like(query)
    d_key, d_value, rows_less_columns = torch.zeros_like(key), torch.zeros_like(value), torch.zeros_like(decay)
    for begin in range(0, length, 2048):
        rows = slice(begin, min(begin + 2048, length))
        seen = slice(0, rows.stop)
        logits = scale * query[rows] @ key[seen].T + decay[rows, None] - decay[None, seen]
        logits.masked_fill_(torch.arange(rows.stop, device="cuda") > torch.arange(rows.start, rows.stop, device="cuda")[:, None], -math.inf)
        weight = logits.softmax(-1)
        values[rows] = weight @ value[seen]
        d_logits = weight * (grad[rows] @ value[seen].T - (grad[rows] * values[rows]).sum(-1, keepdim=True))
        d_query[rows] = scale * d_logits @ key[seen]
        d_key[seen] += scale * d_logits.T @ query[rows]
        d_value[seen] += weight.T @ grad[rows]
        rows_less_columns[rows] += d_logits.sum(1)
        rows_less_columns[seen] -= d_logits.sum(0)
    d_gate = rows_less_columns.flip(0).cumsum(0).flip(0)
    d_gate[0] = 0
    return {"values": values, "query": d_query, "key": d_key, "value": d_value, "log_forget": d_gate}


def backward(implementation, values, inputs):
    """The gradients of what it differentiates."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(implementation.sums_in_16_bits)
    try:
        return torch.autograd.grad(values, inputs.leaves(implementation.gate_gradient), inputs.grad)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def check(implementation, inputs, expected):
    """The largest share of its budget that any tensor of the sampled heads uses."""
    values = implementation.forward(inputs)
    gradients = backward(implementation, values, inputs)
    actual = dict(zip(("values", "query", "key", "value", "log_forget"), (values.detach(), *gradients)))
    worst = 0.0
    for (batch, head), tensors in expected[implementation.gated].items():
        for name, tensor in actual.items():
            error = (tensor[batch, :, head].double() - tensors[name]).norm() / tensors[name].norm()
            share = float(error) / BUDGETS[name]
            worst = share if math.isnan(share) else max(worst, share)
    return worst


def time_once(implementation, inputs):
    """Milliseconds of the forward and of the backward pass."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    torch.cuda._sleep(BUSY_CYCLES)
    marks[0].record()
    values = implementation.forward(inputs)
    marks[1].record()
    backward(implementation, values, inputs)
    marks[2].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


def measure(case, candidates, rounds, report):
    sets = [Inputs(case, SEED + i) for i in range(2)]  # two sets of some hundred megabytes: far past L2
    sampled = [(0, 0), (case.batch - 1, case.heads - 1)]
    with telling_what_is_long(f"{case}, the reference"):
        expected = {gated: {at: reference(sets[0], gated, *at) for at in sampled} for gated in (False, True)}
        torch.cuda.synchronize()
    passed = []
    for implementation in candidates:
        try:
            with telling_what_is_long(f"{case} {implementation.name}, the check"):
                for inputs in sets:
                    implementation.prepare(inputs)
                share = check(implementation, sets[0], expected)
            report(case, implementation.name, "share_of_budget", "1", [share])
            if share <= 1:
                passed.append(implementation)
            else:
                print(f"{case} {implementation.name}: expected errors within their budgets, found {share:.2f} of one", file=sys.stderr)
        except Exception as error:  # a rival's failure is a result, and no reason to lose the others
            print(f"{case} {implementation.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", file=sys.stderr)
            report(case, implementation.name, "share_of_budget", "1", [math.nan])
    times = {implementation.name: ([], []) for implementation in passed}
    for round_number in range(rounds + 1):
        for implementation in random.sample(passed, len(passed)):
            with telling_what_is_long(f"{case} {implementation.name}, a timed call"):
                pair = time_once(implementation, sets[round_number % 2])
            if round_number > 0:  # the first round warms up
                for series, milliseconds in zip(times[implementation.name], pair):
                    series.append(milliseconds)
    for implementation in passed:
        for direction, series, flops in zip(("forward", "backward"), times[implementation.name], (case.forward_flops, 2.5 * case.forward_flops)):
            report(case, implementation.name, f"{direction}_time", "ms", series)
            report(case, implementation.name, f"{direction}_speed", "TFLOP/s", [flops / milliseconds * 1e-9 for milliseconds in series])
    inputs = (leaf.detach() for leaf in sets[0].leaves(True))
    with telling_what_is_long(f"{case}, the pruned share"):
        pairs = torch.ops.lethe.forgetting_attention_with_statistics(*inputs, log_pruning_tolerance=LOG_TOLERANCE, prune_by_mass=False)[2].sum()
        share = 1 - float(pairs) / (case.batch * case.heads * case.length * (case.length + 1) / 2)
    report(case, "lethe", "pruned_share", "1", [share])


def ours_that_failed(records):
    """Cases and names of our own that missed a budget or did not run."""
    return [(case_of(row), row["implementation"]) for row in records
            if row["implementation"].startswith("lethe") and row["metric"] == "share_of_budget" and not float(row["value"]) <= 1]


def git(*arguments):
    try:
        run = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # no git
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def versions_of(packages):
    """Version by package, of those that have been imported; None for one that was on the path without being installed."""
    distributions = importlib.metadata.packages_distributions()
    return {package: next(map(importlib.metadata.version, distributions.get(package, ())), None) for package in packages if package in sys.modules}


def certificate(absent, commit):
    status = None if commit else git("status", "--porcelain", "--untracked-files=no")  # unknown where the commit is given
    return {
        "commit": commit or git("rev-parse", "HEAD") or "unknown",
        "dirty": None if status is None else bool(status),
        "command_line": " ".join(Path(word).name if word.startswith("/") else word for word in sys.argv),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"gpu": torch.cuda.get_device_name(), "processors": os.cpu_count(), "system": platform.system()},
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                     "python": platform.python_version(), **versions_of(RIVAL_PACKAGES)},
        "left_out": absent,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="liblethe_torch.so of a build with preset cuda")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--length", type=int, action="append", choices=(4096, 16384, 65536))
    parser.add_argument("--dim", type=int, action="append", choices=tuple(HEADS))
    parser.add_argument("--gate", action="append", choices=GATES)
    parser.add_argument("--only", action="append", help="implementations to time (default: all that are installed)")
    parser.add_argument("--all", action="store_true", help="at every length also those that a length costs much time")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--commit", help="what the library was built from, where this is no checkout")
    arguments = parser.parse_args()
    before = earlier_runs(arguments.output, torch.cuda.get_device_name())
    torch.ops.load_library(arguments.library)
    random.seed(SEED)
    begin = time.monotonic()
    absent, records = {}, []
    candidates = [c for c in implementations(absent) if not arguments.only or c.name in arguments.only]

    def report(case, name, metric, unit, series):
        spread = statistics.stdev(series) if len(series) > 1 else 0.0
        records.append(dict(zip(COLUMNS, ("throughput", "", case.gate, name, torch.cuda.get_device_name(), "bfloat16", case.batch,
                                          case.length, case.heads, case.dim, case.dim, SEED, metric, unit,
                                          f"{statistics.median(series):.6g}", f"{spread:.3g}", len(series)))))
        if unit == "TFLOP/s":
            print(f"T {case.length:6} D {case.dim:4} {case.gate:8} {name:24} {metric:15} {statistics.median(series):8.1f}", flush=True)

    measured = set()
    for length in arguments.length or (4096, 16384, 65536):
        for dim in arguments.dim or HEADS:
            for name in arguments.gate or GATES:
                taking_part = those_at(length, candidates, arguments.only or arguments.all)
                measure(Case(length, dim, name), taking_part, arguments.rounds, report)
                print(f"{time.monotonic() - begin:6.0f} s", flush=True)
                measured.add((length, dim, name))
                # after each case: a job that runs out of time keeps what it has
                write(arguments.output, *joined(before, records, certificate(absent, arguments.commit), measured))
    if failed := ours_that_failed(records):
        sys.exit(f"compare_attention: expected our own within their budgets, found otherwise: {failed}")


if __name__ == "__main__":
    main()

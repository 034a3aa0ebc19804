#!/usr/bin/env python3
"""Times the layers' operators, forward and backward, beside the faster of two copies of as many bytes: contiguous, and of rows with a stride.

usage: layers.py LIBRARY [--output FILE.json] [--tokens N] [--only NAME]… [--rounds N] [--commit HASH] [--device DEVICE]

A call and the copies run in turn, in a new random order each round, on inputs that rotate past the L2 cache; a time is the median between CUDA events
on a GPU that is kept busy until the calls are queued. The share is the copy's time over the call's. Bytes: each array is read or written once.
"""
import argparse
import functools
import json
import random
import statistics
import sys
from dataclasses import dataclass
from typing import Callable

import torch

from timing import milliseconds

CACHE_BYTES = 256 << 20  # more than any L2 cache several times over
CALLS = 8  # in a row, of which a time is the mean


@dataclass(frozen=True)
class Model:
    name: str
    width: int
    heads: int
    inner: int


MODELS = (Model("125M", 768, 12, 1792), Model("360M", 1024, 16, 2560), Model("760M", 1536, 24, 3584))


@dataclass(frozen=True)
class Operator:
    """One row a model and direction of the table. A further operator is a further entry of OPERATORS."""
    name: str
    inputs: Callable  # (model, tokens, normal) -> its tensors
    run: Callable  # of these -> a tuple of results
    saved: Callable | None  # of inputs and results -> what the backward reads beside the gradients; None: it has no backward


bf16, f32 = torch.bfloat16, torch.float32
LENGTH = 4096  # of a sequence


@functools.cache
def angles(length, head_dim, device):
    product = torch.outer(torch.arange(length, device=device), 5e5 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim))
    return product.cos(), product.sin()


def attention_inputs(name, head_dim=None, shift=False, norm=False, rotation=False):
    """What these switches change of products that are pieces of one, in sequences of 4096 tokens; head_dim: the model's unless given. The angles,
    which all sequences and heads share, count as no bytes."""
    names = ["query", "key", *(("value", "key_shift", "value_shift") if shift else ()), *(("query_norm", "key_norm") if norm else ()), "gate_logits",
             "gate_bias"]

    def inputs(model, tokens, normal):
        size = head_dim or model.width // model.heads
        heads = model.width // size
        length = min(tokens, LENGTH)
        widths = {**dict.fromkeys(("query", "key", "value", "output_gate"), model.width),
                  **dict.fromkeys(("key_shift", "value_shift", "gate_logits"), heads)}
        used = sum(widths.values())
        whole = normal(tokens // length, length, -(-used // 64) * 64).detach()
        pieces = dict(zip(widths, whole[..., :used].split(list(widths.values()), -1)))
        weights = {"query_norm": size, "key_norm": size, "gate_bias": heads}
        return tuple(pieces[of].detach().requires_grad_() if of in pieces else normal(weights[of], dtype=f32) for of in names)

    def run(*tensors):
        given = dict(zip(names, tensors))
        heads, query = given["gate_logits"].shape[-1], given["query"]
        cosine, sine = angles(query.shape[1], query.shape[2] // heads, query.device) if rotation else (None, None)
        of = lambda *names: [given.get(name) for name in names]
        return torch.ops.lethe._attention_inputs_forward(*of("query", "key", "value", "key_shift", "value_shift", "query_norm", "key_norm"), cosine,
                                                         sine,
                                                         *of("gate_logits", "gate_bias"), heads, 1e-5)

    # A rotation alone is turned back without its argument.
    return Operator(name, inputs, run, lambda tensors, results: tensors if shift or norm else tensors[2:])


OPERATORS = (
    Operator("add_rms_norm", lambda m, n, normal: (normal(n, m.width, dtype=f32), normal(n, m.width), normal(m.width, dtype=f32)),
             lambda residual, branch, weight: torch.ops.lethe.add_rms_norm(residual, branch, weight, 1e-6, bf16), lambda i, r: (r[1],)),
    attention_inputs("attention_inputs, Pro", shift=True, norm=True),
    attention_inputs("attention_inputs, RoPE", rotation=True),
    attention_inputs("attention_inputs, all", shift=True, norm=True, rotation=True),
    attention_inputs("attention_inputs, 128", head_dim=128, shift=True, norm=True, rotation=True),
    Operator("gated_output", lambda m, n, normal: (normal(1, n, m.heads, m.width // m.heads), normal(1, n, m.width), normal(m.width, dtype=f32)),
             lambda o, gate, norm: (torch.ops.lethe.gated_output(o, gate, norm, 1e-6),), lambda i, r: i[:2]),
    Operator("swiglu", lambda m, n, normal: (normal(n, 2 * m.inner),), lambda gate_and_up: (torch.ops.lethe.swiglu(gate_and_up),), lambda i, r: i),
    Operator("short_convolution", lambda m, n, normal: (normal(max(1, n // LENGTH), min(n, LENGTH), m.width), normal(m.width, 4, dtype=f32)),
             lambda x, weight: (torch.ops.lethe.short_convolution(x, weight, None, None, True),), lambda i, r: i),
)


def nbytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Case:
    """An operator at one size: functions of a call's number that run it on rotating inputs, and their bytes."""

    def __init__(self, operator, model, tokens, device):
        generator = torch.Generator(device).manual_seed(1)
        normal = lambda *shape, dtype=bf16: torch.randn(shape, generator=generator, device=device, dtype=f32).to(dtype).requires_grad_()
        self.sets = [operator.inputs(model, tokens, normal)]
        while len(self.sets) < 2 or len(self.sets) * nbytes(self.sets[0]) < CACHE_BYTES:
            self.sets.append(operator.inputs(model, tokens, normal))
        self.calls = {"forward": lambda i: operator.run(*self.sets[i % len(self.sets)])}
        results = [operator.run(*inputs) for inputs in self.sets]
        self.bytes = {"forward": nbytes(self.sets[0]) + nbytes(results[0])}
        if operator.saved:
            grads = [[normal(*r.shape, dtype=r.dtype).detach() for r in of_set] for of_set in results]

            def backward(i):
                i %= len(self.sets)
                torch.autograd.grad(results[i], self.sets[i], grads[i], retain_graph=True)
            self.calls["backward"] = backward
            self.bytes["backward"] = nbytes(grads[0]) + nbytes(operator.saved(self.sets[0], results[0])) + nbytes(self.sets[0])
        for direction, count in list(self.bytes.items()):
            for rows in ("contiguous", "strided"):
                self.calls[direction, rows] = copies(count, rows == "strided", device)


def copies(count, strided, device):
    """copy(i) between rotating buffers: `count` bytes read and written. A strided source has rows 1/8 longer than what is copied of them."""
    columns = 4096
    rows = max(1, count // 2 // columns)
    sources = [torch.zeros(rows, columns * (9 if strided else 8) // 8, dtype=torch.uint8, device=device)[:, :columns].view(torch.int64)
               for _ in range(max(2, CACHE_BYTES // count + 1))]
    targets = [torch.empty(rows, columns // 8, dtype=torch.int64, device=device) for _ in sources]
    return lambda i: targets[i % len(targets)].copy_(sources[i % len(sources)])


def measured(operator, model, arguments):
    """The table's rows of one operator and model."""
    case = Case(operator, model, arguments.tokens, arguments.device)
    times = {name: [] for name in case.calls}
    for round_number in range(arguments.rounds + 1):  # the first one warms up
        for name in random.sample(list(case.calls), len(case.calls)):
            duration = 1e3 * milliseconds(case.calls[name], CALLS, arguments.device)
            if round_number:
                times[name].append(duration)
    median = {name: statistics.median(values) for name, values in times.items()}
    ceiling = lambda direction: min(median[direction, rows] for rows in ("contiguous", "strided"))
    return [{"operator": operator.name, "model": model.name, "direction": direction, "microseconds": median[direction],
             "gigabytes_per_second": count / median[direction] / 1e3, "copy_microseconds": ceiling(direction),
             "share_of_copy": ceiling(direction) / median[direction]} for direction, count in case.bytes.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--output", help="JSON file of all rows")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--only", action="append", choices=[operator.name for operator in OPERATORS])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default="")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("device: expected a CUDA device, found none")
    torch.ops.load_library(arguments.library)
    random.seed(1)
    rows = []
    print(f"{'operator':22} {'model':6} {'direction':9} {'µs':>9} {'GB/s':>7} {'of copy':>8}")
    for operator in OPERATORS:
        if arguments.only and operator.name not in arguments.only:
            continue
        for model in MODELS:
            for row in measured(operator, model, arguments):
                rows.append(row)
                print(f"{row['operator']:22} {row['model']:6} {row['direction']:9} {row['microseconds']:9.1f} "
                      f"{row['gigabytes_per_second']:7.0f} {row['share_of_copy']:8.3f}", flush=True)
    if arguments.output:
        name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
        with open(arguments.output, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "commit": arguments.commit, "tokens": arguments.tokens, "rows": rows}, file,
                      indent=1)


if __name__ == "__main__":
    main()

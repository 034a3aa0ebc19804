#!/usr/bin/env python3
"""Predicted speeds of the sm_80 kernels on an A100 and an L40S, from counted instructions and the efficiency measured on a Hopper GPU.

usage: predict_gpus.py count COUNTS.json [--library LIBRARY] [--flash FOLDER] [--cuobjdump PATH]
       predict_gpus.py measure LIBRARY MEASURED.json
       predict_gpus.py predict FOLDER

count    instructions of a step of each kernel's main loop, per pipe and architecture, into COUNTS.json: of a liblethe_torch.so, and of FlashAttention-2
         from a folder of the cubins of Torch's libtorch_cuda.so (cuobjdump -xelf sm_80 libtorch_cuda.so, and sm_90)
measure  on a Hopper GPU: time, clock and rates of both, forward and backward, T = 16384, bfloat16, without pruning
predict  FOLDER/predictions.json and .md from FOLDER/counts.json and measured.json

Cycles of a step, per warp and quarter of a multiprocessor, from the counts, in two models:
  overlapped  the busiest pipe's, or the issue slots'
  in turn     the tensor pipe's, then the busiest of the others'
Efficiency: such cycles of the Hopper code on the Hopper GPU over those measured. Prediction: clock, multiprocessors and cycles of the other GPU's code at
that efficiency. A model counts alone where it predicts FlashAttention-2's published A100 figures within 10 %; where neither does, the range of both
is written.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from check_kernels import find_cuobjdump, instructions_of
from check_resources import resources_of

# Cycles of a quarter of a multiprocessor for one instruction of a warp. Lanes a cycle: CUDA C++ Programming Guide, "Throughput of native arithmetic
# instructions"; tensor: the data sheets' dense bfloat16 rates (A100 312, L40S 362 TFLOP/s). Hopper's mma.sync has no published rate: `measure` finds it.
# Shared memory: 128 bytes a cycle for the four quarters.
FP32 = ("FADD", "FMUL", "FFMA", "IMAD", "IMUL")
SPECIAL = ("MUFU",)
SHARED = {"LDSM": 16, "LDGSTS": 16, "SHFL": 4, "LDS": 4, "STS": 4, "RED": 4, "ATOMS": 4}
TENSOR = {"80": 8, "89": 16}  # HMMA.16816 with sums in float32
FP32_CYCLES = {"80": 2, "89": 1, "90": 1}
# name: architecture of its pipes, of its code, multiprocessors, GHz that a long kernel holds: least and most
GPUS = {"A100 SXM": ("80", "80", 108, 1.41, 1.41), "L40S": ("89", "80", 142, 1.9, 2.2)}
FLOPS = 4096  # of an HMMA.16816

# kernel: (FLOPs of a pair in units of the head dim, {pattern of a loop's kernel: such FLOPs that it computes}). Not the backward at 128: a Hopper GPU
# runs one kernel there that wants more shared memory than these GPUs have. The backward at 64 is that by two kernels, which an L40S runs, and an A100 only
# in the fixed order: otherwise it runs one kernel there too, backward_wide, whose 102784 bytes of shared memory are more than a CTA may have on an L40S,
# 101376. There is no prediction of that one. A Hopper GPU runs it as well: the time in results/predictions/measured.json is of the two kernels, from
# before, and one measured anew belongs to these counts in the fixed order only.
OURS = {("lethe", "forward", dim): (4, {rf"ampere\w*forward_tilesI13__nv_bfloat16NS0_12ForwardSizesILi{dim}E": 4}) for dim in (64, 128)} | {
    ("lethe", "backward", 64): (10, {
        r"ampere\w*backward_keysI13__nv_bfloat16NS0_10SweepSizesILi64E": 8,
        r"ampere\w*backward_queriesI13__nv_bfloat16Li64E": 6})}
CAUSAL = "ELb0ELb1ELb0ELb0ELb1ELb1ELb0"
FLASH = {("flash_attention_2", "forward", 64): (4, {rf"flash_fwd_kernel\w*Li64ELi128ELi128ELi4ELb0ELb0E\w*bfloat16\w*EE{CAUSAL[1:]}ELb0E": 4}),
         ("flash_attention_2", "forward", 128): (4, {rf"flash_fwd_kernel\w*Li128ELi128ELi64ELi4ELb0ELb0E\w*bfloat16\w*EE{CAUSAL[1:]}ELb0E": 4}),
         ("flash_attention_2", "backward", 64): (10, {rf"seqk_parallel\w*Li64ELi128ELi128ELi8ELi4ELi4ELi4ELb0ELb0E\w*bfloat16\w*EE{CAUSAL[1:]}E": 10}),
         ("flash_attention_2", "backward", 128): (10, {rf"seqk_parallel\w*Li128ELi64ELi128ELi8ELi2ELi4ELi2ELb0ELb0E\w*bfloat16\w*EE{CAUSAL[1:]}E": 10})}

# On an A100 SXM, causal, T = 16384, forward and backward together, TFLOP/s: Dao, FlashAttention-2 (2023), Fig. 4.
PUBLISHED = {64: 171, 128: 189}
WITHIN = 0.10


def main_loop(instructions):
    """The body of the longest backward branch that holds products and exponentials, and no other such; forward branches in it are taken."""
    index = {address: i for i, (address, _) in enumerate(instructions)}
    target_of = lambda text: (found := re.search(r"\bBRA\b.* 0x([0-9a-f]+)", text)) and index.get(int(found[1], 16))
    spans = []
    for i, (_, text) in enumerate(instructions):
        begin = target_of(text)
        if begin is None or begin >= i:
            continue
        body = [t for _, t in instructions[begin : i + 1]]
        if any("HMMA" in t for t in body) and any("MUFU.EX2" in t for t in body) and not any(re.search(r"\bEXIT\b", t) for t in body):
            spans.append((begin, i))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    if not inner:
        return None
    begin, end = max(inner, key=lambda s: sum("HMMA" in t for _, t in instructions[s[0] : s[1] + 1]) / (s[1] - s[0]))
    path, at = [], begin
    while at <= end:
        text = instructions[at][1]
        path.append(text)
        target = target_of(text)
        at = target if target is not None and at < target <= end and text.startswith("@") else at + 1
    return path


def pipes_of(path):
    """Instructions of a step by pipe; those of shared memory in cycles."""
    counts = Counter(issue=len(path))
    for text in path:
        name = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]
        base = name.split(".")[0]
        if base == "HMMA":
            counts["tensor"] += 1
        elif base in FP32:
            counts["fp32"] += 1
        elif base in SPECIAL:
            counts["special"] += 1
        elif base in SHARED:
            counts["shared"] += SHARED[base] * (2 if name.endswith(".64") else 4 if name.endswith(".128") and base in ("LDS", "STS") else 1)
        elif not base.startswith("U") and base not in ("BRA", "BAR", "LDGDEPBAR", "DEPBAR", "LDL", "STL", "LDG", "STG", "LDC", "NOP", "BSSY", "BSYNC"):
            counts["alu"] += 1
    return dict(counts)


def dumps_of(files, patterns, cuobjdump):
    """(architecture, {kernel: instructions}) of the machine code of the kernels that match."""
    run = lambda *arguments: subprocess.run([cuobjdump, *arguments], capture_output=True, text=True, check=True).stdout
    for file in map(str, files):
        names = {}
        for architecture, name, _ in resources_of(run("--dump-resource-usage", file)):
            if architecture in ("80", "90") and any(re.search(pattern, name) for pattern in patterns):
                names.setdefault(architecture, set()).add(name)
        for architecture, those in names.items():
            yield architecture, instructions_of(run("--gpu-architecture", f"sm_{architecture}", "--dump-sass", "--function", ",".join(sorted(those)), file))


def count(arguments):
    cuobjdump = find_cuobjdump(arguments.cuobjdump)
    if cuobjdump is None:
        raise SystemExit("cuobjdump: expected on the path, in the CUDA toolkit or beside Triton, found none")
    sources = [(OURS, [Path(arguments.library)])] if arguments.library else []
    if arguments.flash:
        names = b"flash_fwd_kernel", b"seqk_parallel"
        cubins = [p for p in sorted(Path(arguments.flash).glob("*.sm_[89]0.cubin")) if any(n in p.read_bytes() for n in names)]
        sources.append((FLASH, cubins))
    found = {}
    for kernels, files in sources:
        patterns = {pattern for _, loops in kernels.values() for pattern in loops}
        for architecture, functions in dumps_of(files, patterns, cuobjdump):
            for pattern in patterns:
                for name, instructions in functions.items():
                    if re.search(pattern, name) and (path := main_loop(instructions)):
                        found.setdefault(pattern, {})[architecture] = pipes_of(path)
    rows = [{"implementation": implementation, "direction": direction, "head_dim": dim, "flops": flops,
             "loops": [{"flops": part, "counts": found.get(pattern, {})} for pattern, part in loops.items()]}
            for kernels, _ in sources for (implementation, direction, dim), (flops, loops) in kernels.items()]
    for row in rows:
        for loop in row["loops"]:
            if set(loop["counts"]) != {"80", "90"}:
                raise SystemExit(f"{row['implementation']} {row['direction']} {row['head_dim']}: expected loops of sm_80 and sm_90, found {sorted(loop['counts'])}")
    file = Path(arguments.counts)
    counted = {row["implementation"] for row in rows}
    kept = [row for row in json.loads(file.read_text()) if row["implementation"] not in counted] if file.exists() else []
    file.write_text(json.dumps(kept + rows, indent=1) + "\n")


# ---- on a Hopper GPU

PRODUCTS = r"""
#include <cstdio>
#include <cuda_bf16.h>
__global__ void __launch_bounds__(256) products(float* out, int steps, long long* cycles) {
  float c[8][4] = {};
  unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, 5};
  __syncthreads();
  const long long begin = clock64();
  for (int i = 0; i < steps; ++i)
#pragma unroll
    for (int n = 0; n < 8; ++n)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = clock64() - begin;
  float sum = 0;
  for (int n = 0; n < 8; ++n) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
int main() {
  float* out; long long *cycles, host;
  cudaMalloc(&out, 4 * 132 * 256); cudaMalloc(&cycles, 8);
  const int steps = 20000;
  products<<<132, 256>>>(out, steps, cycles);
  cudaMemcpy(&host, cycles, 8, cudaMemcpyDeviceToHost);
  std::printf("%.4f\n", double(host) / (steps * 8.0 * 2));  // two warps a quarter
  return cudaGetLastError() != cudaSuccess;
}
"""


def product_cycles():
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "products.cu", Path(folder) / "products"
        source.write_text(PRODUCTS)
        subprocess.run(["nvcc", "-O3", "-arch=sm_90", "-o", str(program), str(source)], check=True, capture_output=True)
        return float(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)


class Clock:
    """The median of the multiprocessors' clock, GHz, while a block runs."""

    def __enter__(self):
        self.samples, self.stop = [], threading.Event()

        def sample():
            while not self.stop.is_set():
                read = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"], capture_output=True, text=True)
                self.samples.append(float(read.stdout.split()[0]) / 1000)

        self.thread = threading.Thread(target=sample)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        ordered = sorted(self.samples[len(self.samples) // 3 :])
        self.ghz = ordered[len(ordered) // 2]


def measure(arguments):
    os.environ["LETHE_KERNELS"] = "portable"
    import torch

    torch.ops.load_library(arguments.library)
    length, rows = 16384, []
    for dim, heads in ((64, 24), (128, 12)):
        torch.manual_seed(0)
        query, key, value = (torch.randn(1, length, heads, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        gate = torch.full((1, length, heads), -1e-6, device="cuda", requires_grad=True)

        def ours():
            return torch.ops.lethe.forgetting_attention(query, key, value, gate)

        def flash():
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (query, key, value)), is_causal=True)

        for name, forward in (("lethe", ours), ("flash_attention_2", flash)):
            values = forward()
            arriving = torch.randn_like(values)
            inputs = (query, key, value, gate) if name == "lethe" else (query, key, value)
            backward = lambda: torch.autograd.grad(values, inputs, arriving, retain_graph=True)
            for direction, call in (("forward", lambda: forward()), ("backward", backward)):
                for _ in range(3):
                    call()
                with torch.no_grad() if direction == "forward" else torch.enable_grad(), Clock() as clock:
                    times, end = [], time.monotonic() + arguments.seconds
                    while time.monotonic() < end:
                        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                        events[0].record()
                        for _ in range(5):
                            call()
                        events[1].record()
                        torch.cuda.synchronize()
                        times.append(events[0].elapsed_time(events[1]) / 5)
                milliseconds = sorted(times)[len(times) // 2]
                rows.append({"implementation": name, "direction": direction, "head_dim": dim, "heads": heads, "length": length,
                             "ms": milliseconds, "ghz": clock.ghz})
                print(rows[-1], flush=True)
    properties = torch.cuda.get_device_properties(0)
    found = {"gpu": properties.name, "multiprocessors": properties.multi_processor_count, "torch": torch.__version__,
             "cycles_of_a_product": product_cycles(), "rows": rows}
    Path(arguments.measured).write_text(json.dumps(found, indent=1) + "\n")


# ---- the two models

def cycles(counts, pipes, tensor):
    """Of a step: overlapped, in turn."""
    parts = {"fp32": FP32_CYCLES[pipes] * counts.get("fp32", 0), "special": 8 * counts.get("special", 0), "alu": 2 * counts.get("alu", 0),
             "shared": counts.get("shared", 0), "issue": counts["issue"] - counts["tensor"]}
    products = tensor * counts["tensor"]
    return max(products, counts["issue"], *parts.values()), products + max(parts.values())


def cycles_of_a_pair(row, code, pipes, tensor):
    """Of a quarter, for a pair of query and key and one element of the head dim, in both models."""
    totals = [0.0, 0.0]
    for loop in row["loops"]:
        counts = loop["counts"][code]
        for model, step in enumerate(cycles(counts, pipes, tensor)):
            totals[model] += loop["flops"] * step / (counts["tensor"] * FLOPS)
    return totals


def speed(row, efficiency, gpu, ghz):
    """TFLOP/s in both models."""
    pipes, code, multiprocessors, _, _ = GPUS[gpu]
    return [row["flops"] * 4 * multiprocessors * ghz * 1e-3 * share / each
            for share, each in zip(efficiency, cycles_of_a_pair(row, code, pipes, TENSOR[pipes]))]


def predictions(counts, measured):
    """rows of (gpu, implementation, direction, head dim, [low, high] of each model), and what the models say of the published figures."""
    efficiencies = {}
    for found in measured["rows"]:
        key = found["implementation"], found["direction"], found["head_dim"]
        row = next((r for r in counts if (r["implementation"], r["direction"], r["head_dim"]) == key), None)
        if row is None:
            continue
        pairs = found["heads"] * found["length"] * (found["length"] + 1) / 2 * found["head_dim"]
        measured_cycles = found["ms"] * 1e-3 * found["ghz"] * 1e9 * 4 * measured["multiprocessors"] / pairs
        efficiencies[key] = [each / measured_cycles for each in cycles_of_a_pair(row, "90", "90", measured["cycles_of_a_product"])]
    rows = []
    for gpu, (_, _, _, least, most) in GPUS.items():
        for row in counts:
            if (row["implementation"], row["direction"], row["head_dim"]) not in efficiencies:
                continue
            key = row["implementation"], row["direction"], row["head_dim"]
            rows.append((gpu, *key, *zip(speed(row, efficiencies[key], gpu, least), speed(row, efficiencies[key], gpu, most))))
    check = {}
    for dim, published in PUBLISHED.items():
        both = {direction: next(r for r in rows if r[:4] == ("A100 SXM", "flash_attention_2", direction, dim)) for direction in ("forward", "backward")}
        check[dim] = [3.5 / (1 / both["forward"][4 + model][0] + 2.5 / both["backward"][4 + model][0]) / published for model in (0, 1)]
    return rows, check, efficiencies


def predict(arguments):
    folder = Path(arguments.folder)
    measured = json.loads((folder / "measured.json").read_text())
    rows, check, efficiencies = predictions(json.loads((folder / "counts.json").read_text()), measured)
    models = ("overlapped", "in turn")
    good = [m for m in (0, 1) if all(abs(ratio[m] - 1) <= WITHIN for ratio in check.values())] or [0, 1]
    table = []
    for gpu, implementation, direction, dim, *ranges in rows:
        numbers = [x for m in good for x in ranges[m]]
        table.append((gpu, implementation, direction, dim, f"{min(numbers):.0f}", f"{max(numbers):.0f}", "prediction"))
    names = ("gpu", "implementation", "direction", "head_dim", "low_tflops", "high_tflops", "kind")
    (folder / "predictions.json").write_text(json.dumps([dict(zip(names, row)) for row in table], indent=1) + "\n")
    lines = ["# Predicted speeds on an A100 and an L40S", "",
             "**Every figure of this page is a prediction**: none of these GPUs has run the kernels. An A100 runs the kernels of the backward at 64 that are meant here in the fixed order alone. bfloat16, T = 16384, causal, no pruning, with the gate and "
             "its gradient; TFLOP/s by the visited pairs. By `tools/predict_gpus.py`, from `counts.json` and `measured.json` of this folder.", "",
             f"Models that predict FlashAttention-2's published A100 figures (forward and backward, T = 16384) within {WITHIN:.0%}: "
             + (", ".join(models[m] for m in good) if len(good) < 2 or all(abs(r[m] - 1) <= WITHIN for r in check.values() for m in (0, 1))
                else "neither, so the range of both is given") + ".", "",
             "| head dim | published | " + " | ".join(f"{m} ÷ published" for m in models) + " |", "|---|---|---|---|"]
    lines += [f"| {dim} | {PUBLISHED[dim]} | " + " | ".join(f"{r:.2f}" for r in ratio) + " |" for dim, ratio in check.items()]
    lines += ["", "| GPU | implementation | direction | head dim | predicted TFLOP/s |", "|---|---|---|---|---|"]
    lines += [f"| {gpu} | {implementation} | {direction} | {dim} | {low if low == high else f'{low} to {high}'} (prediction) |"
              for gpu, implementation, direction, dim, low, high, _ in table]
    lines += ["", f"Efficiency on an {measured['gpu']} (cycles by each model ÷ measured), with {measured['cycles_of_a_product']:.2f} cycles an mma.sync:", "",
              "| implementation | direction | head dim | ms | GHz | overlapped | in turn |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['implementation']} | {r['direction']} | {r['head_dim']} | {r['ms']:.3f} | {r['ghz']:.2f} | "
              + " | ".join(f"{e:.2f}" for e in efficiencies[r["implementation"], r["direction"], r["head_dim"]]) + " |" for r in measured["rows"]
              if (r["implementation"], r["direction"], r["head_dim"]) in efficiencies]
    lines += ["", "On such a GPU, `tools/predict_gpus.py measure` times the same calls; its figures then take this page's place."]
    (folder / "predictions.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("count")
    command.add_argument("counts")
    command.add_argument("--library")
    command.add_argument("--flash")
    command.add_argument("--cuobjdump")
    command.set_defaults(run=count)
    command = commands.add_parser("measure")
    command.add_argument("library")
    command.add_argument("measured")
    command.add_argument("--seconds", type=float, default=1.5)
    command.set_defaults(run=measure)
    command = commands.add_parser("predict")
    command.add_argument("folder")
    command.set_defaults(run=predict)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Predicted speeds of the sm_80 kernels on an A100 and an L40S, from counted instructions and the efficiency measured on a Hopper GPU.

usage: predict_gpus.py predict FOLDER [--library LIBRARY] [--torch LIBTORCH] [--portable FILE[=GPU]]… [--cuobjdump PATH]
       predict_gpus.py measure LIBRARY MEASURED.json

predict  FOLDER/predictions.json and .md from FOLDER/counts.json and measured.json, and, in place of a prediction, the time of a file
           portable.json by optimized/benchmarks/cuda/portable.py, of that GPU, in a folder beside FOLDER. Before that,
           --library, --torch   count instructions of a step of each kernel's main loop, per pipe and architecture, into counts.json: of ours in a
                                library with code of 8.0 and 9.0, as of the preset `kernels`, of FlashAttention-2 in Torch's libtorch_cuda.so
           --portable           writes measured.json anew with the times of a file by optimized/benchmarks/cuda/portable.py; with =GPU the backward
                                that this GPU runs and a Hopper one doesn't, of a library built with its LETHE_SHARED_BYTES (ampere/attention.cpp)
measure  on a Hopper GPU, and no other: time, clock and rates of both, forward and backward, bfloat16, without pruning, as `portable.py --only gate
         --only flash`

All of it without a GPU:
    .venv/bin/python tools/predict_gpus.py predict results/predictions --library build/kernels/lib/liblethe_cuda_ampere.a \\
      --torch .venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so --portable results/h200/portable.json \\
      --portable "results/h200/portable_a100.json=A100 SXM" --portable results/h200/portable_l40s.json=L40S

Cycles of a step, per warp and quarter of a multiprocessor, from the counts, in two models:
  overlapped  the busiest pipe's, or the issue slots'
  in turn     the tensor pipe's, then the busiest of the others'
Efficiency: such cycles of the Hopper code on the Hopper GPU over those measured. Prediction: clock, multiprocessors and cycles of the other GPU's
code at that efficiency. A model counts alone where it predicts FlashAttention-2's published A100 figures within 10 %; where neither does, the range
of both is written. Kernels whose time is not in measured.json have no prediction.
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
from pathlib import Path

from predict_gpus_counts import DIMS, FLASH, FUSED, ONE_STAGE, OURS, SMALL, TWO, count

# Cycles of a quarter of a multiprocessor for one instruction of a warp. Lanes a cycle: CUDA C++ Programming Guide, "Throughput of native arithmetic
# instructions"; tensor: the data sheets' dense bfloat16 rates (A100 312, L40S 362 TFLOP/s). Hopper's mma.sync has no published rate: `measure` finds
# it.
TENSOR = {"80": 8, "89": 16}  # HMMA.16816 with sums in float32
FP32_CYCLES = {"80": 2, "89": 1, "90": 1}
# name: architecture of its pipes, of its code, multiprocessors, GHz that a long kernel holds: least and most
GPUS = {"A100 SXM": ("80", "80", 108, 1.41, 1.41), "L40S": ("89", "80", 142, 1.9, 2.2)}
# Their names by the driver, not of a part of one. Where several have run, a figure is of the first pattern's, and of these the latest.
NAMES = {"A100 SXM": (r"NVIDIA A100-SXM\S*", r"NVIDIA A100[- ](?!.*MIG).*"), "L40S": (r"NVIDIA L40S",)}
HOPPER_NAME = r"NVIDIA G?H\d+\b.*"
LENGTH = 16384
# The backward that is not summed in a fixed order, by head dim. A CTA may have 166912 bytes of shared memory on an A100, 101376 on an L40S; the wide
# backward wants 102784 at 64, 135552 at 96, 168320 at 128, 150272 at 256, with one stage 85248 at 64, 134400 at 128.
HOPPER = "Hopper"
BACKWARD = {HOPPER: dict.fromkeys(DIMS, "backward"), "A100 SXM": {64: "backward", 96: "backward", 128: ONE_STAGE, 256: "backward"},
            "L40S": {64: ONE_STAGE, 96: FUSED, 128: TWO, 256: TWO}}
# Where a multiprocessor's shared memory (164 KB on an A100, 100 KB on an L40S) has place for one CTA, a Hopper one's for two: those of the forward
# have 50 KB at 96, 66 at 128, 98 at 256, those of the two kernels 66.
FEWER_CTAS = {"A100 SXM": (("forward", 256),), "L40S": (*(("forward", dim) for dim in (96, 128, 256)), (TWO, 128), (TWO, 256))}
FLOPS = 4096  # of an HMMA.16816
HIGHEST_GHZ = 1.98  # of an H100 SXM and an H200, where a time comes without its clock

# On an A100 SXM, causal, T = 16384, forward and backward together, TFLOP/s: Dao, FlashAttention-2 (2023), Fig. 4.
PUBLISHED = {64: 171, 128: 189}
WITHIN = 0.10
MODELS = ("overlapped", "in turn")


def times_of(found, backward):
    """(implementation, direction, head dim, line) and milliseconds of portable.py's rows; `backward`: ours, by head dim."""
    for line in found["rows"]:
        if line["error"] or line["row"] not in ("gate", "flash", "dims") or line["family"] != "portable" or line["head_dim"] not in DIMS:
            continue
        direction = line["direction"]
        ours = backward[line["head_dim"]] if direction == "backward" else direction
        yield "lethe", ours, line["head_dim"], line, line["milliseconds"]
        if (ms := line["others"].get("FlashAttention-2")) is not None:
            yield "flash_attention_2", direction, line["head_dim"], line, ms


def from_portable(before, files):
    """measured.json with the times of portable.py's files, bfloat16. The cycles of a product stay. A file may end in =GPU: its library was built with
    LETHE_SHARED_BYTES of that GPU, and so ran its backward. A kernel's time is that of the first file that has it."""
    rows, sources = {}, []
    for file, _, gpu in (file.partition("=") for file in files):
        if gpu and gpu not in GPUS:
            raise SystemExit(f"{file}: expected one of {', '.join(GPUS)}, found {gpu}")
        found = json.loads(Path(file).read_text())
        if found["gpu"] != before["gpu"] or found["torch"] != before["torch"]:
            raise SystemExit(f"{file}: expected {before['gpu']}, torch {before['torch']}, found {found['gpu']}, torch {found['torch']}")
        sources.append({"file": "/".join(Path(file).absolute().parts[-2:]), "commit": found["commit"], "date": found["date"], "as": gpu})
        for name, direction, dim, line, ms in times_of(found, BACKWARD[gpu or HOPPER]):
            if not gpu or direction not in ("forward", line["direction"]):  # what every GPU runs is the first's
                rows.setdefault((name, direction, dim), {"implementation": name, "direction": direction, "head_dim": dim, "heads": line["heads"],
                                                         "length": line["tokens"], "ms": ms, "ghz": None})
    return {key: before[key] for key in ("gpu", "multiprocessors", "torch", "cycles_of_a_product")} | {"sources": sources,
                                                                                                       "rows": list(rows.values())}


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

    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    if found == "none" or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit(f"GPU: expected a Hopper GPU, from whose times others' are predicted, found {found}; another one's own times are by "
                         "optimized/benchmarks/cuda/portable.py")
    torch.ops.load_library(arguments.library)
    torch.utils.deterministic.fill_uninitialized_memory = False
    length, rows = 16384, []
    for dim, heads in ((64, 32), (96, 21), (128, 16), (256, 8)):
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
            for direction, call in (("forward", lambda: forward()), ("backward", backward), *([(TWO, backward)] if name == "lethe" else [])):
                torch.use_deterministic_algorithms(direction == TWO)
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
    pipes, code, multiprocessors, *_ = GPUS[gpu]
    return [row["flops"] * 4 * multiprocessors * ghz * 1e-3 * share / each
            for share, each in zip(efficiency, cycles_of_a_pair(row, code, pipes, TENSOR[pipes]))]


def runs_on(gpu, implementation, direction, dim):
    """Whether a GPU's call has these kernels."""
    if implementation == "lethe":
        return direction in ("forward", BACKWARD[gpu][dim])
    way = direction.removesuffix(SMALL)
    return direction == way + SMALL * (gpu == "L40S" and (implementation, way + SMALL, dim) in FLASH)


def predictions(counts, measured):
    """rows of (gpu, implementation, direction, head dim, [low, high] of each model), and what the models say of the published figures."""
    efficiencies = {}
    for found in measured["rows"]:
        key = found["implementation"], found["direction"], found["head_dim"]
        if (row := next((r for r in counts if (r["implementation"], r["direction"], r["head_dim"]) == key), None)) is None:
            continue
        pairs = found["heads"] * found["length"] * (found["length"] + 1) / 2 * found["head_dim"]
        measured_cycles = found["ms"] * 1e-3 * (found["ghz"] or HIGHEST_GHZ) * 1e9 * 4 * measured["multiprocessors"] / pairs
        efficiencies[key] = [each / measured_cycles for each in cycles_of_a_pair(row, "90", "90", measured["cycles_of_a_product"])]
    rows = []
    for gpu, (_, _, _, least, most) in GPUS.items():
        for row in counts:
            key = row["implementation"], row["direction"], row["head_dim"]
            efficiency = efficiencies.get((key[0], key[1].removesuffix(SMALL), key[2]))
            if efficiency and runs_on(gpu, *key):
                rows.append((gpu, *key, *zip(speed(row, efficiency, gpu, least), speed(row, efficiency, gpu, most))))
    check = {}
    for dim, published in PUBLISHED.items():
        both = {direction: next(r for r in rows if r[:4] == ("A100 SXM", "flash_attention_2", direction, dim))
                for direction in ("forward", "backward")}
        check[dim] = [3.5 / (1 / both["forward"][4 + model][0] + 2.5 / both["backward"][4 + model][0]) / published for model in (0, 1)]
    return rows, check, efficiencies


def short(commit):
    return re.sub("[0-9a-f]{40}", lambda found: found[0][:12], commit)


def measured_there(results):
    """What GPUS ran themselves, of the files portable.json in the folders of `results`: {(GPU, implementation, direction, head dim): what ran}."""
    files = []
    for path in results.glob("*/portable.json"):
        found = json.loads(path.read_text())
        for gpu, patterns in NAMES.items():
            if place := next((i for i, pattern in enumerate(patterns, 1) if re.fullmatch(pattern, found["gpu"])), None):
                files.append((-place, found["date"], str(path), gpu, found))
    rows = {}
    for _, date, path, gpu, found in sorted(files, key=lambda file: file[:3], reverse=True):  # the first that has a time
        for name, direction, dim, line, ms in times_of(found, BACKWARD[gpu]):
            if line["tokens"] != LENGTH:
                continue
            direction = next(way for way in (direction, direction + SMALL) if runs_on(gpu, name, way, dim))
            elements = line["heads"] * LENGTH * (LENGTH + 1) / 2 * dim
            rows.setdefault((gpu, name, direction, dim), {
                "measured_on": found["gpu"], "commit": short(found["commit"]) + ", changed" * bool(found["dirty"]), "date": date[:10],
                "file": "/".join(Path(path).parts[-2:]), "tflops": (4 if line["direction"] == "forward" else 10) * elements / ms * 1e-9})
    return rows


def predict(arguments):
    folder = Path(arguments.folder)
    if sources := [(kernels, library) for kernels, library in ((OURS, arguments.library), (FLASH, arguments.torch)) if library]:
        count(folder / "counts.json", sources, arguments.cuobjdump)
    measured = json.loads((folder / "measured.json").read_text())
    if arguments.portable:
        measured = from_portable(measured, arguments.portable)
        (folder / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    if not re.fullmatch(HOPPER_NAME, measured["gpu"]):
        raise SystemExit(f"{folder / 'measured.json'}: expected times of a Hopper GPU, whose instructions are counted, found those of an "
                         f"{measured['gpu']}")
    counts = json.loads((folder / "counts.json").read_text())
    rows, check, efficiencies = predictions(counts, measured)
    good = [m for m in (0, 1) if all(abs(ratio[m] - 1) <= WITHIN for ratio in check.values())] or [0, 1]
    predicted, there, table = {row[:4]: row[4:] for row in rows}, measured_there(folder.resolve().parent), []
    for key in ((gpu, r["implementation"], r["direction"], r["head_dim"]) for gpu in GPUS for r in counts):
        line = dict(zip(("gpu", "implementation", "direction", "head_dim"), key))
        if found := there.get(key):
            figure = f"{found['tflops']:.0f}"
            table.append(line | {"low_tflops": figure, "high_tflops": figure, "kind": "measured"} | {k: found[k] for k in found if k != "tflops"})
        elif key in predicted:
            numbers = [x for m in good for x in predicted[key][m]]
            table.append(line | {"low_tflops": f"{min(numbers):.0f}", "high_tflops": f"{max(numbers):.0f}", "kind": "prediction"})
    (folder / "predictions.json").write_text(json.dumps(table, indent=1) + "\n")
    untimed = [f"{gpu} {direction} {dim}" for gpu in GPUS for implementation, direction, dim in OURS
               if runs_on(gpu, implementation, direction, dim) and (implementation, direction, dim) not in efficiencies
               and (gpu, implementation, direction, dim) not in there]
    own = [line for line in table if line["kind"] == "measured"]
    runs = ", ".join(sorted({f"on an {line['measured_on']} by `{line['file']}` of {line['commit']}, {line['date']}" for line in own}))
    others = [key for key in predicted if key not in there]
    about = (f"**{len(own)} figures of this page are measured**, {runs}. **The other {len(others)} are predictions**, marked so. " if own and others
             else f"**Every figure of the table of GPUs is measured**, {runs}. " if own
             else "**Every figure of this page is a prediction**: there are no measured times of these GPUs. ")
    lines = ["# Speeds on an A100 and an L40S" if own else "# Predicted speeds on an A100 and an L40S", "",
             f"{about}bfloat16, T = {LENGTH}, causal, no pruning, with the gate and "
             "its gradient; TFLOP/s by the visited pairs. Each GPU has the backward that it chooses by the shared memory of a CTA. "
             + (f"No prediction, since no time of these kernels was measured: {', '.join(untimed)}. " if untimed else "")
             + "By `tools/predict_gpus.py`, from `counts.json` and `measured.json` of this folder"
             + (", and from those files of times." if own else "."), "",
             f"Models that predict FlashAttention-2's published A100 figures (forward and backward, T = 16384) within {WITHIN:.0%}: "
             + (", ".join(MODELS[m] for m in good) if len(good) < 2 or all(abs(r[m] - 1) <= WITHIN for r in check.values() for m in (0, 1))
                else "neither, so the range of both is given") + ".", "",
             "| head dim | published | " + " | ".join(f"{m} ÷ published" for m in MODELS) + " |", "|---|---|---|---|"]
    lines += [f"| {dim} | {PUBLISHED[dim]} | " + " | ".join(f"{r:.2f}" for r in ratio) + " |" for dim, ratio in check.items()]
    lines += ["", f"| GPU | implementation | direction | head dim | {'' if own else 'predicted '}TFLOP/s |", "|---|---|---|---|---|"]
    for line in table:
        low, high, kind = line["low_tflops"], line["high_tflops"], line["kind"]
        source = f", {line['commit']}, {line['date']}" if kind == "measured" else ""
        lines.append(f"| {line.get('measured_on', line['gpu'])} | {line['implementation']} | {line['direction']} | {line['head_dim']} | "
                     f"{low if low == high else f'{low} to {high}'} ({kind}{source}) |")
    lines += ["", f"Efficiency on an {measured['gpu']} (cycles by each model ÷ measured), with {measured['cycles_of_a_product']:.2f} cycles an "
                  f"mma.sync:", "",
              "| implementation | direction | head dim | ms | GHz | overlapped | in turn |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['implementation']} | {r['direction']} | {r['head_dim']} | {r['ms']:.3f} | {r['ghz'] or HIGHEST_GHZ:.2f} | "
              + " | ".join(f"{e:.2f}" for e in efficiencies[r["implementation"], r["direction"], r["head_dim"]]) + " |" for r in measured["rows"]
              if (r["implementation"], r["direction"], r["head_dim"]) in efficiencies]
    if "sources" in measured:
        named = ", ".join(f"`{s['file']}` of {short(s['commit'])}"
                          + (f" (within the shared memory of an {s['as']})" if s["as"] else "") for s in measured["sources"])
        lines += ["", f"Times: {named}. Their clock was not recorded and is taken as the highest, "
                  f"{HIGHEST_GHZ} GHz: by each per cent that it was lower, every prediction is one per cent too low."]
    fewer = [f"{gpu} {direction} {dim}" for gpu, implementation, direction, dim in others
             if implementation == "lethe" and (direction, dim) in FEWER_CTAS[gpu]]
    if fewer:
        lines += ["", f"One CTA a multiprocessor where the Hopper GPU has two, which neither model counts, so that these may be too high: "
                      f"{', '.join(fewer)}."]
    if any(SMALL in direction for _, _, direction, _ in others):
        lines += ["", "FlashAttention-2 has smaller tiles on an L40S (“small tiles”): their instructions are counted, and the efficiency is taken "
                      "to be that of "
                  "the larger ones, which a Hopper GPU runs."]
    lines += ["", "`tools/gpu_check` on such a GPU leaves its times in `results/<gpu>/portable.json`, as `optimized/benchmarks/cuda/portable.py` "
                  "alone does. With that file here, `tools/predict_gpus.py predict results/predictions` writes them in place of the predictions."]
    (folder / "predictions.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("library")
    command.add_argument("measured")
    command.add_argument("--seconds", type=float, default=1.5)
    command.set_defaults(run=measure)
    command = commands.add_parser("predict")
    command.add_argument("folder")
    for option in ("--library", "--torch", "--cuobjdump"):
        command.add_argument(option)
    command.add_argument("--portable", action="append", default=[])
    command.set_defaults(run=predict)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Makes attention_throughput.md and .svg of <results>/attention_throughput.csv.

usage: experiments/throughput/report.py RESULTS…     e.g. results/h200
"""
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from report.style import OURS, PAPER, panels, save  # noqa: E402
from report.throughput import DIRECTIONS, load_throughput, of_runs, ratio_table  # noqa: E402

BASELINE = "cudnn"  # what attention without a gate costs


def speed_and_ratio(case, metrics, direction):
    metric = f"{direction}_speed"
    if metric not in metrics:
        return ["error", ""]
    baseline = case.get(BASELINE, {}).get(metric, math.nan)
    return [f"{metrics[metric]:.0f}", "" if math.isnan(baseline) else f"{metrics[metric] / baseline:.2f}"]


def page(cases, ratios, certificate):
    lines = ["# Attention kernels beside one another", "",
             f"Effective TFLOP/s in bf16 on one {certificate['machine']['gpu']}, and the ratio to cuDNN without a gate. What each name means: "
             "[experiments/throughput](../../experiments/throughput/README.md). Error: share of its budget.", "",
             "![attention_throughput](attention_throughput.svg)", "",
             "## In ratios", "", "Ours over theirs, forward, then backward; of FlexAttention the faster backend.", "", ratios.rstrip("\n")]
    for (length, dim, gate), case in cases.items():
        share = next((m["pruned_share"] for m in case.values() if "pruned_share" in m), math.nan)
        lines += ["", f"## T = {length}, D = {dim}, gate {gate}, {100 * share:.0f} % pruned", "",
                  "| | forward | × cuDNN | backward | × cuDNN | error |", "|---|---|---|---|---|---|"]
        for name, metrics in case.items():
            cells = [cell for direction in DIRECTIONS for cell in speed_and_ratio(case, metrics, direction)]
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {metrics['share_of_budget']:.2f} |")
    for run in of_runs(certificate, list(cases)):
        lines += ["", run]
    lines.append("")
    return "\n".join(lines)


def figure(cases):
    """A panel a case: bars forward and backward, ours in our colour."""
    drawing, axes = panels(len(cases), width=4.2 * len(cases), height=3.6)
    for axis, ((length, dim, gate), case) in zip(axes[0], cases.items()):
        timed = [name for name, metrics in case.items() if "forward_speed" in metrics]
        for row, name in enumerate(timed):
            for offset, direction in ((-0.2, "forward"), (0.2, "backward")):
                axis.barh(row + offset, case[name][f"{direction}_speed"], 0.36, alpha=1 if offset < 0 else 0.6,
                          color=OURS if name.startswith("lethe") else PAPER)
        axis.set_yticks(range(len(timed)), timed)
        axis.invert_yaxis()
        axis.set_title(f"T = {length}, D = {dim}, {gate}")
        axis.set_xlabel("effective TFLOP/s (upper bar forward, lower backward)")
    return drawing


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(Path, sys.argv[1:]):
        data = folder / "attention_throughput.csv"
        cases = load_throughput(data)
        certificate = json.loads((folder / "attention_throughput.json").read_text())
        (folder / "attention_throughput.md").write_text(page(cases, ratio_table(data), certificate))
        save(figure(cases), folder / "attention_throughput.svg")


if __name__ == "__main__":
    main()

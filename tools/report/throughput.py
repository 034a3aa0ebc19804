"""<machine>/attention_throughput.csv of tools/compare_attention.py: what is in it, how ours does in ratios, and its page."""

import csv
import json
import math

from report.markdown import commit_words, number, table
from report.results import BadResult

DIRECTIONS = ("forward", "backward")
OPEN, BIMODAL, INIT = "open", "bimodal", "init"
WITHOUT_GATE = ("cudnn", "flash_attention_4")
FLEX_PRUNED = ("flex_pruned_mask", "flex_flash_pruned_mask")
OFFICIAL_PRUNED = ("official_pruned",)
BASELINE = "cudnn"  # the cost of attention without a gate
THROUGHPUT = "attention_throughput"


def throughput_data(folder):
    """The folder's file, where it has one: a list of one or none."""
    return [path] if (path := folder / f"{THROUGHPUT}.csv").exists() else []


def load_throughput(path):
    """{(length, dim, gate): {implementation: {metric: value}}}, in the file's order."""
    cases = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            case = cases.setdefault((int(row["length"]), int(row["key_dim"]), row["variant"]), {})
            case.setdefault(row["implementation"], {})[row["metric"]] = float(row["value"])
    return cases


def of_runs(certificate, measured):
    """A line for each run: which of the cases it measured, of what commit, when, and with what versions."""
    lines = []
    for run in [certificate, *certificate.get("earlier", [])]:
        cases = {tuple(case) for case in run.get("cases", measured)}
        names = []
        for length in dict.fromkeys(length for length, _, _ in measured):
            of_length = [case for case in measured if case[0] == length]
            if cases.issuperset(of_length):
                names.append(f"T = {length}")
            else:
                names += [f"T = {length}, D = {dim}, {gate}" for length, dim, gate in of_length if (length, dim, gate) in cases]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines.append(f"{'; '.join(names)}: commit {commit_words(run['commit'], run['dirty'])}; {run['time']}; {versions}. "
                     f"Not installed: {', '.join(run['left_out']) or 'nothing'}.")
    return lines


def ratio(case, ours, rivals, direction, factor=1.0):
    """Ours over the fastest rival that was timed; None where either is missing."""
    metric = f"{direction}_speed"
    speeds = [case[name][metric] for name in rivals if metric in case.get(name, {})]
    own = case.get(ours, {}).get(metric)
    return factor * own / max(speeds) if speeds and own else None


def ratio_table(path):
    """A row a shape: with an open gate beside those without one; with the bimodal gate, pruned, beside ourselves and those who prune too;
    with that of an untrained layer, which prunes nearly all, beside those who prune.
    """
    cases = load_throughput(path)
    rows = []
    for length, dim in dict.fromkeys((length, dim) for length, dim, _ in cases):
        opened, bimodal, init = (cases.get((length, dim, gate), {}) for gate in (OPEN, BIMODAL, INIT))
        shares = {metrics["pruned_share"] for metrics in bimodal.values() if "pruned_share" in metrics}
        if len(shares) > 1:
            raise BadResult(f"{path}: T = {length}, D = {dim}: expected one pruned share, found {sorted(shares)}")
        share = next(iter(shares), None)
        beside_those = [number(ratio(opened, "lethe", [rival], direction)) for rival in WITHOUT_GATE for direction in DIRECTIONS]
        beside_those += [number(ratio(opened, "lethe_16_bit_sums", [rival], "backward")) for rival in WITHOUT_GATE]
        row = [f"T = {length}, D = {dim}", *beside_those, number(share)]
        for case, rivals, factor in ((bimodal, ["lethe"], None if share is None else 1 - share), (bimodal, FLEX_PRUNED, 1.0),
                                     (bimodal, OFFICIAL_PRUNED, 1.0), (init, FLEX_PRUNED, 1.0), (init, OFFICIAL_PRUNED, 1.0)):
            row += [number(ratio(case, "lethe_pruned", rivals, direction, factor) if factor is not None else None) for direction in DIRECTIONS]
        rows.append(row)
    titles = ["open: × cuDNN", "backward", "× FlashAttention-4", "backward", "backward with 16-bit sums: × cuDNN", "× FlashAttention-4",
              "bimodal: pruned share p", "× unpruned · (1 − p)", "backward",
              "× FlexAttention, pruned mask", "backward", "× official, pruned", "backward",
              "init: × FlexAttention, pruned mask", "backward", "× official, pruned", "backward"]
    return table(["", *titles], rows)


def short_ratio_table(path):
    """A row a shape in four ratios: with an open gate over cuDNN without one; with the bimodal gate, pruned, over the official kernel."""
    cases = load_throughput(path)
    rows = []
    for length, dim in dict.fromkeys((length, dim) for length, dim, _ in cases):
        ratios = [ratio(cases.get((length, dim, gate), {}), ours, rivals, direction)
                  for gate, ours, rivals in ((OPEN, "lethe", [BASELINE]), (BIMODAL, "lethe_pruned", OFFICIAL_PRUNED))
                  for direction in DIRECTIONS]
        rows.append([f"T = {length}, D = {dim}", *map(number, ratios)])
    return table(["shape", "open gate: forward × cuDNN", "backward × cuDNN", "bimodal, pruned: forward × official", "backward × official"], rows)


def speed_and_ratio(case, metrics, direction):
    metric = f"{direction}_speed"
    if metric not in metrics:
        return ["error", ""]
    baseline = case.get(BASELINE, {}).get(metric, math.nan)
    return [f"{metrics[metric]:.0f}", "" if math.isnan(baseline) else f"{metrics[metric] / baseline:.2f}"]


def throughput_page(path):
    """Figures, ratios, and a table of each case with every implementation."""
    if not path.with_suffix(".json").exists():
        raise BadResult(f"{path}: expected its certificate {path.stem}.json, found none")
    cases, certificate = load_throughput(path), json.loads(path.with_suffix(".json").read_text())
    lines = ["# Attention kernels beside one another", "",
             f"Effective TFLOP/s in bf16 on one {certificate['machine']['gpu']}, and the ratio to cuDNN without a gate. What each name means: "
             "[experiments/papers/throughput](../../experiments/papers/throughput/README.md). Error: share of its budget.", ""]
    for length in dict.fromkeys(length for length, _, _ in cases):
        lines += [f"![T = {length}]({figure_name(length)})", ""]
    lines += ["## In ratios", "", "Ours over theirs, forward, then backward; of FlexAttention the faster backend.", "",
              ratio_table(path).rstrip("\n")]
    for (length, dim, gate), case in cases.items():
        share = next((m["pruned_share"] for m in case.values() if "pruned_share" in m), math.nan)
        lines += ["", f"## T = {length}, D = {dim}, gate {gate}, {100 * share:.0f} % pruned", "",
                  "| | forward | × cuDNN | backward | × cuDNN | error |", "|---|---|---|---|---|---|"]
        for name, metrics in case.items():
            if "share_of_budget" not in metrics:  # did not take part: ours still has its pruned share
                continue
            cells = [cell for direction in DIRECTIONS for cell in speed_and_ratio(case, metrics, direction)]
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {metrics['share_of_budget']:.2f} |")
    for run in of_runs(certificate, list(cases)):
        lines += ["", run]
    return "\n".join([*lines, ""])


def figure_name(length):
    return f"{THROUGHPUT}_{length}.svg"

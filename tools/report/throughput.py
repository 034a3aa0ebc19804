"""<machine>/attention_throughput.csv of tools/compare_attention.py: what is in it, and how ours does in ratios."""

import csv

from report.markdown import commit_words, number, table
from report.results import BadResult

DIRECTIONS = ("forward", "backward")
OPEN, BIMODAL = "open", "bimodal"
WITHOUT_GATE = ("cudnn", "flash_attention_4")


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
    """A row a shape: with an open gate beside those without one; with the bimodal gate, pruned, beside ourselves and those who prune too."""
    cases = load_throughput(path)
    rows = []
    for length, dim in dict.fromkeys((length, dim) for length, dim, _ in cases):
        opened, bimodal = cases.get((length, dim, OPEN), {}), cases.get((length, dim, BIMODAL), {})
        shares = {metrics["pruned_share"] for metrics in bimodal.values() if "pruned_share" in metrics}
        if len(shares) > 1:
            raise BadResult(f"{path}: T = {length}, D = {dim}: expected one pruned share, found {sorted(shares)}")
        share = next(iter(shares), None)
        flex = [name for name in bimodal if name.startswith("flex") and name.endswith("_pruned_mask")]
        beside_those = [number(ratio(opened, "lethe", [rival], direction)) for rival in WITHOUT_GATE for direction in DIRECTIONS]
        row = [f"T = {length}, D = {dim}", *beside_those, number(share)]
        for rivals, factor in ((["lethe"], None if share is None else 1 - share), (flex, 1.0), (["official_pruned"], 1.0)):
            row += [number(ratio(bimodal, "lethe_pruned", rivals, direction, factor) if factor is not None else None) for direction in DIRECTIONS]
        rows.append(row)
    titles = ["open: × cuDNN", "backward", "× FlashAttention-4", "backward", "bimodal: pruned share p", "× unpruned · (1 − p)", "backward",
              "× FlexAttention, pruned mask", "backward", "× official, pruned", "backward"]
    return table(["", *titles], rows)

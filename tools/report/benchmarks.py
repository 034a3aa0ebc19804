"""Tables of Google Benchmark's files in a machine's folder: <operator>_cpu.json of tools/benchmark, <operator>_cuda.json of tools/gpu_check."""

import json
import math
import statistics

from report.markdown import commit_words, number, table, with_band
from report.results import BadResult

PASSES = {"forward": "forward (ms)", "forward_backward": "forward + backward (ms)"}
COUNTERS = {
    "pruned_share": "pruned share",
    "memory_mib": "beyond the inputs (MiB)",
    "input_mib": "inputs (MiB)",
    "output_mib": "outputs (MiB)",
    "saved_mib": "held by the graph (MiB)",
    "peak_mib": "peak beyond the inputs (MiB)",
}
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def benchmark_files(folder):
    return sorted([*folder.glob("*_cpu.json"), *folder.glob("*_cuda.json")])


def read_benchmarks(path):
    """{(sizes, implementation): {column: median over repetitions}}, by sizes and implementations."""
    content = json.loads(path.read_text())
    measured = {}
    for run in content["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        if "error_message" in run:
            raise BadResult(f"{path}: {run['name']}: expected a measurement, found the error {run['error_message']}")
        parts = run["name"].split("/")
        sizes = ", ".join(part.replace(":", " = ") for part in parts if ":" in part)
        which = next((part for part in parts if part in PASSES), None)
        if which is None:
            raise BadResult(f"{path}: {run['name']}: expected one of {', '.join(PASSES)} in its name, found none")
        implementation = ", ".join(parts[: parts.index(which)])
        cells = measured.setdefault((sizes, implementation), {})
        cells.setdefault(PASSES[which], []).append(run["real_time"] * MILLISECONDS[run["time_unit"]])
        for counter, title in COUNTERS.items():
            if counter in run and (which == "forward_backward" or counter == "pruned_share"):
                cells.setdefault(title, []).append(run[counter])
    medians = {key: {title: statistics.median(values) for title, values in cells.items()} for key, cells in measured.items()}
    return dict(sorted(medians.items(), key=lambda item: (item[0][0], item[0][1])))


def yardstick(medians, sizes, implementation):
    """What an implementation is measured against: Torch's attention, or the loop over tokens of the same rule."""
    for other in ("torch", f"{implementation.split(', ')[0]}, loop"):
        if other != implementation and (sizes, other) in medians:
            return medians[sizes, other]
    return {}


def benchmark_table(path):
    return gate_cost_table(path) if path.stem.endswith("_cuda") else cpu_table(path)


def cpu_table(path):
    """A row an implementation at each size; medians over repetitions, and how many times as fast as Torch's own each is."""
    medians = read_benchmarks(path)
    rows, before = [], None
    for (sizes, implementation), cells in medians.items():
        beside = yardstick(medians, sizes, implementation)
        row = [sizes if sizes != before else "", implementation]
        for column in PASSES.values():
            row += [number(cells.get(column)), number(beside[column] / cells[column]) if column in beside and column in cells else ""]
        rows.append(row + [number(cells.get(column)) for column in COUNTERS.values()])
        before = sizes
    speeds = [title for column in PASSES.values() for title in (column, "times as fast")]
    return table(["", "", *speeds, *COUNTERS.values()], rows)


GATED, WITHOUT_GATE = "lethe_kernels", "lethe_kernels_without_gate"
DIRECTIONS = {"inference": "inference", "forward": "forward", "backward": "backward", "backward_16_bit_sums": "backward, 16-bit sums"}


def gate_costs(path):
    """{(dim, length, gate): {direction: (mean, standard deviation)}}, each Google Benchmark's entry of an aggregate."""
    shapes = {}
    for run in json.loads(path.read_text())["benchmarks"]:
        if run.get("aggregate_name") not in ("mean", "stddev"):
            continue
        for counter in (f"ms/{GATED}", f"ratio_to/{WITHOUT_GATE}"):
            if counter not in run:
                raise BadResult(f"{path}: {run['name']}: expected {counter}, found none")
        direction, *shape = run["name"].split("/")[:4]
        shapes.setdefault(tuple(shape), {}).setdefault(direction, {})[run["aggregate_name"]] = run
    if not shapes:
        raise BadResult(f"{path}: expected means over repetitions, found none")
    return {shape: {direction: (runs["mean"], runs["stddev"]) for direction, runs in of.items()} for shape, of in shapes.items()}


def gate_cost_table(path):
    """A row a shape and gate: times of the build with a gate, and how many times those of the build without one, which ran in turn with it."""
    cells, costs = [], gate_costs(path)
    for shape in sorted(costs, key=lambda row: ([int(part.split(":")[1]) for part in row[:2]], row[2])):
        cells.append([", ".join(part.replace(":", " = ") for part in shape[:2]), "bimodal, pruned" if shape[2] == "bimodal" else shape[2]])
        for direction in (*DIRECTIONS, "plan"):
            if direction not in costs[shape]:
                cells[-1] += ["", ""]
                continue
            mean, deviation = costs[shape][direction]
            error = deviation[f"ratio_to/{WITHOUT_GATE}"] / math.sqrt(mean["repetitions"])
            cells[-1] += [number(mean[f"ms/{GATED}"]), with_band(mean[f"ratio_to/{WITHOUT_GATE}"], error)]
        cells[-1].pop()  # of the plan
    titles = [f"{title}{column}" for title in DIRECTIONS.values() for column in (" (ms)", ", times that without a gate")]
    return table(["", "gate", *titles, "plan alone (ms)"], cells)


def benchmark_page(path):
    context = json.loads(path.read_text())["context"]
    commit = commit_words(context.get("commit"), {"yes": True, "no": False}.get(context.get("dirty")))
    if path.stem.endswith("_cuda"):
        if "milliseconds" not in context:
            raise BadResult(f"{path}: context: expected milliseconds, found none")
        inference = "`inference` is a forward that keeps none; " if any("inference" in of for of in gate_costs(path).values()) else ""
        (repetitions,) = {mean["repetitions"] for of in gate_costs(path).values() for mean, _ in of.values()}
        return (
            f"# {path.stem}\n\n{benchmark_table(path)}\nThe kernels beside the same built without a gate, which prunes nothing; each direction with "
            f"its "
            "plan: prefix sums and the order of heads, and before a forward norms and boundary (`plan alone` is a forward's). `forward` keeps the "
            "residual of the values that the backward wants, with a gate and without; "
            f"{inference}`16-bit sums` is a backward whose sums of dS behind the gate's gradient are of what is rounded to 16 bits, "
            f"with open gates alone. Both builds ran in turn, for {context['milliseconds']} ms at a time. At the power limit, where these kernels "
            "run, the clock goes up and down with a period of about a second: stretches of some milliseconds all meet the same clock, and tell a "
            "ratio of cycles; "
            "with a second or more each build runs at the clock that its own power allows. "
            f"Means of {repetitions} repetitions; ± is their standard deviation over √{repetitions}, in this one run. "
            f"bfloat16, B·T = 32768, H·D = 1536, `tools/gpu_check`; commit {commit}; {context.get('gpu', path.parent.name)}; {context['date']}.\n"
        )
    return (
        f"# {path.stem}\n\n{benchmark_table(path)}\n\"times as fast\" as `torch`, or as the rule's loop over tokens. Medians of repetitions in "
        f"random order, `tools/benchmark`; commit {commit}; "
        f"{context.get('processor', path.parent.name)}, {context['num_cpus']} cores; {context['date']}.\n"
    )

"""Tables of what tools/benchmark measures: Google Benchmark's files <operator>_cpu.json in a machine's folder."""

import json
import statistics

from report.markdown import number, table
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
    return sorted(folder.glob("*_cpu.json"))


def read_benchmarks(path):
    """{(sizes, implementation): {column: median over repetitions}} in the file's order of sizes and of implementations, and its context."""
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
    return dict(sorted(medians.items(), key=lambda item: (item[0][0], item[0][1]))), content["context"]


def benchmark_table(path):
    """A row an implementation at each size; medians over repetitions."""
    medians, _ = read_benchmarks(path)
    columns = [*PASSES.values(), *COUNTERS.values()]
    rows, before = [], None
    for (sizes, implementation), cells in medians.items():
        rows.append([sizes if sizes != before else "", implementation, *(number(cells.get(column)) for column in columns)])
        before = sizes
    return table(["", "", *columns], rows)


def benchmark_page(path):
    _, context = read_benchmarks(path)
    commit = context.get("commit", "unknown")[:12] + (" with uncommitted changes" if context.get("dirty") == "yes" else "")
    return (
        f"# {path.stem}\n\n{benchmark_table(path)}\nMedians of repetitions in random order, `tools/benchmark`; commit {commit}; "
        f"{context.get('processor', path.parent.name)}, {context['num_cpus']} cores; {context['date']}.\n"
    )

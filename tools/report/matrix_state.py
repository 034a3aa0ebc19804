"""matrix_state.json of optimized/benchmarks/cuda/matrix_state.py as a table: the linear family's times against the bytes that a call must move."""

from report.files import BadResult, read_json
from report.markdown import commit_words, number, table

MATRIX_STATE = "matrix_state"
MEMBERS = ("batch", "tokens", "heads", "rows", "columns", "gates", "direction", "microseconds", "floor_microseconds", "share")


def matrix_state_data(folder):
    """The folder's file, where it has one: a list of one or none."""
    return [path] if (path := folder / f"{MATRIX_STATE}.json").exists() else []


def matrix_state_table(path):
    """A row a case, its gates and direction; beside flash-linear-attention where the file has its time."""
    rows, rivals = [], False
    for line in read_json(path, ("rows",))["rows"]:
        for name in MEMBERS:
            if name not in line:
                raise BadResult(f"{path}: {line.get('case', 'a row')}: expected {name}, found none")
        rivals = rivals or "ratio" in line
        shape = f"{line['batch']} × {line['tokens']} × {line['heads']}, {line['rows']} × {line['columns']}"
        rows.append([line["case"], shape, line["gates"], line["direction"], number(line["microseconds"]), number(line["floor_microseconds"]), f"{line['share']:.2f}",
                     f"≥ {line['must']:.2f}, ≥ {line['aim']:.2f}" if "must" in line else "", line.get("reached", ""),
                     f"{line['ratio']:.2f}, {line['rival']}" if "ratio" in line else ""])
    head = ["case", "B × T × H, K × V", "gates", "direction", "µs", "floor, µs", "share", "must, aim", "reached", "× FLA"]
    return table(head if rivals else head[:-1], [row if rivals else row[:-1] for row in rows])


def matrix_state_page(path):
    found = read_json(path, ("rows", "rounds", "commit", "gpu", "driver", "torch", "date", "copy_gigabytes_per_second"))
    return (
        f"# {path.stem}\n\n{matrix_state_table(path)}\nThe floor is the time of a copy of as many bytes as inputs, gradients and outputs have, each counted once, at "
        f"{found['copy_gigabytes_per_second']:.0f} GB/s measured in the same process; share: floor over time. A time is a median over rounds with a cold L2 cache; backward is "
        "that of all inputs, without its forward. Gates: `usual` have a mean logit of 3, `near-one` of 8.\n\n"
        f"`optimized/benchmarks/cuda/matrix_state.py`, {found['rounds']} rounds; commit {commit_words(found['commit'], found.get('dirty'))}; {found['gpu']}, "
        f"driver {found['driver']}, torch {found['torch']}; {found['date']}.\n"
    )

"""matrix_state.json of optimized/benchmarks/cuda/matrix_state.py as a table: the linear family's times against the bytes that a call must move.
matrix_state_float16.json: of float16. matrix_state_near_one.json, matrix_state_near_one_second.json, matrix_state_rivals.json and
matrix_state_packages.json, of its options --fla and --peers: beside the operators of others, the first two with gates near one too."""

from report.files import BadResult, read_json
from report.markdown import commit_words, number, table

MATRIX_STATE = ("matrix_state", "matrix_state_float16", "matrix_state_near_one", "matrix_state_near_one_second", "matrix_state_rivals",
                "matrix_state_packages")
MEMBERS = ("batch", "tokens", "heads", "rows", "columns", "gates", "direction", "microseconds", "floor_microseconds", "share")


def matrix_state_data(folder):
    """The folder's files, of those that there can be."""
    return [path for name in MATRIX_STATE if (path := folder / f"{name}.json").exists()]


def matrix_state_table(path):
    """A row a case, its gates and direction; beside the fastest rival where the file has one's time."""
    rows, rivals, found = [], False, read_json(path, ("rows",))
    for line in found["rows"]:
        for name in MEMBERS:
            if name not in line:
                raise BadResult(f"{path}: {line.get('case', 'a row')}: expected {name}, found none")
        rivals = rivals or "ratio" in line
        shape = f"{line['batch']} × {line['tokens']} × {line['heads']}, {line['rows']} × {line['columns']}"
        rows.append([line["case"], shape, line["gates"], line["direction"], number(line["microseconds"]), number(line["floor_microseconds"]),
                     f"{line['share']:.2f}",
                     f"≥ {line['must']:.2f}, ≥ {line['aim']:.2f}" if "must" in line else "", line.get("reached", ""),
                     f"{line['ratio']:.2f}, {rival_name(line)}" if "ratio" in line else ""])
    head = ["case", "B × T × H, K × V", "gates", "direction", "µs", "floor, µs", "share", "must, aim", "reached"]
    head.append("× fastest rival" if "packages" in found else "× FLA")
    return table(head if rivals else head[:-1], [row if rivals else row[:-1] for row in rows])


def rival_name(line):
    """Of an operator, with its package where it is not FLA's."""
    return line["rival"] if line.get("rival_package", "fla") == "fla" else f"{line['rival_package']}: {line['rival']}"


def rivals_table(found):
    """A row of each package that has a time, a case and a direction."""
    rows = [[line["case"], line["gates"], line["direction"], rival_name(rival), f"{number(rival['rival_microseconds'])}, × {rival['ratio']:.2f}",
             f"{100 * rival['rival_error']:.2f} % of {rival['rival_error_of']}"] for line in found["rows"] for rival in line.get("rivals", ())]
    return table(["case", "gates", "direction", "rival", "µs, × ours", "largest error"], rows) if rows else ""


def rivals_words(found):
    """What the page says of the column of rivals, and of what has no time; nothing of a file without rivals."""
    several = "packages" in found
    failed = {f"{line['case']}, {line['gates']} gates, {line['direction']}": line["no_time_of"]
              for line in found["rows"] if "no_time_of" in line and (several or "ratio" not in line)}
    if not several:
        return "" if "fla" not in found else (
            f"× FLA: the time of the fastest operator of flash-linear-attention {found['fla']} with Triton {found['triton']} that finds the same, "
            "over ours, and its name.\n\n"
            + "".join(f"No time of FLA's, {name}: {'; '.join(reasons)}.\n\n" for name, reasons in failed.items()))
    versions = ", ".join(f"{package} {version}" for package, version in found["packages"].items())
    return (
        f"× fastest rival: the time of the fastest operator that finds the same, over ours, and its name. Rivals: {versions}; Triton "
        f"{found['triton']}. "
        f"The fastest of each:\n\n{rivals_table(found)}\n"
        + "".join(f"No time, {name}: {'; '.join(reasons)}.\n\n" for name, reasons in failed.items())
        + "".join(f"Not at hand: {package}: {reason}.\n\n" for package, reason in found.get("not_at_hand", {}).items()))


def older_words(path, found):
    """Of a file whose times of ours are older than the folder's own record: where that is."""
    record = path.with_name("matrix_state.json")
    if path == record or not record.exists():
        return ""
    later = read_json(record, ("date",))
    if later["date"] <= found["date"] or later.get("type") != found.get("type"):
        return ""
    return "Our times are of the commit below: [matrix_state](matrix_state.md) has later ones, without rivals.\n\n"


def matrix_state_page(path):
    found = read_json(path, ("rows", "rounds", "commit", "gpu", "driver", "torch", "date", "copy_gigabytes_per_second"))
    return (
        f"# {path.stem}\n\n{matrix_state_table(path)}\nThe floor is the time of a copy of as many bytes as inputs, gradients and outputs have, each "
        f"counted once, at "
        f"{found['copy_gigabytes_per_second']:.0f} GB/s measured in the same process; share: floor over time. A time is a median over rounds with a "
        f"cold L2 cache; backward is "
        f"that of all inputs, without its forward. Queries, keys and values are {found.get('type', 'bfloat16')}. "
        "Gates: `usual` have a mean logit of 3, `near-one` of 8.\n\n"
        f"{rivals_words(found)}"
        f"{older_words(path, found)}"
        f"`optimized/benchmarks/cuda/matrix_state.py`, {found['rounds']} rounds; commit {commit_words(found['commit'], found.get('dirty'))}; "
        f"{found['gpu']}, "
        f"driver {found['driver']}, torch {found['torch']}; {found['date']}.\n"
    )

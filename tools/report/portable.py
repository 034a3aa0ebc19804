"""portable.json of optimized/benchmarks/cuda/portable.py as a table: the kernels for every GPU, and beside them Hopper's, against their bounds."""

import json

from report.files import BadResult, read_json
from report.markdown import commit_words, number, table, with_band

PORTABLE = "portable"
MEMBERS = ("family", "head_dim", "dtype", "direction", "milliseconds", "beside", "beside_milliseconds", "work", "ratio", "ratio_spread", "at_most",
           "must",
           "aim", "reached")


def portable_data(folder):
    """The folder's file, where it has one: a list of one or none."""
    return [path] if (path := folder / f"{PORTABLE}.json").exists() else []


def portable_table(path):
    """A row a case and direction; of one that failed its error."""
    rows = []
    for line in read_json(path, ("rows",))["rows"]:
        case = [line["title"], f"D = {line['head_dim']}, {line['family']}"]
        if line["error"]:
            rows.append([*case, f"error: {line['error']}".replace("|", "\\|"), *[""] * 6])
            continue
        for name in MEMBERS:
            if name not in line:
                raise BadResult(f"{path}: {' '.join(case)}: expected {name}, found none")
        bound = "≤" if line["at_most"] else "≥"
        bounds = "" if line["must"] is None else f"{bound} {line['must']}, {bound} {line['aim']}"
        rows.append([*case, line["direction"], number(line["milliseconds"]), f"{line['beside']}, {number(line['beside_milliseconds'])}",
                     "" if line["work"] == 1 else number(line["work"]), with_band(line["ratio"], line["ratio_spread"]),
                     bounds, line["reached"]])
    return table(["row", "case", "direction", "ms", "beside, ms", "work over theirs", "ratio", "must, aim", "reached"], rows)


def portable_short_table(path, predictions):
    """A row a head dim: the kernels for every GPU beside FlashAttention-2 on the GPU of `path`, and their TFLOP/s on others by `predictions`, the file of
    tools/predict_gpus.py: forward, backward, and whether that is a prediction."""
    ratios = {(line["head_dim"], line["direction"]): number(line["ratio"]) for line in read_json(path, ("rows",))["rows"]
              if line["family"] == "portable" and line["row"] in ("gate", "flash") and not line["error"]}
    others = {}
    for line in (json.loads(predictions.read_text()) if predictions.exists() else []):
        if line["implementation"] == "lethe":
            low, high = line["low_tflops"], line["high_tflops"]
            others.setdefault(line["gpu"], {}).setdefault(line["head_dim"], {})[line["direction"].split()[0].rstrip(",")] = (
                low if low == high else f"{low} to {high}", line["kind"])

    def elsewhere(gpu, dim):
        of = others[gpu].get(dim, {})
        if not {"forward", "backward"} <= of.keys():
            return ""
        kinds = dict.fromkeys(kind for _, kind in of.values())
        return f"{of['forward'][0]}; {of['backward'][0]} ({', '.join(kinds)})"

    return table(["head dim", "forward, × FlashAttention-2", "backward, × FlashAttention-2", *(f"{gpu}, TFLOP/s" for gpu in others)],
                 [[str(dim), ratios.get((dim, "forward"), ""), ratios.get((dim, "backward"), ""), *(elsewhere(gpu, dim) for gpu in others)]
                  for dim in sorted({dim for dim, _ in ratios}) if not others or any(dim in of for of in others.values())])


def portable_page(path):
    found = read_json(path, ("rows", "rounds", "length", "commit", "gpu", "driver", "torch", "date"))
    shapes = dict.fromkeys(f"{line['row']}, D = {line['head_dim']}: {line['batch']} × {line['tokens']} × {line['heads']}"
                           for line in found["rows"] if not line["error"])
    left_out = dict.fromkeys(f"{line['row']}, D = {line['head_dim']}, {name}: {why.rstrip('.')}" for line in found["rows"]
                             for name, why in line.get("left_out", {}).items())
    without_bounds = ""
    if any(line.get("must", 0) is None for line in found["rows"]):
        without_bounds = " A row without must and aim compares with what other GPUs have: cuDNN's kernels by `wgmma` run on Hopper alone."
    return (
        f"# {path.stem}\n\n{portable_table(path)}\n`portable`: the kernels for every GPU (`LETHE_KERNELS=portable`); `hopper`: those of compute "
        f"capability 9.0. "
        "Both sides of a row ran in turn; the ratio is the other side's time per work over ours (window: ours over the other's), its median over "
        "rounds ± the "
        "standard deviation. Work: visited pairs beside our own calls, 1 beside Torch's attention, which has no gate. Forward keeps what the "
        "backward needs; "
        f"backward has the gate's gradient. Before its times each side was checked against float64, Torch's against ours with an open "
        f"gate.{without_bounds}\n\n"
        f"Batch × tokens × heads: {'; '.join(shapes) or 'none'}.{' Left out: ' + '; '.join(left_out) + '.' if left_out else ''}\n\n"
        f"`optimized/benchmarks/cuda/portable.py`, {found['rounds']} rounds, T = {found['length']}; commit "
        f"{commit_words(found['commit'], found.get('dirty'))}; {found['gpu']}, "
        f"driver {found['driver']}, torch {found['torch']}; {found['date']}.\n"
    )

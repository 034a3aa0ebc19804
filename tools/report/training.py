"""All training_step*.json of a machine, by tools/compare_training.py, as one table: a line a model and length."""

from report.files import BadResult, read_json
from report.markdown import table

TRAINING = "training"
NAMES = {"transformer-llama": "Transformer (LLaMA)", "fox-llama": "FoX (LLaMA)", "fox-pro": "FoX (Pro)", "fox-pro+acp": "FoX (Pro), pruned"}


def training_data(folder):
    """The files, the newest last."""
    return sorted(folder.glob("training_step*.json"), key=lambda path: read_json(path, ("date", "results"))["date"])


def training_table(folder):
    """Our tokens a second in the newest file that has the model, and over the rivals of one file each: ratios are never of two runs."""
    cases = {}
    for path in training_data(folder):
        rows_of = {}
        for result in read_json(path)["results"]:
            if result["case"].split(":")[-1] not in NAMES:
                raise BadResult(f"{path}: expected one of {', '.join(NAMES)}, found {result['case']}")
            if result.get("tokens_per_second"):
                rows_of.setdefault(result["case"], {})[result["row"]] = result
        for case, rows in rows_of.items():
            if ours := rows.pop("lethe", None):
                found = cases.setdefault(case, {})
                found["speed"] = ours["tokens_per_second"]
                if "peak_bytes" in ours:
                    found["GiB"] = ours["peak_bytes"] / 2**30
                for name, rival in rows.items():
                    found[name] = ours["tokens_per_second"] / rival["tokens_per_second"]

    def order(case):
        size, length, name = case.split(":")
        return int(size.removesuffix("m")), int(length), list(NAMES).index(name)

    def ratio(found, name):
        return f"{found[name]:.2f}" if name in found else ""

    lines = []
    for case in sorted(cases, key=order):
        found = cases[case]
        size, length, name = case.split(":")
        lines.append([f"{NAMES[name]}, {size.upper()}, {length}", f"{found['speed']:.0f}", ratio(found, "compiled"), ratio(found, "official"),
                      f"{1 / found['2 GPUs']:.2f}" if "2 GPUs" in found else "", f"{found['GiB']:.0f}" if "GiB" in found else ""])
    return table(["model, parameters, context", "tokens/s", "× compiled by PyTorch", "× official code", "two GPUs × one", "GiB"], lines)

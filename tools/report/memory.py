"""The memory page: five measures of each trained model side by side, from the measurements in its folder (measured/*.json)."""

import json
import math
from statistics import fmean

from report.files import read_json
from report.markdown import number, table

NOT_MEASURED = "not measured"
OF_MEMORY = ("forgetting_curve", "needle", "associative_recall", "gates")
COPIES, GUESSES = "copy_of_repeat_at_length", "lm_of_repeat_at_length"
WITHOUT_GATES = ("local", "additive", "delta")

TEXT = """Measured by the claims on memory; what no claim has measured of a model is said so, not guessed.

* **loss per doubling**: mean L(i) of the training length's second half minus that of its second quarter, nats; below zero: the model uses its context.
* **copies exactly / at all**: the longest text copied with over 99 % accuracy, and the longest copied better than text it has not read (tokens).
* **needle**: gain by the needle at the longest measured length within the training length, nats a token, and share of answers word for word.
* **recall**: accuracy of the architecture on multi-query associative recall, and on the keys with two values.
* **half-life** of the median head's gate (tokens), with the shares of local and global heads.

"""


def measurements(folder):
    """{measure: [(settings, records, points)]} of a model's folder.

    throws  BadResult naming a file that isn't one
    """
    found = {}
    for path in sorted((folder / "measured").glob("*.json")):
        file = read_json(path, ("measure", "settings", "value"))
        value = file["value"] if isinstance(file["value"], dict) else {}
        found.setdefault(file["measure"], []).append((file["settings"], value.get("records", []), value.get("points", [])))
    return found


def value_of(records, metric, length=None):
    """The value of a metric; None where there is none."""
    values = [record["value"] for record in records if record["metric"] == metric and length in (None, record["length"])]
    return values[0] if values and values[0] is not None else None


def shown(*values):
    return " / ".join("?" if value is None or math.isnan(value) else number(value) for value in values)


def loss_cell(found, context):
    for settings, _, points in found.get("per_token_loss", []):
        curves = [curve["value"] for curve in points if curve["quantity"] == "loss_at_position"]
        if settings.get("length") == context and curves and context >= 4 and None not in curves[0]:
            return shown(fmean(curves[0][context // 2:]) - fmean(curves[0][context // 4:context // 2]))
    return NOT_MEASURED


def curve_cell(found):
    """Fine and coarse length of the most measured curve: a file may hold one of its lengths or all."""
    curves = {}
    for settings, _, points in found.get("forgetting_curve", []):
        curve = curves.setdefault(json.dumps({name: value for name, value in settings.items() if name not in ("length", "steps")}, sort_keys=True),
                                  {})
        for column in points:
            if column["quantity"] in (COPIES, GUESSES):
                for length, value in zip(column["x"], column["value"]):
                    curve.setdefault(length, {COPIES: [], GUESSES: []})[column["quantity"]].append(value)
    if not any(curves.values()):
        return NOT_MEASURED
    means = {length: (fmean(of[COPIES]), fmean(of[GUESSES])) for length, of in max(curves.values(), key=len).items() if of[COPIES] and of[GUESSES]}
    return shown(max((length for length, (copy, _) in means.items() if copy > 0.99), default=0.0),
                 max((length for length, (copy, guess) in means.items() if copy - guess >= 0.01), default=0.0))


def needle_cell(found, context):
    for settings, records, _ in found.get("needle", []):
        within = [record["length"] for record in records if record["length"] <= context]
        if settings.get("prompt", "paper") == "paper" and within:
            length = max(within)
            return f"{shown(value_of(records, 'gain', length), value_of(records, 'exact_match', length))} at {length}"
    return NOT_MEASURED


def recall_cell(found):
    for settings, records, _ in found.get("associative_recall", []):
        if "mixer" not in settings.get("model", {}):  # else of another architecture
            return shown(value_of(records, "accuracy"), value_of(records, "updated_accuracy"))
    return NOT_MEASURED


def gates_cell(found, mixers):
    if all(mixer.get("name") in WITHOUT_GATES or mixer.get("forget_gate") == "none" for mixer in mixers):
        return "no gates"
    for _, records, _ in found.get("gates", []):
        return shown(*(value_of(records, metric) for metric in ("median_half_life", "local_heads", "global_heads")))
    return NOT_MEASURED


def memory_table(trainings):
    """A row a model that has at least one measure of memory; empty where none has."""
    rows = []
    for training in trainings:
        found = measurements(training.folder)
        if not any(measure in found for measure in OF_MEMORY):
            continue
        context = training.run["training"].get("context_length", 0)
        mixer = training.run["model"].get("mixer", {})
        rows.append([f"{training.title}, seed {training.run['training'].get('seed', 0)}", f"{context:,}", loss_cell(found, context),
                     curve_cell(found),
                     needle_cell(found, context), recall_cell(found), gates_cell(found, mixer if isinstance(mixer, list) else [mixer])])
    header = ["model", "training length", "loss per doubling", "copies exactly / at all", "needle: gain / word for word", "recall / of changed keys",
              "half-life / local / global"]
    return table(header, sorted(rows)) if rows else ""


def memory_part(trainings, faults):
    """The section of these trainings, a list of one or none."""
    from report.page import Part

    sound = []
    for training in trainings:
        with faults.of(training.folder / "measured"):
            if memory_table([training]):
                sound.append(training)
    return [Part("memory", "How far back each model remembers", TEXT + memory_table(sound))] if sound else []

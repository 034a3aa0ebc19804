"""The trained models of artefacts/models: what report.html and tools/plot.py show of them."""

import hashlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from report.curves import smoothed
from report.files import BadResult, read_json, read_sealed, reason
from report.markdown import number, table


@dataclass
class Training:
    folder: Path
    run: dict  # run.json
    done: dict  # done.json; empty for a training without an end
    log: list  # the lines of log.jsonl
    error: str = ""  # that ended the training

    @property
    def name(self):
        return self.folder.name

    @property
    def title(self):
        return f"{self.run['label']} ({self.name[:8]})" if self.run.get("label") else self.name

    def curve(self, quantity="loss"):
        """Tokens seen and values of a quantity, of the lines that have it."""
        lines = [line for line in self.log if is_number(line.get(quantity)) and is_number(line.get("tokens"))]
        return [line["tokens"] for line in lines], [line[quantity] for line in lines]

    @property
    def state(self):
        if isinstance(self.done.get("diverged"), str):
            return f"failed: {self.done['diverged']}"
        return "finished" if self.done else f"failed: {self.error}" if self.error else "not finished"

    @property
    def loss(self):
        """In nats, of validation."""
        return self.done["validation_loss"] if is_number(self.done.get("validation_loss")) else math.nan


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_log(path):
    """The lines of log.jsonl; a last one that is cut, as by a kill, is left out."""
    if not path.exists():
        return []
    texts = path.read_bytes().split(b"\n")
    log = []
    for number_of, text in enumerate(texts, start=1):
        try:
            line = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            if number_of == len(texts):
                break
            raise BadResult(f"{path}, line {number_of}: expected JSON, found {error}") from None
        if not isinstance(line, dict):
            raise BadResult(f"{path}, line {number_of}: expected a JSON object, found {type(line).__name__}")
        log.append(line)
    return log


def read_training(folder):
    """throws  BadResult naming the file that isn't what it should be"""
    run = read_json(folder / "run.json", ("model", "training"))
    for part in ("model", "training"):
        if not isinstance(run[part], dict):
            raise BadResult(f"{folder / 'run.json'}: {part}: expected a JSON object, found {type(run[part]).__name__}")
    done = read_sealed(folder / "done.json") if (folder / "done.json").exists() else {}
    check_run(folder, run, done)
    if done:
        check_log(folder / "log.jsonl", done.get("log"))
    else:
        check_begun_log(folder)
    error = read_sealed(folder / "failed.json").get("error", "") if (folder / "failed.json").exists() else ""
    return Training(folder, run, done, read_log(folder / "log.jsonl"), str(error))


# Of a mixer: an identity has it where it is another. As in identity() of experiments/training/training_config.cpp.
LEFT_OUT = {"prune_by_mass": False, "forget_bias": 0, "write_gate": False, "sigmoid": True}
LEFT_OUT_OF = {"deltanet": {"sum_norm": False}}  # of one mixer alone


def identified(value):
    """A member of a run as an identity has it: mixers without what is left out."""
    if isinstance(value, list):
        return [identified(each) for each in value]
    if isinstance(value, dict):
        left_out = LEFT_OUT | LEFT_OUT_OF.get(value.get("name"), {})
        return {name: member for name, member in value.items() if name not in left_out or member != left_out[name]}
    return value


def check_run(folder, run, done):
    """throws  BadResult where run.json is not the run that done.json identifies"""
    identity = json.loads(done.get("identity", "{}"))
    for part in ("model", "training"):
        for name, value in identity.get(part, {}).items():
            if identified(run[part].get(name)) != value:
                raise BadResult(f"{folder / 'run.json'}: expected the run of done.json ({part}.{name}: {value}), found {run[part].get(name)}")


def hash_of_lines(content):
    """h_n = SHA-256(h_{n−1} line_n), h_0 empty"""
    found = ""
    for line in content.split(b"\n")[:-1]:
        found = hashlib.sha256(found.encode() + line).hexdigest()
    return found


def check_log(path, position):
    """throws  BadResult where a log isn't that of the end of its training"""
    if position is None:
        return
    if not path.is_file():
        raise BadResult(f"{path}: expected the log of its training, found {'another kind of file' if os.path.lexists(path) else 'none'}")
    content = path.read_bytes()
    if (len(content), hash_of_lines(content)) != (position["bytes"], position["hash"]):
        raise BadResult(f"{path}: expected the {position['bytes']} bytes of its training, found "
                        f"{'others' if len(content) == position['bytes'] else len(content)}")


LONGEST_HEADER = 1 << 22  # bytes of a line of a checkpoint


def checkpoint_position(folder):
    """The place in log.jsonl that the header of the newest checkpoint has; None without one.

    throws  BadResult naming the checkpoint that has none
    """
    for path in (folder / "checkpoint.pt", folder / "checkpoint.previous.pt"):  # a training that goes on may just rename the first
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise BadResult(f"{path}: expected a regular file, found another")
            with open(path, "rb") as file:
                first, header = file.readline(LONGEST_HEADER), file.readline(LONGEST_HEADER)
        except FileNotFoundError:
            continue
        try:
            position = json.loads(header)["log"]
            if first.startswith(b"lethe checkpoint ") and isinstance(position["bytes"], int):
                return position["bytes"], position["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise BadResult(f"{path}: expected a checkpoint of lethe with the place in its log, found another kind of file")
    return None


def check_begun_log(folder):
    """The log of a training without an end, up to its checkpoint; one that goes on meanwhile appends alone.

    throws  BadResult where those lines aren't the checkpoint's
    """
    position, path = checkpoint_position(folder), folder / "log.jsonl"  # the log is read last: it has the checkpoint's lines, and may have more
    if position is None:
        return
    begin = path.read_bytes()[:position[0]] if path.exists() else b""
    if (len(begin), hash_of_lines(begin)) != position:
        raise BadResult(f"{path}: expected the {position[0]} bytes of its checkpoint, found {'others' if len(begin) == position[0] else len(begin)}")


def sound_trainings(models):
    """(the trainings below a folder by name, a line on each damaged one)"""
    trainings, faults = [], []
    if os.path.lexists(models) and not models.is_dir():
        faults.append(f"{models}: expected a folder of models, found another kind of file")
    for folder in sorted(path for path in models.glob("*") if path.is_dir()):
        try:
            trainings.append(read_training(folder))
        except BadResult as error:
            faults.append(str(error))
        except OSError as error:
            faults.append(f"{error.filename or folder}: expected a file, found {reason(error)}")
    return trainings, faults


def trainings_table(trainings):
    rows = []
    for training in trainings:
        model, options = training.run["model"], training.run["training"]
        mixers = model.get("mixer", {}) if isinstance(model.get("mixer"), list) else [model.get("mixer", {})]
        tokens, losses = training.curve()
        rows.append([
            f"`{training.name}`", str(training.run.get("label", "")), training.state,
            " ".join(str(mixer.get("name", "?")) for mixer in mixers if isinstance(mixer, dict)),
            f"{model.get('layers', '?')} × {model.get('width', '?')}", str(options.get("corpus", "?")),
            f"{tokens[-1] if tokens else 0:,}", number(losses[-1]) if losses else "", number(training.loss),
            str(training.done.get("time", ""))[:10],
        ])
    return table(["model", "label", "state", "mixer", "layers × width", "corpus", "tokens", "last training loss (nats) ↓", "validation loss (nats) ↓",
                  "date"],
                 [[cell.replace("|", "\\|") for cell in row] for row in rows])


def draw_trainings(trainings):
    """Training losses over the tokens seen, smoothed over a fiftieth of each curve; validation losses as points."""
    from report.style import COLOURS, count_tokens, legend_below, look, panels

    figure, [[axes]] = panels(1, width=9, height=4.6 + 0.1 * len(trainings))
    for place, training in enumerate(trainings):
        tokens, losses = training.curve()
        style = look("", place)
        axes.plot(tokens, smoothed(losses, max(1, len(losses) // 50 | 1)), label=training.title, **style)
        seen, validation = training.curve("validation_loss")
        if not seen and tokens and math.isfinite(training.loss):
            seen, validation = [tokens[-1]], [training.loss]
        axes.plot(seen, validation, "o", color=style["color"], markersize=5, markeredgecolor="white")
    axes.plot([], [], "o", color=COLOURS[-1], label="validation")
    count_tokens(axes)
    axes.set_xlabel("training tokens")
    axes.set_ylabel("loss (nats), lower is better")
    legend_below(axes)
    return figure

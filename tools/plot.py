#!/usr/bin/env python3
"""Draws the loss curves of trained models, or exports their logs to TensorBoard.

A name is a model's folder, its name below artefacts/models, or a beginning that only one name has; none: all models.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import sys
from pathlib import Path

from report.files import BadResult, folder
from report.trainings import draw_trainings, is_number, read_training, sound_trainings

ROOT = Path(__file__).resolve().parent.parent
FORMATS = (".svg", ".png", ".pdf")


def named(models, name):
    """The folder of a name as users type it."""
    if (Path(name) / "run.json").is_file():
        return Path(name)
    folders = [path for path in sorted(models.glob("*")) if path.is_dir()]
    matching = [path for path in folders if path.name == name] or [path for path in folders if path.name.startswith(name)]
    if len(matching) != 1:
        found = f", which begins {', '.join(path.name for path in matching)}" if matching else ""
        raise BadResult(f"model: expected the folder or name of a model (lethe list models shows them), found '{name}'{found}")
    return matching[0]


def without_curve(trainings):
    """A line on each training whose log has nothing to draw."""
    return [f"{training.folder / 'log.jsonl'}: expected a line with tokens and loss, found none" for training in trainings if not training.curve()[0]]


def chosen(models, names):
    """The trainings with a curve: those named, each of which has to have one, or all."""
    if names:
        trainings = [read_training(named(models, name)) for name in dict.fromkeys(names)]
        for fault in without_curve(trainings):
            raise BadResult(fault)
        return trainings
    trainings, faults = sound_trainings(models)
    for fault in faults + without_curve(trainings):
        print(f"plot: left out: {fault}", file=sys.stderr)
    trainings = [training for training in trainings if training.curve()[0]]
    if not trainings:
        raise BadResult(f"models: expected one with a log below {models}, found none")
    return trainings


def draw(trainings, output):
    from report.style import save

    if output.suffix.lower() not in FORMATS and not output.is_char_device():
        raise BadResult(f"--output: expected a file that ends with {', '.join(FORMATS)}, found {output}")
    if output.is_dir() or not output.parent.is_dir():
        raise BadResult(f"--output: expected a file in a folder that exists, found {output}")
    save(draw_trainings(trainings), output)
    print(output)


def export(trainings, place):
    """A run of TensorBoard a model: every number of a line of the log as a scalar over the tokens seen."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadResult(f"--tensorboard: expected the Python package tensorboard, found none; {sys.executable} -m pip install tensorboard") from None
    for training in trainings:
        with SummaryWriter(str(place / training.name)) as writer:
            for line in training.log:
                for name, value in line.items():
                    if is_number(value) and name not in ("step", "tokens"):
                        writer.add_scalar(name, value, int(line.get("tokens", line.get("step", 0))))
    print(f"tensorboard --logdir {place}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--output", type=Path, help="the picture: a file that ends with .svg, .png or .pdf (default: losses.svg)")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write event files for TensorBoard there, and no picture without --output")
    parser.add_argument("--root", type=folder, default=ROOT, help="the folder with artefacts/ (default: the checkout that holds this script)")
    arguments = parser.parse_args()
    trainings = chosen(arguments.root / "artefacts" / "models", arguments.names)
    if arguments.tensorboard:
        export(trainings, arguments.tensorboard)
    if arguments.output or not arguments.tensorboard:
        draw(trainings, arguments.output or Path("losses.svg"))


if __name__ == "__main__":
    main()

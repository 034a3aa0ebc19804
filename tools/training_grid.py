#!/usr/bin/env python3
"""Training speed at three sizes and three contexts, on one GPU: FoX (Pro) with and without pruning, Transformer (Pro) and (LLaMA). ACP Fig. 2 right,
FoX Table 4.

usage: tools/training_grid.py [--build build/cuda] [--sizes 760m 360m 125m] [--models fox-pro fox-pro+acp …] [--contexts 4096 8192 16384] [--rounds 4]
                              [--slot 0.3] [--until SECONDS] [--output results/h200/training_grid.json]

A size and model is a process, lethe bench --serve, which takes its steps at one context after the other: forward, backward, clipping and AdamW on
32768 tokens in bfloat16 with float32 master weights, weights and tokens drawn from a seed. The processes of a size are alive together. At each
context they take a slot of about `slot` seconds each in every round, in a random order, and a cell is the median of its rounds; a process at rest
keeps weights and moments alone, and takes a first step in its slot that is not timed. Of models that have no room beside one another (760M on a GPU
of 80 GB: 67 GiB a step, 14 at rest) the later ones come after the earlier ones' cells, and the page says so.

FoX's gates are set by hand, seven heads of ten forget within tens of tokens, whether it prunes or not: trained ones need weights, which a checkout
doesn't hold.

Writes the file and its page after every size and context. The same call goes on where one was stopped, after --until seconds too; a file of another
commit or GPU is refused. A process that fails or gives no answer for --row-limit seconds costs its own cells alone. Exit status: 0 where every cell
is there, 75 where --until left some, else 1.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)
import argparse
import json
import pathlib
import statistics
import sys
import time

from compare_training import LOG_TOLERANCE, TOKENS, VOCABULARY, certificate
from report.files import read_json, write_whole
from report.training_grid import MODELS, training_grid_page
from training_rows import Row, times_in_turn

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = ["760m", "360m", "125m"]  # the longest first
CONTEXTS = [4096, 8192, 16384]
OF_ONE_RUN = ("gpu", "driver", "torch", "commit")
CONTINUES = 75
ROOM = 1.05, 1 << 30  # that a process needs: its steps' bytes times the one, for what lies between them, and the other beside them


def command(options, size, model, context):
    """lethe bench on a size and model, from this context on."""
    gates = ["--gates", "bimodal"] if model.startswith("fox") else []
    pruning = ["--set", f"log_pruning_tolerance={LOG_TOLERANCE}"] if model.endswith("+acp") else []
    return [f"{options.build}/bin/lethe", "bench", "--serve", "--size", size, "--architecture", model.removesuffix("+acp"), "--context", str(context),
            "--device", "cuda", "--batch-tokens", str(TOKENS), "--learning-rate", "1e-3", "--set", "compute_dtype=bfloat16", "--set",
            f"vocabulary={VOCABULARY}",
            *gates, *pruning]


def started(options, size, models, context):
    """The rows of the first of these models, as many as the GPU has room for beside one another: one that takes steps, and the others at rest."""
    rows = []
    for model in models:
        rows.append(Row(model, command(options, size, model, context), case=size, limit=options.row_limit))
        rows[-1].wait_until_ready()
        free = rows[-1].rest() if rows[-1].error is None else None
        if free is not None and free < ROOM[0] * rows[-1].figures["peak_bytes"] + ROOM[1]:
            break
    return rows


def cells_at(rows, size, context, rounds, slot):
    """The cells of a size's models at a context, with the seconds a step of each round, and with the others that they took turns with; or with an
    error."""
    figures, steps = {}, {}

    def take(row):
        if row not in figures:
            found = row.ask(f"context {context}", f"a step at {context}")
            if found is None:
                return None
            figures[row] = json.loads(found)
        trial = row.take(1)  # takes memory again
        if trial is None:
            return None
        seconds = row.take(steps.setdefault(row, max(1, round(slot / trial))))
        return seconds if seconds is not None and row.rest() is not None else None

    times = times_in_turn([row for row in rows if row.error is None], rounds, take)
    others = {row: [other.name for other in times if other is not row] for row in times}
    return [{"size": size, "model": row.name, "context": context, "error": row.error,
             **(figures[row] | {"seconds_a_step": times[row], "in_turn_with": others[row]} if row in times else {})} for row in rows]


def begun(path, provenance):
    """The cells of the file that have a time.

    throws  ValueError for a file of another run
    """
    if not path.exists():
        return []
    found = read_json(path, ("cells",))
    cells = [cell for cell in found["cells"] if not cell["error"]]
    for name in OF_ONE_RUN:
        if cells and found[name] != provenance[name]:
            raise ValueError(f"--output: expected cells of {name} {provenance[name]}, found {path} of {found[name]}")
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/cuda"))
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS, help="each divides the tokens of a step, 32768")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--slot", type=float, default=0.3, help="seconds of a process in a round")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help="begin no context of a size after so long")
    parser.add_argument("--row-limit", type=float, default=120.0, metavar="SECONDS", help="for a process's first steps, and for any later answer")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "results/h200/training_grid.json")
    options = parser.parse_args()
    start = time.monotonic()

    def is_over():
        return time.monotonic() - start > options.until

    provenance = certificate()
    try:
        if any(context < 1 or TOKENS % context for context in options.contexts):
            raise ValueError(f"--contexts: expected divisors of {TOKENS}, found {' '.join(map(str, options.contexts))}")
        cells = begun(options.output, provenance)
    except ValueError as error:
        sys.exit(f"training_grid: {error}")
    asked = [(size, model, context) for size in options.sizes for model in options.models for context in options.contexts]

    def is_there(cell):
        return any(found["error"] is None and (found["size"], found["model"], found["context"]) == cell for found in cells)

    def add(found):
        cells.extend(found)
        for cell in found:
            told = f"{cell['tokens'] / statistics.median(cell['seconds_a_step']):>10.0f} tokens/s" if cell["error"] is None else f"  {cell['error']}"
            print(f"{time.monotonic() - start:6.1f} s  {cell['size']} {cell['model']:18}{cell['context']:>6}{told}", flush=True)
        write_whole(options.output,
                    json.dumps({**provenance, "rounds": options.rounds, "slot_seconds": options.slot, "cells": cells}, indent=1) + "\n")
        write_whole(options.output.with_suffix(".md"), training_grid_page(options.output))

    for size in options.sizes:
        models = [model for model in options.models if not all(is_there((size, model, context)) for context in options.contexts)]
        while models and not is_over():
            left = [context for context in options.contexts if not all(is_there((size, model, context)) for model in models)]
            rows = started(options, size, models, left[0])
            try:
                for context in left:
                    if not is_over():
                        add(cells_at([row for row in rows if not is_there((size, row.name, context))], size, context, options.rounds, options.slot))
            finally:
                for row in rows:
                    row.end()
            models = models[len(rows):]
    if any(cell["error"] for cell in cells):
        return 1
    return 0 if all(map(is_there, asked)) else CONTINUES


if __name__ == "__main__":
    sys.exit(main())

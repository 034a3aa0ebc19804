#!/usr/bin/env python3
"""Makes tables, figures and pages from the results that are there.

For every folder of results/: <claim>.md, <claim>.svg, <operator>_cpu.md, <operator>_cuda.md, portable.md, matrix_state.md, training_grid.md,
attention_throughput.md with a figure a length, and report.html, which also shows one's own trainings of artefacts/models and the memory of all of
them; for all of them results/README.md. And in every README file of the checkout the tables between markers:

    <!-- table:MACHINE/NAME -->
    <!-- /table -->

MACHINE is a folder of results/; NAME is "verdicts", "papers" (a line each), a claim (its numbers), CLAIM.statements (its comparisons), a file of
tools/benchmark, OPERATOR_cpu, or of tools/gpu_check, OPERATOR_cuda, "portable", "matrix_state", "attention_throughput" (".short"), its ratios,
"precision", errors in its log, of tools/gpu_profile, "backward_profile", or of tools/compare_training.py, "training", of tools/training_grid.py,
"training_grid". all/items is the table of every item of the papers.

A damaged file is named on standard error and in report.html, and everything else is made. Exit status: 1 where there was one.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from report.benchmarks import benchmark_files, benchmark_page
from report.files import BadResult, folder, reason, write_whole
from report.items import all_folders, items_text
from report.matrix_state import matrix_state_data, matrix_state_page
from report.memory import memory_part
from report.portable import portable_data, portable_page
from report.results import Faults, machine_folders, read_once, sound_claims
from report.tables import UnknownTable, claim_page, index, readmes, use, with_tables
from report.throughput import figure_name, throughput_data, throughput_page
from report.training_grid import training_grid_data, training_grid_page
from report.trainings import draw_trainings, sound_trainings, trainings_table

ROOT = Path(__file__).resolve().parent.parent


def throughput_part(data, faults):
    """The section of a file of tools/compare_attention.py: its figures and its page."""
    from report.page import Part
    from report.style import save
    from report.throughput_figures import throughput_figures

    with faults.of(data):
        page, figures = throughput_page(data), throughput_figures(data)
        for length, figure in figures.items():
            save(figure, data.parent / figure_name(length))
        write_whole(data.with_suffix(".md"), page)
        names = [(f"{data.parent.name}-{Path(figure_name(length)).stem}", data.parent / figure_name(length)) for length in figures]
        text = "\n".join(line for line in page.splitlines()[1:] if not line.startswith("!["))
        return [Part(f"{data.parent.name}-{data.stem}", f"Attention kernels beside one another ({data.parent.name})", text, names,
                     "A longer bar is faster: full bars forward, hatched ones backward, ours in blue.")]
    return []


def measurement_parts(root, folder, claims, faults):
    """The sections of a folder's other measurements, and of the throughput that its claims judge."""
    from report.page import Part

    judged = [root / claim.certificate.get("settings", {}).get("data", "") for claim in claims]
    of_claims = [path for path in judged if path.suffix == ".csv" and path.exists()]
    parts = [part for data in dict.fromkeys([*throughput_data(folder), *of_claims]) for part in throughput_part(data, faults)]
    for path, page_of in [*((path, benchmark_page) for path in benchmark_files(folder)), *((path, portable_page) for path in portable_data(folder)),
                          *((path, matrix_state_page) for path in matrix_state_data(folder)),
                          *((path, training_grid_page) for path in training_grid_data(folder))]:
        with faults.of(path):
            page = page_of(path)
            write_whole(path.with_suffix(".md"), page)
            parts.append(Part(path.stem, path.stem.replace("_", " "), page.split("\n", 1)[1]))
    return parts


def own_trainings(root, models, folders, faults):
    """The trainings that no claim asked for, by the machine that trained them."""
    trainings, damaged = sound_trainings(models)
    faults.extend(damaged)
    asked = {run.get("artefact") for folder in folders for claim in sound_claims(root, folder, use)[0] for run in claim.certificate.get("runs", [])}
    sources = [training.run["conversion"].get("source") for training in trainings  # of claims on conversions
               if training.name in asked and isinstance(training.run.get("conversion"), dict)]
    own = {}
    for training in trainings:
        if training.name not in asked and training.run not in sources and training.log:
            machine = training.done.get("machine")
            own.setdefault(machine.get("name") if isinstance(machine, dict) else None, []).append(training)
    return own


def training_part(models, folder, trainings):
    from report.page import Part
    from report.style import save

    picture = models.parent / f"trainings-{folder.name}.svg"  # not in results/, which git watches
    save(draw_trainings(trainings), picture)
    return Part("trainings", "Own trainings", trainings_table(trainings), [("trainings", picture)],
                "Lower is better. A curve that still falls at its end gains from more tokens; validation points far above it show overfitting.")


def draw_claim(root, folder, number):
    """The figure of a folder's claim.

    returns  what is damaged
    """
    from report.style import save  # matplotlib starts slowly, and --tables doesn't need it

    claim, faults = sound_claims(root, folder, use)[0][number], Faults()
    with faults.of(claim.home / "figure.py"):
        save(claim.figure(), folder / f"{claim.name}.svg")
    return faults


def make_folder(root, models, folder, own, earlier):
    """The pages of one folder of results/, whose claims' figures are drawn, and the figures of its other measurements.

    earlier  faults of what is beside the folder, and of its figures: also in its report
    returns  these and the folder's own
    """
    from report.page import Part, page

    faults = Faults(earlier)
    claims, damaged = sound_claims(root, folder, use)
    faults.extend(damaged)
    for claim in claims:
        write_whole(folder / f"{claim.name}.md", claim_page(claim))
    parts = measurement_parts(root, folder, claims, faults)
    if claims and (root / "experiments/papers/items.csv").exists():
        with faults.of(root / "experiments/papers/items.csv"):
            parts.append(Part("items", "Every table, figure and proposition", items_text(root, all_folders(root, folder.parent), use)))
    asked = {run.get("artefact") for claim in claims for run in claim.certificate.get("runs", [])} | {training.name for training in own}
    parts += memory_part([training for training in sound_trainings(models)[0] if training.name in asked], faults)
    if own:
        with faults.of(models):
            parts.append(training_part(models, folder, own))
    if claims or parts:
        write_whole(folder / "report.html", page(folder.name, claims, parts, faults))
        print(f"report: {folder / 'report.html'}", flush=True)
    return faults


def make_pages(root, results, models):
    faults = Faults()
    folders = machine_folders(results)
    own = own_trainings(root, models, folders, faults)
    unfinished = own.pop(None, [])  # on a machine that only the end of a training names
    places = [*folders, *(results / name for name in own if results / name not in folders)]
    if unfinished and not places:
        places = [results / "trainings"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    if (root / "experiments/papers/items.csv").exists():
        for folder in all_folders(root, results):  # read before the fork: every process needs them
            sound_claims(root, folder, use)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            drawn = [[pool.submit(draw_claim, root, place, number) for number in range(len(sound_claims(root, place, use)[0]))]
                     for place in places]
            made = [pool.submit(make_folder, root, models, place, own.get(place.name, []) + (unfinished if place == places[0] else []),
                                [*faults, *(line for figure in figures for line in figure.result())])
                    for place, figures in zip(places, drawn)]
            for folder in made:
                faults.extend(line for line in folder.result() if line not in faults)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if folders:
        with faults.of(results / "README.md"):
            write_whole(results / "README.md", index(root, results))
    if not places:
        print(f"report: nothing to report, {results} is empty")
    return faults


def rewrite_tables(root, results):
    faults = Faults()
    for path in readmes(root):
        try:
            write_whole(path, with_tables(path.read_text(), root, results))
        except (UnknownTable, BadResult, OSError) as error:
            faults.append(f"{path}: {reason(error)}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables in README files: fast, no figures")
    parser.add_argument("--root", type=folder, default=ROOT, help="the checkout (default: the one that holds this script)")
    parser.add_argument("--results", type=Path, help="the folder of results (default: results in the checkout)")
    parser.add_argument("--models", type=Path, help="the folder of one's own trainings (default: artefacts/models in the checkout)")
    arguments = parser.parse_args()
    results = arguments.results or arguments.root / "results"
    models = arguments.models or arguments.root / "artefacts" / "models"
    if os.path.lexists(results) and not results.is_dir():
        raise BadResult(f"--results: expected a folder, found {results}")
    with read_once():
        faults = [] if arguments.tables else make_pages(arguments.root, results, models)
        if results.resolve() == (arguments.root / "results").resolve():  # README files show the checkout's results, not one's own
            faults += rewrite_tables(arguments.root, results)
    for line in dict.fromkeys(faults):
        print(f"report: {line}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()

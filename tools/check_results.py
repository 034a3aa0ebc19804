#!/usr/bin/env python3
"""Checks that results/ is whole and that every table agrees with the data.

* every CSV has the columns of its kind and the certificate of its claim beside it, with commit, machine and versions;
* every <claim>.md, <operator>_cpu.md, <operator>_cuda.md, portable.md, matrix_state.md, attention_throughput.md, training_grid.md and
results/README.md is what tools/report.py writes
  from the data now;
* so is every table between markers in a README file;
* a claim that judges a file of measurements has judged the file that is there;
* every file, test and statement that a row of experiments/papers/items.csv names is there.

Prints a line for each fault and exits with 1 where there is one.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import hashlib
import sys
from pathlib import Path

from report.benchmarks import benchmark_files, benchmark_page
from report.files import BadResult, folder, read_json
from report.items import all_folders, faults_of_items
from report.matrix_state import matrix_state_data, matrix_state_page
from report.portable import portable_data, portable_page
from report.results import COLUMNS, POINT_COLUMNS, fault, machine_folders, read_once, read_table, sound_claims
from report.tables import UnknownTable, claim_page, index, readmes, use, with_tables
from report.throughput import throughput_data, throughput_page
from report.training_grid import training_grid_data, training_grid_page

ROOT = Path(__file__).resolve().parent.parent
CERTIFIED = ("commit", "dirty", "command_line", "time", "machine", "versions")


def faults_of_files(folder):
    """CSV files with other columns than they should have, or without their certificate."""
    for path in sorted(folder.glob("*.csv")):
        is_points = path.name.endswith(".points.csv")
        try:
            read_table(path, POINT_COLUMNS if is_points else COLUMNS)
        except BadResult as error:
            yield str(error)
        certificate = path.with_name(path.name.removesuffix(".csv").removesuffix(".points") + ".json")
        if not certificate.exists():
            yield f"{path}: expected its certificate {certificate.name}, found none"
            continue
        try:
            members = read_json(certificate)
        except BadResult as error:
            yield str(error)
            continue
        for name in CERTIFIED:
            if name not in members:
                yield f"{certificate}: expected {name}, found none"


def stale_data(root, claim):
    """A claim that judged another file of measurements than there is now."""
    name = claim.certificate.get("settings", {}).get("data")
    if not name or (claim.certificate["dataset"] is None and not (root / name).exists()):  # judged before there is one: all is open
        return
    if not (root / name).is_file():
        yield f"{claim.folder / claim.name}.json: expected {name}, which it judges, found none"
    elif hashlib.sha256((root / name).read_bytes()).hexdigest() != (claim.certificate["dataset"] or {}).get("content"):
        yield f"{claim.folder / claim.name}.json: judges another {name} than there is; run lethe run {claim.name}"


def difference(path, expected):
    """Says where a generated text isn't what the data give."""
    if not path.exists():
        yield f"{path}: expected it beside the data, found none; run tools/report.py"
    elif path.read_text() != expected:
        yield f"{path}: differs from the data; run tools/report.py"


def faults(root, results):
    folders = machine_folders(results)
    of_files = [fault for folder in folders for fault in faults_of_files(folder)]
    if of_files:  # tables of broken files add nothing
        yield from of_files
        return
    for folder in folders:
        claims, damaged = sound_claims(root, folder, use)
        yield from damaged
        for claim in claims:
            yield from difference(folder / f"{claim.name}.md", claim_page(claim))
            yield from stale_data(root, claim)
        for files, page in ((benchmark_files(folder), benchmark_page), (portable_data(folder), portable_page),
                            (matrix_state_data(folder), matrix_state_page),
                            (throughput_data(folder), throughput_page), (training_grid_data(folder), training_grid_page)):
            for path in files:
                try:
                    yield from difference(path.with_suffix(".md"), page(path))
                except Exception as error:  # noqa: BLE001 (any damage)
                    yield fault(path, error)
    if folders:
        yield from difference(results / "README.md", index(root, results))
    try:
        yield from faults_of_items(root, all_folders(root, results), use)
    except BadResult as error:
        yield str(error)
    for path in readmes(root):
        try:
            yield from difference(path, with_tables(path.read_text(), root, results))
        except (UnknownTable, BadResult) as error:
            yield f"{path}: {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=folder, default=ROOT, help="the checkout (default: the one that holds this script)")
    parser.add_argument("--results", type=folder, help="the folder of results (default: results in the checkout)")
    arguments = parser.parse_args()
    with read_once():
        found = list(faults(arguments.root, arguments.results or arguments.root / "results"))
    for fault in found:
        print(fault)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes tables, figures and pages from the results that are there.

For every folder of results/: <claim>.md, <claim>.svg, <operator>_cpu.md, <operator>_cuda.md, attention_throughput.md with a figure a
length, and report.html; for all of them results/README.md. And in every README file of the checkout the tables between markers:

    <!-- table:MACHINE/NAME -->
    <!-- /table -->

MACHINE is a folder of results/; NAME is "verdicts", "papers" (a line each), a claim (its numbers), CLAIM.statements (its comparisons), a file of
tools/benchmark, OPERATOR_cpu, or of tools/gpu_check, OPERATOR_cuda, "attention_throughput" (".short"), its ratios, "precision", errors in its log,
or of tools/gpu_profile, "backward_profile".
"""

import argparse
import sys
from pathlib import Path

from report.benchmarks import benchmark_files, benchmark_page
from report.results import BadResult, load_machine, machine_folders
from report.tables import UnknownTable, claim_page, index, readmes, with_tables
from report.throughput import figure_name, throughput_data, throughput_page

ROOT = Path(__file__).resolve().parent.parent


def write(path, text):
    """Writes beside the place and renames, and only what changed."""
    if path.exists() and path.read_text() == text:
        return
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.replace(path)


def make_pages(root, results):
    from report.page import page
    from report.style import save  # matplotlib starts slowly, and --tables doesn't need it
    from report.throughput_figures import throughput_figures

    folders = machine_folders(results)
    for folder in folders:
        claims = load_machine(root, folder)
        for claim in claims:
            save(claim.figure(), folder / f"{claim.name}.svg")
            write(folder / f"{claim.name}.md", claim_page(claim))
        for path in benchmark_files(folder):
            write(path.with_suffix(".md"), benchmark_page(path))
        for path in throughput_data(folder):
            for length, figure in throughput_figures(path).items():
                save(figure, folder / figure_name(length))
            write(path.with_suffix(".md"), throughput_page(path))
        if claims:
            write(folder / "report.html", page(folder.name, claims))
            print(f"report: {folder / 'report.html'}")
    if folders:
        write(results / "README.md", index(root, results))
    else:
        print(f"report: nothing to report, {results} is empty")


def rewrite_tables(root, results):
    for path in readmes(root):
        write(path, with_tables(path.read_text(), root, results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables in README files: fast, no figures")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: the one that holds this script)")
    parser.add_argument("--results", type=Path, help="the folder of results (default: results in the checkout)")
    arguments = parser.parse_args()
    results = arguments.results or arguments.root / "results"
    try:
        if not arguments.tables:
            make_pages(arguments.root, results)
        rewrite_tables(arguments.root, results)
    except (BadResult, UnknownTable) as error:
        sys.exit(f"report: {error}")


if __name__ == "__main__":
    main()

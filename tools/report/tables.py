"""Markdown from results: the page of a claim, the index, and the tables inside README files."""

import os
import re
from pathlib import Path

from report.benchmarks import benchmark_files, benchmark_table
from report.markdown import commit_words, number, table, with_band
from report.precision import PRECISION, precision_log, precision_table
from report.profile import PROFILE, profile_data, profile_table
from report.results import load_machine, machine_folders
from report.throughput import ratio_table, short_ratio_table, throughput_data

MARKER = re.compile(r"(<!-- table:(?P<machine>[\w.-]+)/(?P<name>[\w.-]+) -->\n)(?P<body>.*?)(<!-- /table -->)", re.DOTALL)
UNSEARCHED = {".git", ".venv", "build", "artefacts"}  # folders without a README of ours


class UnknownTable(Exception):
    """A marker in a README that names a table that no result gives."""


def comparisons_table(claim):
    def measured(comparison):
        return with_band(comparison["measured"], comparison["band"]) + unit(comparison)

    def unit(comparison):
        return "" if comparison["unit"] in ("", "1") else f" {comparison['unit']}"

    def paper(comparison):
        value, expected = comparison["paper"], comparison["expected"]
        if value is not None:
            return f"{value:.3g}"
        if expected["low"] is not None and expected["high"] is not None:
            return f"{expected['low']:.3g} to {expected['high']:.3g}"
        if expected["high"] is not None:
            return f"at most {expected['high']:.3g}"
        if expected["low"] is not None:
            return f"at least {expected['low']:.3g}"
        return {1: "> 0", -1: "< 0", 0: ""}[expected["direction"]]

    rows = []
    for comparison in claim.comparisons:
        emphasis = "**" if comparison["headline"] else ""
        rows.append([
            f"{emphasis}{comparison['statement']}{emphasis}", comparison["source"], paper(comparison), measured(comparison),
            comparison["verdict"],
        ])
    return table(["statement", "source", claim.stated_by, "measured", "verdict"], rows)


def numbers_table(claim):
    """Variants (at each length) × metrics: means over seeds, with the paper's own numbers beside them."""
    units = {row["metric"]: row["unit"] for row in claim.records}
    columns = list(dict.fromkeys((row["metric"], row["implementation"]) for row in claim.records))
    rows_of = sorted({(claim.variants().index(row["variant"]), row["length"]) for row in claim.records})
    in_paper = {row["metric"] for row in claim.paper}
    of_paper = [metric for metric in units if metric in in_paper]

    def title(metric, implementation):
        words = claim.words(metric)
        if units[metric] not in ("1", ""):
            words += f" ({units[metric]})"
        return words if implementation == "lethe" else f"{words}, {implementation}"

    def entry(variant, length, metric, implementation):
        cell = claim.cell(variant, metric, length, implementation)
        if cell is None:
            return ""
        with_seeds = len(cell.values) > 1 and metric != "parameters"
        return with_band(cell.mean, cell.stddev) if with_seeds else number(cell.mean, metric)

    rows = []
    for place, length in rows_of:
        variant = claim.variants()[place]
        of_variant = [claim.paper_value(variant, metric) for metric in of_paper]
        rows.append([
            variant,
            length if len({length for _, length in rows_of}) > 1 else "",
            *("" if value is None else f"{value:g}" for value in of_variant),
            *(entry(variant, length, *column) for column in columns),
        ])
    header = ["", "length", *(f"{claim.stated_by}: {claim.words(m)}" for m in of_paper), *(title(*column) for column in columns)]
    return table(header, rows)


def provenance(claim):
    c = claim.certificate
    commit = commit_words(c["commit"], c["dirty"])
    # Certificates from before models had a commit of their own have no entry for it.
    trained = {commit_words(run["commit"], run["dirty"]) for run in c.get("runs", []) if "commit" in run} - {commit}
    if trained:
        commit += f", models trained at {', '.join(sorted(trained))}"
    data = f"data {c['dataset']['name']} ({c['dataset']['content'][:12]})" if c["dataset"] else "no data"
    gpu = f"{c['machine']['gpu']['name']}, driver {c['machine']['gpu']['driver']}; " if "gpu" in c["machine"] else ""
    return (
        f"Scale {c['scale']}; {data}; commit {commit}; {gpu}"
        f"{c['machine']['processor']}, {c['machine']['cores']} cores; torch {c['versions']['torch']}, {c['versions']['compiler']}; "
        f"{c['time']}; `{c['command_line']}`."
    )


def claim_page(claim):
    return (
        f"# {claim.certificate['title']}\n\nVerdict: **{claim.verdict}**. Headline statements are bold; "
        "± is what the noise of the measurement explains.\n\n"
        f"![{claim.name}]({claim.name}.svg)\n\n{comparisons_table(claim)}\n## Numbers\n\n{numbers_table(claim)}\n"
        f"± here: standard deviation over seeds. {provenance(claim)}\n"
    )


def verdicts_table(claims, link=""):
    rows = []
    for claim in claims:
        counts = {}
        for comparison in claim.comparisons:
            counts[comparison["verdict"]] = counts.get(comparison["verdict"], 0) + 1
        detail = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        rows.append([f"[{claim.name}]({link}{claim.name}.md)", claim.certificate["title"], f"**{claim.verdict}**", detail])
    return table(["claim", "what it is about", "verdict", "single statements"], rows)


def papers_table(claims, link=""):
    """One line a paper: its claims by their verdicts, and its statements' verdicts counted."""
    rows = []
    for experiment in dict.fromkeys(claim.certificate["experiment"] for claim in claims):
        of_paper = [claim for claim in claims if claim.certificate["experiment"] == experiment]
        links, counts = {}, {}
        for claim in of_paper:
            links.setdefault(claim.verdict, []).append(f"[{claim.name}]({link}{claim.name}.md)")
            for comparison in claim.comparisons:
                counts[comparison["verdict"]] = counts.get(comparison["verdict"], 0) + 1
        rows.append([experiment.replace("_", " "), "; ".join(f"**{verdict}**: {', '.join(names)}" for verdict, names in links.items()),
                     ", ".join(f"{count} {verdict}" for verdict, count in counts.items())])
    return table(["paper", "claims", "single statements"], rows)


def index(root, results):
    """results/README.md: every folder's verdicts, and its other measurements."""
    text = "# Results\n\nPages, figures and this list: by `tools/report.py` from the CSV and JSON files of these folders. Those, and logs, come from the commands\nthat each page names.\n"
    for folder in machine_folders(results):
        claims = load_machine(root, folder)
        text += f"\n## {folder.name}\n"
        if claims:
            text += f"\n{verdicts_table(claims, folder.name + '/')}"
        others = {path.stem for path in folder.glob("*.md")} | {path.stem for path in benchmark_files(folder)}
        others = sorted(others - {claim.name for claim in claims})
        if others:
            text += "\nMeasurements: " + ", ".join(f"[{name}]({folder.name}/{name}.md)" for name in others) + ".\n"
    return text


def readme_table(root, results, machine, name):
    """The table that a marker <!-- table:MACHINE/NAME --> asks for: "verdicts", "papers", a claim's "CLAIM" or "CLAIM.statements", a benchmark's,
    "precision" or "backward_profile"."""
    if (benchmark := results / machine / f"{name}.json") in benchmark_files(results / machine):
        return benchmark_table(benchmark)
    for data in throughput_data(results / machine):
        if name == data.stem:
            return ratio_table(data)
        if name == f"{data.stem}.short":
            return short_ratio_table(data)
    if name == PRECISION and (log := precision_log(results / machine)).exists():
        return precision_table(log)
    if name == PROFILE and (data := profile_data(results / machine)).exists():
        return profile_table(data)
    claims = load_machine(root, results / machine) if (results / machine).is_dir() else []
    by_name = {claim.name: claim for claim in claims}
    if name in ("verdicts", "papers") and claims:
        return (verdicts_table if name == "verdicts" else papers_table)(claims, f"results/{machine}/")
    claim = by_name.get(name.removesuffix(".statements"))
    if claim is None:
        raise UnknownTable(f"table:{machine}/{name}: expected verdicts, a claim or a benchmark of results/{machine}, found none of them")
    return comparisons_table(claim) if name.endswith(".statements") else numbers_table(claim)


def with_tables(text, root, results):
    """A README's text with every table between markers made anew."""

    def replace(match):
        return match[1] + readme_table(root, results, match["machine"], match["name"]) + match[5]

    return MARKER.sub(replace, text)


def readmes(root):
    """The README files of the checkout that hold a marker."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in UNSEARCHED)
        for name in files:
            path = Path(folder) / name
            if name == "README.md" and MARKER.search(path.read_text()):
                yield path

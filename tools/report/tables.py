"""Markdown from results: the page of a claim, the index, and the tables inside README files."""

import os
import re
from pathlib import Path

from report.benchmarks import benchmark_files, benchmark_table
from report.items import all_folders, items_text
from report.markdown import commit_words, measured_words, number, table, with_band
from report.matrix_state import matrix_state_data, matrix_state_table
from report.portable import portable_data, portable_short_table, portable_table
from report.precision import PRECISION, precision_log, precision_table
from report.profile import PROFILE, profile_data, profile_table
from report.results import VERDICTS, load_machine, machine_folders, sound_claims
from report.throughput import ratio_table, short_ratio_table, throughput_data
from report.training import TRAINING, training_data, training_table
from report.training_grid import training_grid_data, training_grid_table
from report.verdicts import verdicts_section

MARKER = re.compile(r"(<!-- table:(?P<machine>[\w.-]+)/(?P<name>[\w.-]+) -->\n)(?P<body>.*?)(<!-- /table -->)", re.DOTALL)
UNSEARCHED = {".git", ".venv", "build", "artefacts"}  # folders without a README of ours


READING = "↓: lower is better, ↑: higher is better; ± here: standard deviation over seeds."


class UnknownTable(Exception):
    """A marker in a README that names a table that no result gives."""


def comparisons_table(claim):
    def agrees(comparison):
        """What measured ± band has to be for the statement to hold."""
        low, high = comparison["expected"]["low"], comparison["expected"]["high"]
        if low is not None and high is not None:
            return f"{low:.3g} to {high:.3g}" if low != high else ""
        if high is not None:
            return f"at most {high:.3g}"
        if low is not None:
            return f"at least {low:.3g}"
        return {1: "> 0", -1: "< 0", 0: ""}[comparison["expected"]["direction"]]

    def paper(comparison):
        value, range_of = comparison["paper"], agrees(comparison)
        if value is None:
            return range_of
        return f"{value:.3g}" + (f" ({range_of})" if range_of else "")

    def control(comparison):
        of = comparison.get("control")
        return f"{of['what']}: {with_band(of['measured'], of['band'])}" if of and of["measured"] is not None else ""

    def why(comparison):
        """The reason that decided over a verdict, and what readers should know."""
        keys = ["out_of_reach", "open", "no_refutation", "note"]
        if not comparison["verdict"].startswith("inconclusive"):
            keys.remove("no_refutation")
        words = [comparison[key] for key in keys if key in comparison]
        if comparison.get("control", {}).get("does_as_well"):
            words.append("the control does as well: with these means no number of runs would decide it")
        if "would_decide" in comparison:
            words.append(f"would be decided by {comparison['would_decide']}")
        return "; ".join(words)

    rows = []
    for comparison in claim.comparisons:
        emphasis = "**" if comparison["headline"] else ""
        rows.append([
            f"{emphasis}{comparison['statement']}{emphasis}", comparison["source"], paper(comparison),
            "" if "out_of_reach" in comparison else measured_words(comparison), control(comparison), comparison["verdict"], why(comparison),
        ])
    return table(["statement", "source", f"{claim.stated_by} (agrees where)", "measured", "control", "verdict", "why"], rows)


UNITS = {"s": ((1, "s"), (1e3, "ms"), (1e6, "µs")), "B": ((1e-9, "GB"), (1e-6, "MB"), (1e-3, "kB"), (1, "B"))}


def readable_unit(unit, values):
    """(factor, unit) in which the middle one of the values is at least 1, e.g. (1e3, "ms")."""
    choices = UNITS.get(unit, ((1, unit),))
    middle = sorted(abs(value) for value in values)[len(values) // 2]
    return next((choice for choice in choices if choice[0] * middle >= 1), choices[-1])


def numbers_table(claim):
    """Variants (at each length) × metrics: means over seeds, with the paper's own numbers beside them."""
    units = {row["metric"]: row["unit"] for row in claim.records}
    columns = list(dict.fromkeys((row["metric"], row["implementation"]) for row in claim.records))
    rows_of = sorted({(claim.variants().index(row["variant"]), row["length"]) for row in claim.records})
    in_paper = {row["metric"] for row in claim.paper}
    of_paper = [metric for metric in units if metric in in_paper]

    scales = {metric: readable_unit(unit, [row["value"] for row in claim.records if row["metric"] == metric]) for metric, unit in units.items()}

    def named(metric):
        unit = scales[metric][1]
        return claim.words(metric) + (f" ({unit})" if unit not in ("1", "") else "")

    def title(metric, implementation):
        words = named(metric) + {"lower": " ↓", "higher": " ↑", None: ""}[claim.better(metric, units[metric])]
        return words if implementation == "lethe" else f"{words}, {implementation}"

    def entry(variant, length, metric, implementation):
        cell = claim.cell(variant, metric, length, implementation)
        if cell is None:
            return ""
        factor = scales[metric][0]
        with_seeds = len(cell.values) > 1 and metric != "parameters"
        return with_band(factor * cell.mean, factor * cell.stddev) if with_seeds else number(factor * cell.mean, metric)

    def of_the_paper(variant, metric):
        value = claim.paper_value(variant, metric)
        return "" if value is None else f"{scales[metric][0] * value:g}"

    rows = []
    for place, length in rows_of:
        variant = claim.variants()[place]
        rows.append([
            variant,
            length if len({length for _, length in rows_of}) > 1 else "",
            *(of_the_paper(variant, metric) for metric in of_paper),
            *(entry(variant, length, *column) for column in columns),
        ])
    comparable = {row["metric"]: row["comparability"] for row in claim.paper}

    def of_paper_title(metric):
        return f"{claim.stated_by}: {named(metric)}" + (" (context)" if comparable[metric] == "context" else "")

    header = ["", "length", *(of_paper_title(metric) for metric in of_paper), *(title(*column) for column in columns)]
    return table(header, rows)


def trained_at(run):
    """The commit of the checkout that a model was trained in; away from one, that of the program, where it recorded one."""
    if run["commit"] == "unknown":
        return f"{run['built'][:12]} (the program's)" if "built" in run else "unknown (a tree without git)"
    return commit_words(run["commit"], run["dirty"])


def provenance(claim):
    c = claim.certificate
    commit = commit_words(c["commit"], c["dirty"])
    # Certificates from before models had a commit of their own have no entry for it.
    trained = {trained_at(run) for run in c.get("runs", []) if "commit" in run} - {commit}
    if trained:
        commit += f", models trained at {', '.join(sorted(trained))}"
    data = f"data {c['dataset']['name']} ({c['dataset']['content'][:12]})" if c["dataset"] else "no data"
    gpu = f"{c['machine']['gpu']['name']}, driver {c['machine']['gpu']['driver']}; " if "gpu" in c["machine"] else ""
    return (
        f"Scale {c['scale']}; {data}; commit {commit}; {gpu}"
        f"{c['machine']['processor']}, {c['machine']['cores']} cores; torch {c['versions']['torch']}, {c['versions']['compiler']}; "
        f"{c['time']}; `{c['command_line']}`."
    )


def not_run(claim):
    """The runs that the scale asks for and that have no model yet."""
    runs = claim.certificate.get("not_run", [])
    return f"Not run or not measured yet, {len(runs)}: {'; '.join(runs)}.\n\n" if runs else ""


def claim_page(claim):
    return (
        f"# {claim.certificate['title']}\n\nVerdict: **{claim.verdict}**. Headline statements are bold; "
        "± is what the noise of the measurement explains.\n\n"
        f"{not_run(claim)}![{claim.name}]({claim.name}.svg)\n\n{claim.caption}\n\n{comparisons_table(claim)}\n## Numbers\n\n{numbers_table(claim)}\n"
        f"{READING} {provenance(claim)}\n"
    )


def legend_table():
    """What each verdict means."""
    return table(["verdict", "when"], [[verdict, when] for verdict, when in VERDICTS.items()])


SCALES = {
    "smoke": "It shows that everything runs, and nothing else.",
    "quick": "Read it for directions, not for the papers' numbers: their models have hundreds of millions of parameters.",
    "gpu": "It lies between a laptop's minutes and the papers' own runs.",
    "paper": "It is the papers' own.",
}


def scale_sentence(claims):
    """How large the models of these claims are, and what that allows to see."""
    words = ""
    for scale in dict.fromkeys(claim.certificate["scale"] for claim in claims if claim.records):
        of_scale = [claim for claim in claims if claim.certificate["scale"] == scale]
        sizes = [row["value"] for claim in of_scale for row in claim.records if row["metric"] == "parameters"]
        trainings = [claim.certificate.get("settings", {}).get("training", {}) for claim in of_scale]
        tokens = [training["total_tokens"] for training in trainings if "total_tokens" in training]
        corpora = sorted({training["corpus"] for training in trainings if "corpus" in training})
        words += f"Scale {scale}"
        if sizes and tokens:
            words += f": models of up to {max(sizes):,.0f} parameters, trained on up to {max(tokens):,} tokens of {' and '.join(corpora)}"
        words += f". {SCALES.get(scale, '')} "
    return words.strip()


def verdicts_table(claims, link=""):
    rows = []
    for claim in claims:
        counts = {}
        for comparison in claim.comparisons:
            counts[comparison["verdict"]] = counts.get(comparison["verdict"], 0) + 1
        detail = "; ".join(f"{count} {verdict}" for verdict, count in counts.items())
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
                     "; ".join(f"{count} {verdict}" for verdict, count in counts.items())])
    return table(["paper", "claims", "single statements"], rows)


def use(claim):
    """Everything that the pages make of a claim, to see whether it can be made."""
    claim_page(claim), verdicts_table([claim]), papers_table([claim]), scale_sentence([claim])


HEAD_OF_THE_INDEX = """# Results

Pages, figures and this list: by `tools/report.py` from the CSV and JSON files of these folders. Those, and logs, come from the commands
that each page names.

A row of a claim's table carries commit, machine and artefact of the training whose weights were measured. A point of a curve (`.points.csv`) has those of
its variant and seed: in the table, and in `runs` of the JSON file beside it. A training in a tree without git has the commit that its program was built
from. `unknown`: the training ran in a tree without git, by a program that recorded no commit when it was built; `runs` has the SHA-256 of its weights.

Each claim has a JSON file with its verdicts and the SHA-256 of its CSV files. A claim that trains nothing, as generation_cost, measures the machine that
runs it: its rows name no artefact, and its JSON file no run.

The raw numbers, losses of every sequence and logs, are in `raw/`, from which `lethe judge --scale gpu` and `--scale quick` judge again; quick's of
the Intel Xeon in `raw/others/`, for `--from`. One's own stay in `artefacts/` of the checkout: `lethe bundle --to mine.tar.xz` keeps them in a file
for `--from`.
"""


def index(root, results):
    """results/README.md: the verdicts and other measurements of every folder with pages."""
    text = HEAD_OF_THE_INDEX
    for folder in sorted({*machine_folders(results), *(page.parent for page in results.glob("*/*.md"))}):
        claims, _ = sound_claims(root, folder, use)
        text += f"\n## {folder.name}\n"
        if claims:
            text += f"\n{verdicts_table(claims, folder.name + '/')}"
        others = {path.stem for path in folder.glob("*.md")} | {path.stem for path in [*benchmark_files(folder), *portable_data(folder),
                                                                                       *matrix_state_data(folder), *training_grid_data(folder)]}
        others = sorted(others - {claim.name for claim in claims})
        if others:
            text += "\nMeasurements: " + ", ".join(f"[{name}]({folder.name}/{name}.md)" for name in others) + ".\n"
    return text + verdicts_section(results)


def readme_table(root, results, machine, name):
    """The table that a marker <!-- table:MACHINE/NAME --> asks for: "verdicts", "papers", a claim's "CLAIM" or "CLAIM.statements", a benchmark's,
    "portable", "portable.short", "matrix_state", "training", "training_grid", "precision" or "backward_profile"; all/items is the table of the papers' items."""
    if (machine, name) == ("all", "items"):
        return items_text(root, all_folders(root, results), use)
    if (benchmark := results / machine / f"{name}.json") in benchmark_files(results / machine):
        return benchmark_table(benchmark)
    for data in portable_data(results / machine):
        if name == data.stem:
            return portable_table(data)
        if name == f"{data.stem}.short":
            return portable_short_table(data, results / "predictions" / "predictions.json")
    for data in matrix_state_data(results / machine):
        if name == data.stem:
            return matrix_state_table(data)
    for data in training_grid_data(results / machine):
        if name == data.stem:
            return training_grid_table(data)
    if name == TRAINING and training_data(results / machine):
        return training_table(results / machine)
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
    """The README files of a checkout that hold a marker; none of a folder that is no checkout."""
    if not (root / "experiments" / "papers").is_dir():
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in UNSEARCHED)
        for name in files:
            path = Path(folder) / name
            if name == "README.md" and MARKER.search(path.read_text()):
                yield path

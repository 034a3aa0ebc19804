"""The rows of experiments/papers/items.csv: every table, figure and proposition of the papers, beside what was found at the largest scale."""

import csv
import re
from collections import Counter

from report.files import BadResult
from report.markdown import measured_words, table
from report.results import SCALES, machine_folders, sound_claims

COLUMNS = ["paper", "item", "says", "state", "claims", "why"]
STATES = {
    "exact": "held by tests",
    "measured": "a claim's, with the verdicts on the item's statements",
    "drawn": "on the page or in the figure of a claim, and no statement",
    "open": "can be run here; has not been",
    "out of reach": "needs models, data or judges that are not at hand",
}

TITLES = {"FoX": "Forgetting Transformer (FoX)", "ACP": "Adaptive Computation Pruning (ACP)", "Curve": "Forgetting Curve (Curve)",
          "T2FW": "Decaying Fast Weights (T2FW)", "page": "The explainer page on FoX"}


def read_items(root):
    path = root / "experiments" / "papers" / "items.csv"
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise BadResult(f"{path}: expected the columns {','.join(COLUMNS)}, found {','.join(reader.fieldnames or [])}")
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():  # a surplus column lies under None, an absent one holds it
            raise BadResult(f"{path}, line {number}: expected {len(COLUMNS)} columns, found {'more' if None in row else 'fewer'}")
        if row["state"] not in STATES:
            raise BadResult(f"{path}, line {number}: state: expected one of {', '.join(STATES)}, found {row['state']}")
    return rows


def tests_of(root):
    """SUITE.NAME of every GoogleTest."""
    texts = (path.read_text(encoding="utf-8") for path in root.glob("tests/**/*.cpp"))
    return {f"{suite}.{name}" for text in texts for suite, name in re.findall(r"^TEST\w*\(\s*(\w+),\s*(\w+)\)", text, re.MULTILINE)}


def absent_names(root, row, tests):
    """Files, folders and tests that a row names and the checkout hasn't; a path without an ending is that of some file."""
    for path in re.findall(r"\b(?:tests|tools|reference|results|experiments|optimized|examples)/[\w./-]*\w", row["why"]):
        if not (root / path).exists() and not any(root.glob(f"{path}.*")):
            yield path
    for name in re.findall(r"\b[A-Z]\w+\.[A-Z]\w+", row["why"]):
        if name not in tests:
            yield f"the test {name}"


def claims_of(row):
    """The claims of a row with the begins of its statements: "one; another: First | Second". Without begins the statements are those whose source
    names the item. "one on TEXT" is the claim's result on another text than its own."""
    for part in filter(None, row["claims"].split(";")):
        name, _, begins = part.partition(":")
        yield name.strip(), [begin.strip() for begin in begins.split("|") if begin.strip()]


def is_about(comparison, row):
    """Whether a statement's source names the item: "FoX Fig. 2 and Section 4.2" names Fig. 2, and neither Fig. 21 nor Section 4."""
    return comparison["source"].startswith(row["paper"]) and re.search(rf"{re.escape(row['item'])}(?!\w|\.\d)", comparison["source"])


def own_comparisons(claim, row, begins):
    return [c for c in claim.comparisons if (c["statement"].startswith(tuple(begins)) if begins else is_about(c, row))]


def absent_statements(row, results):
    """What a row asks of claims that have a result, and none of their statements is."""
    for name, begins in claims_of(row):
        claim = results.get(name)
        if claim is None or row["state"] == "drawn":
            continue
        if not begins and not own_comparisons(claim, row, begins):
            yield f"a statement of {name} on it"
        for begin in begins:
            if not own_comparisons(claim, row, [begin]):
                yield f"a statement of {name} that begins with '{begin}'"


def faults_of_items(root, folders=(), use=lambda claim: None):
    """A line for each thing that a row names, and that neither the checkout nor the results of these folders have."""
    path = root / "experiments" / "papers" / "items.csv"
    if not path.exists() or not (root / "tests").is_dir():  # rows name parts of a whole checkout
        return
    results, tests = largest(root, folders, use), tests_of(root)
    for row in read_items(root):
        for absent in [*absent_names(root, row, tests), *absent_statements(row, results)]:
            yield f"{path}: {row['paper']} {row['item']}: expected {absent}, found none"


def largest(root, folders, use=lambda claim: None):
    """The result of each claim at the largest scale: on its own text by the claim's name, on another by "NAME on TEXT"."""
    best = {}
    for folder in folders:
        for claim in sound_claims(root, folder, use)[0]:
            name = f"{claim.name} on {claim.certificate['dataset']['name']}" if "corpus" in claim.certificate else claim.name
            other = best.get(name)
            if other is None or SCALES.index(claim.certificate["scale"]) >= SCALES.index(other.certificate["scale"]):
                best[name] = claim
    return best


def is_of_an_abstract(row):
    return row["item"].startswith("Abstract")


def in_words(comparison):
    """A statement with its verdict, its number and its band."""
    number = "" if "out_of_reach" in comparison else measured_words(comparison)
    return f"{comparison['verdict']}: {comparison['statement']}{f' ({number})' if number else ''}"


def found(row, results):
    texts = []
    for name, begins in claims_of(row):
        claim = results.get(name)
        if claim is None:
            texts.append(f"{name}: no run yet")
        elif row["state"] == "drawn":
            texts.append(f"{name} at {claim.certificate['scale']}")
        else:
            comparisons = own_comparisons(claim, row, begins)
            counts = Counter(comparison["verdict"] for comparison in comparisons)
            verdicts = "; ".join(map(in_words, comparisons) if is_of_an_abstract(row)
                                 else (f"{count} {verdict}" for verdict, count in counts.items()))
            texts.append(f"{name} at {claim.certificate['scale']}: {verdicts or 'no statement'}")
    return ". ".join(texts)


def items_table(root, results, paper=None):
    rows = [[row["item"], row["says"], row["state"], found(row, results), row["why"]] for row in read_items(root) if paper in (None, row["paper"])]
    return table(["", "what it says", "here", "what we find", "why different, how, or what is missing"], rows)


def items_text(root, folders, use=lambda claim: None):
    """A table a paper."""
    results = largest(root, folders, use)
    return "\n".join(f"### {title}\n\n{items_table(root, results, paper)}" for paper, title in TITLES.items())


def all_folders(root, results):
    """Those of `results`, and of the checkout's own."""
    own = root / "results"
    return list(dict.fromkeys([*(machine_folders(own) if own.is_dir() else []), *machine_folders(results)]))

"""The rows of experiments/papers/items.csv: every table, figure and proposition of the papers, beside what was found at the largest scale."""

import csv
import re
from collections import Counter

from report.files import BadResult
from report.markdown import table
from report.results import machine_folders, sound_claims

COLUMNS = ["paper", "item", "says", "state", "claims", "why"]
STATES = {
    "exact": "held by tests",
    "measured": "a claim's, with the verdicts on its statements",
    "open": "can be run here; has not been",
    "out of reach": "needs models, data or judges that are not at hand",
}
SCALES = ("smoke", "quick", "gpu", "paper")
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


def absent_names(root, row):
    """Files, folders and tests that a row names and the checkout hasn't; a path without an ending is that of some file."""
    for path in re.findall(r"\b(?:tests|tools|reference|results|experiments|optimized|examples)/[\w./-]*\w", row["why"]):
        if not (root / path).exists() and not any(root.glob(f"{path}.*")):
            yield path
    for suite, test in re.findall(r"\b([A-Z]\w+)\.([A-Z]\w+)", row["why"]):
        if not any(f"({suite}, {test})" in path.read_text(encoding="utf-8") for path in root.glob("tests/*/*.cpp")):
            yield f"the test {suite}.{test}"


def faults_of_items(root):
    """A line for each thing that a row names and the checkout hasn't."""
    path = root / "experiments" / "papers" / "items.csv"
    for row in read_items(root) if path.exists() else []:
        for absent in absent_names(root, row):
            yield f"{path}: {row['paper']} {row['item']}: expected {absent}, found none"


def largest(root, folders, use=lambda claim: None):
    """The result of each claim on its own text at the largest scale, by the claim's name."""
    best = {}
    for folder in folders:
        for claim in sound_claims(root, folder, use)[0]:
            if "corpus" in claim.certificate:
                continue
            other = best.get(claim.name)
            if other is None or SCALES.index(claim.certificate["scale"]) >= SCALES.index(other.certificate["scale"]):
                best[claim.name] = claim
    return best


def is_about(comparison, row):
    """Whether a statement's source names the item: "FoX Fig. 2 and Section 4.2" names Fig. 2, and not Fig. 21."""
    return comparison["source"].startswith(row["paper"]) and re.search(rf"{re.escape(row['item'])}(?!\w)", comparison["source"])


def found(row, results):
    texts = []
    for name in filter(None, row["claims"].split(";")):
        claim = results.get(name)
        if claim is None:
            texts.append(f"{name}: no run yet")
            continue
        comparisons = [c for c in claim.comparisons if is_about(c, row)] or claim.comparisons
        counts = Counter(comparison["verdict"] for comparison in comparisons)
        verdicts = "; ".join(f"{count} {verdict}" for verdict, count in counts.items())
        texts.append(f"{name} at {claim.certificate['scale']}: {verdicts}")
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

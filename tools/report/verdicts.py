"""Verdicts of one scale on several machines (tools/compare_verdicts.py)."""

from report.files import read_sealed
from report.markdown import table

FILE = "verdicts.json"


def verdicts_text(members):
    """How many statements have one verdict wherever they ran, and a row for each that has two."""
    names = [run["name"] for run in members["runs"]]
    ran = [row for row in members["statements"] if sum(verdict is not None for verdict in row["verdicts"]) > 1]
    differ = [row for row in ran if len(set(row["verdicts"]) - {None}) > 1]
    text = table(["run", "processor", "instructions", "cores", "commit", "date"],
                 [[run["name"], run["processor"], run["instruction_set"], str(run["cores"]), ", ".join(commit[:12] for commit in run["commits"]),
                   " to ".join(dict.fromkeys((run["dates"][0], run["dates"][-1])))] for run in members["runs"]])
    text += f"\nOf {len(ran)} statements at scale {members['scale']}, in the settings of these commits, that ran more than once, "
    text += f"{len(ran) - len(differ)} have one verdict wherever they ran"
    if not differ:
        return text + ".\n"
    rows = [[row["claim"], row["statement"], *(verdict or "" for verdict in row["verdicts"])] for row in differ]
    return f"{text}. The others:\n\n{table(['claim', 'statement', *names], rows)}"


def verdicts_section(results):
    """The section of results/README.md; empty where no file compares verdicts."""
    path = results / FILE
    return f"\n## Verdicts on several machines\n\n{verdicts_text(read_sealed(path))}" if path.exists() else ""

#!/usr/bin/env python3
"""Which verdicts depend on the machine: those of one scale beside one another, of folders of results that several machines, instruction sets or
loads left.

usage: tools/compare_verdicts.py NAME=FOLDER NAME=FOLDER … [--scale quick] [--beside FILE] --output results/verdicts.json

With --beside, the runs of an earlier such file stay, and one folder is enough: not all machines are at hand at once. FOLDER is one machine's folder
below a folder of results, as `lethe run --results` leaves it; ATEN_CPU_CAPABILITY=avx2 or default runs the claims with other instructions. Claims
that judge files of measurements (in `results/`) ran nowhere and are left out. tools/report.py makes the page from the file.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
from pathlib import Path

from report.files import BadResult, folder, read_json, read_sealed, write_whole
from sealed_json import sealed

MEMBERS = ("claim", "comparisons", "commit", "machine", "scale", "settings", "time")


def verdicts_of(path, scale):
    """{(claim, statement): verdict} of a folder's claims at a scale, and their certificates."""
    found, certificates = {}, []
    for file in sorted(path.glob("*.json")):
        certificate = read_json(file)
        if not all(member in certificate for member in MEMBERS) or certificate["scale"] != scale or "data" in certificate["settings"]:
            continue
        certificates.append(read_sealed(file))
        for comparison in certificate["comparisons"]:
            found[certificate["claim"], comparison["statement"]] = comparison["verdict"]
    if not certificates:
        raise BadResult(f"{path}: expected claims of scale {scale}, found none")
    return found, certificates


def commit_of(certificate):
    """The checkout's commit; away from one, that of the program."""
    return certificate.get("built", "unknown") if certificate["commit"] == "unknown" else certificate["commit"]


def compared(folders, scale, earlier=None):
    """The members of the file that compares folders by name, after those of the members `earlier`."""
    runs, verdicts = [], []
    if earlier:
        runs = list(earlier["runs"])
        for i in range(len(runs)):
            verdicts.append({(row["claim"], row["statement"]): row["verdicts"][i] for row in earlier["statements"] if row["verdicts"][i] is not None})
    for name, path in folders.items():
        found, certificates = verdicts_of(path, scale)
        machine = certificates[0]["machine"]
        runs.append({"name": name, "processor": machine["processor"], "cores": machine["cores"],
                     "instruction_set": machine.get("instruction_set", "not recorded"),
                     "commits": sorted({commit_of(certificate) for certificate in certificates}),
                     "dates": sorted({certificate["time"][:10] for certificate in certificates})})
        verdicts.append(found)
    keys = dict.fromkeys(key for found in verdicts for key in found)
    return {"scale": scale, "runs": runs,
            "statements": [{"claim": claim, "statement": statement, "verdicts": [found.get((claim, statement)) for found in verdicts]}
                           for claim, statement in keys]}


def named_folder(text):
    name, equals, path = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=FOLDER, found {text}")
    return name, folder(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=named_folder, metavar="NAME=FOLDER")
    parser.add_argument("--scale", default="quick")
    parser.add_argument("--beside", type=Path, metavar="FILE")
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    earlier = read_sealed(options.beside) if options.beside else None
    if earlier and earlier["scale"] != options.scale:
        parser.error(f"--beside: expected runs of scale {options.scale}, found {earlier['scale']}")
    names = [run["name"] for run in earlier["runs"]] if earlier else []
    names += [name for name, _ in options.folders]
    if len(names) < 2 or len(set(names)) < len(names):
        parser.error("NAME=FOLDER: expected two or more with names of their own")
    members = compared(dict(options.folders), options.scale, earlier)
    write_whole(options.output, sealed(members))
    from report.verdicts import verdicts_text

    print(verdicts_text(members), end="")


if __name__ == "__main__":
    main()

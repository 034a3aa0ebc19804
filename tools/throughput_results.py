"""The files that tools/compare_attention.py leaves: attention_throughput.csv, and .json with where its numbers come from. The whole may be the
work of several jobs: a case (length, head dim, gate) stays until it is measured again, as a whole, and its run's certificate with it.
"""
import csv
import json
import sys

GATES = ("open", "bimodal", "init")
COLUMNS = "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,stddev,samples".split(",")


def case_of(row):
    return int(row["length"]), int(row["key_dim"]), row["variant"]


def of_case(case):
    return case[0], case[1], GATES.index(case[2])


def earlier_runs(output, gpu):
    """What is in `output`: rows, and the certificates of the runs they are of, the newest first."""
    csv_path, json_path = output / "attention_throughput.csv", output / "attention_throughput.json"
    if not csv_path.exists() and not json_path.exists():
        return [], []
    if not (csv_path.exists() and json_path.exists()):
        sys.exit(f"output: expected {csv_path.name} and {json_path.name} in {output} or neither, found one")
    with open(csv_path, newline="") as file:
        rows = list(csv.DictReader(file))
    newest = json.loads(json_path.read_text())
    newest.setdefault("cases", sorted(set(map(case_of, rows)), key=of_case))
    runs = [newest, *newest.pop("earlier", [])]
    for run in runs:
        if run["machine"]["gpu"] != gpu:
            sys.exit(f"output: expected results of {gpu} in {output}, found some of {run['machine']['gpu']}")
    return rows, runs


def joined(before, records, details, cases):
    """Rows and certificate of this run's cases and of those of earlier runs that it has not measured."""
    rows, runs = before
    rows = [row for row in rows if case_of(row) not in cases] + records
    of_runs = [run | {"cases": [case for case in run["cases"] if tuple(case) not in cases]} for run in runs]
    details = details | {"cases": sorted(cases, key=of_case), "earlier": [run for run in of_runs if run["cases"]]}
    return sorted(rows, key=lambda row: of_case(case_of(row))), details


def write(output, records, details):
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "attention_throughput.csv.new", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    (output / "attention_throughput.json.new").write_text(json.dumps(details, indent=2) + "\n")
    for name in ("attention_throughput.json", "attention_throughput.csv"):
        (output / f"{name}.new").rename(output / name)

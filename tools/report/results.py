"""The files in results/ and experiments/papers/ as Python objects."""

import csv
import hashlib
import importlib.util
import math
import re
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from report.files import BadResult, read_json, read_sealed, reason

COLUMNS = (
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,stddev,samples"
).split(",")
ORIGIN = ["commit", "machine", "artefact"]  # of a record; absent in tables from before
POINT_COLUMNS = "quantity,variant,seed,x,y,value".split(",")
COUNTS = {"batch", "length", "heads", "key_dim", "value_dim", "seed", "samples"}
NUMBERS = {"value", "stddev", "x", "y"}


def read_table(path, columns):
    """Rows of a CSV as dicts with numbers for the columns that hold them."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            names, *lines = list(csv.reader(file)) or [[]]
    except OSError as error:
        raise BadResult(f"{path}: expected a file, found {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadResult(f"{path}: expected a CSV in UTF-8, found {error}") from None
    if names not in (list(columns), [*columns, *ORIGIN]):
        raise BadResult(f"{path}: expected the columns {','.join(columns)}, found {','.join(names)}")
    numbers = [(column, name, int if name in COUNTS else float, 0 if name in COUNTS else math.nan)
               for column, name in enumerate(names) if name in COUNTS | NUMBERS]
    rows = []
    for number, line in enumerate(filter(None, lines), start=2):
        if len(line) != len(names):
            raise BadResult(f"{path}, line {number}: expected {len(names)} columns, found {'more' if len(line) > len(names) else 'fewer'}")
        for column, name, kind, empty in numbers:
            text = line[column]
            try:
                line[column] = kind(text) if text else empty
            except ValueError:
                raise BadResult(f"{path}, line {number}: {name}: expected a number, found '{text}'") from None
        rows.append(dict(zip(names, line)))
    return rows


@dataclass
class Cell:
    """A number of one variant: its mean over seeds, and how far they scatter."""

    values: list = field(default_factory=list)

    @property
    def mean(self):
        return mean(self.values)

    @property
    def stddev(self):
        return stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass
class Claim:
    """What one run of one claim left on one machine."""

    folder: Path  # results/<machine>
    home: Path  # experiments/papers/<paper>/<claim>
    name: str
    about: dict  # the table [claim] of config.toml: title, order, caption, words, better, stated_by, withdrawn
    certificate: dict
    records: list
    points: list
    paper: list

    @property
    def comparisons(self):
        """Without those that the claim has withdrawn since: results of before keep them in their certificates."""
        return [c for c in self.certificate["comparisons"] if c["statement"] not in self.about.get("withdrawn", [])]

    @property
    def verdict(self):
        return self.certificate["verdict"]

    @property
    def stated_by(self):
        """Who says what should be measured: "paper" or "goal"."""
        return self.about.get("stated_by", "paper")

    def words(self, metric):
        """What tables call a metric."""
        return self.about.get("words", {}).get(metric, metric.replace("_", " "))

    def better(self, metric, unit):
        """"lower" or "higher", whichever is better; None where neither is."""
        known = "lower" if unit in ("nats", "s", "B") or metric == "perplexity" else None
        return self.about.get("better", {}).get(metric, known)

    @property
    def caption(self):
        """What one should see in the figure."""
        return self.about.get("caption", "")

    def figure(self):
        """What figure(claim) of the folder's figure.py draws."""
        spec = importlib.util.spec_from_file_location(f"figure_of_{self.name}", self.home / "figure.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.figure(self)

    def variants(self):
        """In the order in which they were measured."""
        return list(dict.fromkeys(row["variant"] for row in self.records))

    def cell(self, variant, metric, length=None, implementation="lethe"):
        """The records of a variant over its seeds; None where there are none."""
        values = [
            row["value"]
            for row in self.records
            if row["variant"] == variant and row["metric"] == metric and row["implementation"] == implementation
            and length in (None, row["length"])
        ]
        return Cell(values) if values else None

    def lengths(self, metric):
        return sorted({row["length"] for row in self.records if row["metric"] == metric})

    def paper_value(self, variant, metric):
        """What the paper gives for that variant; None where it gives nothing."""
        for row in self.paper:
            if row["variant"] == variant and row["metric"] == metric:
                return row["value"]
        return None

    def curve(self, quantity, variant):
        """x and the mean over seeds of the values, both as lists."""
        sums = {}
        for point in self.points:
            if point["quantity"] == quantity and point["variant"] == variant:
                sums.setdefault(point["x"], []).append(point["value"])
        return list(sums), [mean(values) for values in sums.values()]


CHECKOUT = Path(__file__).resolve().parents[2]


def claim_folder(root, certificate):
    """The claim's folder, of `root` where that is a checkout, else of the one that holds this file."""
    papers = next(papers for base in (root, CHECKOUT) if (papers := base / "experiments" / "papers").is_dir() or base == CHECKOUT)
    return papers / certificate["experiment"] / certificate["claim"]


CERTIFICATE = ("experiment", "title", "verdict", "scale", "dataset", "commit", "dirty", "command_line", "time", "machine", "versions")
SCALES = ("smoke", "quick", "gpu", "paper")  # the smallest first
VERDICTS = {
    "reproduced": "the paper gives a range, and the whole of measured ± band lies inside",
    "trend reproduced": "the paper gives a direction, and the whole of measured ± band lies on that side",
    "direction reproduced, size contradicted": "on that side, but the whole of measured ± band lies outside the paper's range",
    "refuted": "the whole of measured ± band contradicts the paper, at a precision and a length that could have shown it",
    "inconclusive at this scale": "the difference is within the noise, a control does as well, or the runs don't differ",
    "out of reach here": "this scale doesn't run what could decide it",
}


def load_claim(root, certificate_path):
    """The claim whose certificate this is; None where the file is another one's.

    throws  BadResult naming the file that isn't what it should be
    """
    certificate = read_json(certificate_path)
    if "claim" not in certificate or "comparisons" not in certificate:
        return None
    if certificate.keys() & {"files", "sha256"}:  # those of earlier versions have no hashes
        for name, sha256 in read_sealed(certificate_path, ["files"])["files"].items():
            file = certificate_path.with_name(name)
            if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
                raise BadResult(f"{file}: expected the file that {certificate_path.name} names, found {'another' if file.exists() else 'none'}")
    read_json(certificate_path, CERTIFICATE)
    if certificate["scale"] not in SCALES:
        raise BadResult(f"{certificate_path}: scale: expected one of {', '.join(SCALES)}, found {str(certificate['scale'])[:80]}")
    for verdict in [certificate["verdict"], *(comparison["verdict"] for comparison in certificate["comparisons"])]:
        if verdict not in VERDICTS:
            raise BadResult(f"{certificate_path}: verdict: expected one of {', '.join(VERDICTS)}, found {str(verdict)[:80]}")
    home = claim_folder(root, certificate)
    if not home.is_dir():
        raise BadResult(f"{certificate_path}: expected the claim's folder {home}, found none")
    base = certificate_path.with_suffix("")
    points = base.with_name(base.name + ".points.csv")
    try:
        about = tomllib.loads((home / "config.toml").read_text())["claim"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadResult(f"{home / 'config.toml'}: expected the table [claim], found {reason(error)}") from None
    return Claim(
        folder=certificate_path.parent,
        home=home,
        name=certificate["claim"],
        about=about,
        certificate=certificate,
        records=read_table(base.with_name(base.name + ".csv"), COLUMNS),
        points=read_table(points, POINT_COLUMNS) if points.exists() else [],
        paper=read_table(home / "paper.csv", COLUMNS + ["source", "comparability"]),
    )


def fault(path, error):
    """A line on a file that broke what read it."""
    if isinstance(error, BadResult):
        return reason(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{path}: expected a result, found {error.strerror}" + (f" ({error.filename})" if error.filename else "")
    return f"{path}: expected a result, found {type(error).__name__} {reason(error)}"


class Faults(list):
    """Lines on what is damaged. `with faults.of(path):` adds one where the block throws, and goes on after it."""

    def of(self, path):
        self.path = path
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None or not isinstance(error, Exception):
            return False
        if not any(line.startswith(f"{self.path}:") for line in self):  # once a file
            self.append(fault(self.path, error))
        return True


_kept = None  # within read_once: by root, folder and use what sound_claims has found; by root and file the claim, or why there is none


@contextmanager
def read_once():
    """Within this block each file is read once: for programs that change no result between two readings."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def sound_claims(root, folder, use=lambda claim: None):
    """(the claims of one results folder, in the order that their folders give; a line on each of the others)

    use: a claim that makes it throw is one of the others: whatever is damaged in it, it blocks itself alone
    """
    if _kept is None:
        return claims_and_faults(root, folder, use)
    key = (root, folder.resolve(), use)
    if key not in _kept:
        _kept[key] = claims_and_faults(root, folder, use)
    return _kept[key]


def load_once(root, path):
    """load_claim(), which within read_once reads a file once."""
    if _kept is None:
        return load_claim(root, path)
    key = (root, path.resolve())
    if key not in _kept:
        try:
            _kept[key] = load_claim(root, path)
        except Exception as error:  # noqa: BLE001 (raised again at each reading)
            _kept[key] = error
    if isinstance(_kept[key], Exception):
        raise _kept[key]
    return _kept[key]


def claims_and_faults(root, folder, use):
    claims, faults = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            claim = load_once(root, path)
            if claim:
                use(claim)
                claims.append((float(claim.about["order"]), claim.name, claim))
        except Exception as error:  # noqa: BLE001 (any damage)
            faults.append(fault(path, error))
    if claims:  # a folder of benchmarks has tables without certificates
        for table in sorted(folder.glob("*.csv")):
            certificate = folder / (table.name.removesuffix(".csv").removesuffix(".points") + ".json")
            if not certificate.exists():
                faults.append(fault(certificate, BadResult(f"{certificate}: expected the certificate of {table.name}, found none")))
    return [claim for *_, claim in sorted(claims, key=lambda row: row[:2])], faults


def load_machine(root, folder):
    """All claims of one results folder, in the order that their folders give.

    throws  BadResult for the first that is damaged
    """
    claims, faults = sound_claims(root, folder)
    if faults:
        raise BadResult(faults[0])
    return claims


def machine_folders(results):
    """The folders of results/ that hold claims."""
    return sorted({path.parent for path in results.glob("*/*.csv")})

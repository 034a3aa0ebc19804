"""What tools/compare_attention.py writes where an earlier run has left results. No GPU."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from compare_attention import COLUMNS, joined, write  # noqa: E402


def row(length, dim, gate, value):
    return dict.fromkeys(COLUMNS, "") | {"length": length, "key_dim": dim, "variant": gate, "value": value}


def run(folder, commit, rows):
    """As a run of this commit that measures these cases leaves the folder."""
    cases = {(r["length"], r["key_dim"], r["variant"]) for r in rows}
    write(folder, *joined(folder, rows, {"commit": commit, "time": f"of {commit}"}, cases))
    return (folder / "attention_throughput.csv").read_text().splitlines()[1:], json.loads((folder / "attention_throughput.json").read_text())


class Joined(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def values(self, lines):
        return [line.split(",")[COLUMNS.index("value")] for line in lines]

    def test_cases_that_are_not_measured_stay_and_say_whose_they_are(self):
        run(self.folder, "first", [row(16384, 64, "open", "1"), row(16384, 64, "init", "2"), row(65536, 64, "open", "3")])
        lines, certificate = run(self.folder, "second", [row(4096, 128, "open", "4"), row(16384, 64, "open", "5")])
        self.assertEqual(self.values(lines), ["4", "5", "2", "3"])
        self.assertEqual(certificate["commit"], "second")
        self.assertEqual([(c["length"], c["gate"], c["commit"], c["time"]) for c in certificate["cases"]],
                         [(4096, "open", "second", "of second"), (16384, "open", "second", "of second"), (16384, "init", "first", "of first"),
                          (65536, "open", "first", "of first")])
        lines, certificate = run(self.folder, "third", [row(4096, 128, "open", "6")])
        self.assertEqual(self.values(lines), ["6", "5", "2", "3"])
        self.assertEqual([c["commit"] for c in certificate["cases"]], ["third", "second", "first", "first"])

    def test_results_from_before_cases_were_listed_are_of_their_commit(self):
        run(self.folder, "first", [row(16384, 64, "open", "1")])
        (self.folder / "attention_throughput.json").write_text('{"commit": "first", "time": "then"}')
        _, certificate = run(self.folder, "second", [row(4096, 64, "open", "2")])
        self.assertEqual([(c["commit"], c["time"]) for c in certificate["cases"]], [("second", "of second"), ("first", "then")])


if __name__ == "__main__":
    unittest.main()

"""The files of tools/compare_attention.py where an earlier run has left results, and the record of a run's environment. No GPU."""

import importlib
import importlib.metadata
import io
import json
import pathlib
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from attention_implementations import Implementation, those_at  # noqa: E402
from compare_attention import ours_that_failed, versions_of  # noqa: E402
from long_work import telling_what_is_long  # noqa: E402
from report.throughput import of_runs, throughput_page  # noqa: E402
from throughput_results import COLUMNS, earlier_runs, joined, write  # noqa: E402

GPU = "a GPU"


def row(length, dim, gate, value):
    return dict.fromkeys(COLUMNS, "") | {"length": length, "key_dim": dim, "variant": gate, "value": value}


def certificate(commit):
    return {"commit": commit, "dirty": None, "time": f"time of {commit}", "machine": {"gpu": GPU}, "versions": {"torch": "2"}, "left_out": {}}


def run(folder, commit, rows):
    """A folder after a run of this commit that measured these cases: the values, and the certificate."""
    cases = {(r["length"], r["key_dim"], r["variant"]) for r in rows}
    write(folder, *joined(earlier_runs(folder, GPU), rows, certificate(commit), cases))
    lines = (folder / "attention_throughput.csv").read_text().splitlines()[1:]
    return [line.split(",")[COLUMNS.index("value")] for line in lines], json.loads((folder / "attention_throughput.json").read_text())


class Candidates(unittest.TestCase):
    def test_a_rival_that_a_length_costs_much_runs_only_if_asked(self):
        everywhere, tuned = (Implementation(name, True, True, None, **options) for name, options in (("all", {}), ("tuned", {"lengths": (4096,)})))
        self.assertEqual(those_at(4096, [everywhere, tuned], False), [everywhere, tuned])
        self.assertEqual(those_at(65536, [everywhere, tuned], False), [everywhere])
        self.assertEqual(those_at(65536, [everywhere, tuned], True), [everywhere, tuned])


class Failures(unittest.TestCase):
    def test_a_missed_budget_fails_a_run_of_ours_but_not_of_rivals(self):
        def share(name, value):
            return row("4096", "64", "open", value) | {"implementation": name, "metric": "share_of_budget"}

        time = row("4096", "64", "open", "7") | {"implementation": "lethe", "metric": "forward_time"}
        fine = [share("lethe", "1"), share("lethe_pruned", "0.2"), share("fla", "1.5"), share("flex", "nan"), time]
        self.assertEqual(ours_that_failed(fine), [])
        self.assertEqual(ours_that_failed([*fine, share("lethe_pruned", "1.01"), share("lethe_zero_gate", "nan")]),
                         [((4096, 64, "open"), "lethe_pruned"), ((4096, 64, "open"), "lethe_zero_gate")])


class Progress(unittest.TestCase):
    def test_only_what_takes_long_is_named_and_until_it_ends(self):
        with unittest.mock.patch.object(sys, "stderr", io.StringIO()) as said:
            with telling_what_is_long("short", seconds=60):
                pass
            self.assertEqual(said.getvalue(), "")
            with telling_what_is_long("long", seconds=0.01):
                deadline = time.monotonic() + 60
                while said.getvalue().count("\n") < 2 and time.monotonic() < deadline:
                    time.sleep(0.01)
            self.assertRegex(said.getvalue(), r"\A(long: no end within \d+ s\n){2,}\Z")
            told = said.getvalue()
            time.sleep(0.05)
            self.assertEqual(said.getvalue(), told)


class Joined(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_cases_that_are_not_measured_stay_with_their_runs_certificate(self):
        run(self.folder, "first", [row(16384, 64, "open", "1"), row(16384, 64, "init", "2"), row(65536, 64, "open", "3")])
        values, second = run(self.folder, "second", [row(4096, 128, "open", "4"), row(16384, 64, "open", "5")])
        self.assertEqual(values, ["4", "5", "2", "3"])
        self.assertEqual((second["commit"], second["cases"]), ("second", [[4096, 128, "open"], [16384, 64, "open"]]))
        self.assertEqual([(r["time"], r["cases"]) for r in second["earlier"]], [("time of first", [[16384, 64, "init"], [65536, 64, "open"]])])
        measured = [(4096, 128, "open"), (16384, 64, "open"), (16384, 64, "init"), (65536, 64, "open")]
        self.assertEqual([line.split(";", 2)[0] for line in of_runs(second, measured)],
                         ["T = 4096", "T = 16384, D = 64, init"])
        values, third = run(self.folder, "third", [row(16384, 64, "init", "6"), row(65536, 64, "open", "7")])
        self.assertEqual(values, ["4", "5", "6", "7"])
        self.assertEqual([r["commit"] for r in third["earlier"]], ["second"])

    def test_a_page_of_rivals_alone_has_their_lines_and_the_pruned_share(self):
        of = {"unit": "1", "stddev": "0", "samples": "5"}
        measured = [("cudnn", "share_of_budget", "0.25"), ("cudnn", "forward_speed", "440"), ("cudnn", "backward_speed", "390"),
                    ("lethe", "pruned_share", "0.5")]
        run(self.folder, "first", [row(4096, 64, "bimodal", value) | of | {"implementation": name, "metric": metric}
                                   for name, metric, value in measured])
        page = throughput_page(self.folder / "attention_throughput.csv")
        self.assertIn("gate bimodal, 50 % pruned", page)
        self.assertIn("| cudnn | 440 |", page)
        self.assertNotIn("| lethe |", page)

    def test_a_case_is_measured_again_as_a_whole(self):
        run(self.folder, "first", [row(4096, 64, "open", "1"), row(4096, 64, "open", "2")])
        self.assertEqual(run(self.folder, "second", [row(4096, 64, "open", "3")])[0], ["3"])

    def test_what_does_not_belong_together_is_refused(self):
        run(self.folder, "first", [row(4096, 64, "open", "1")])
        with self.assertRaisesRegex(SystemExit, "expected results of another GPU in .*, found some of a GPU"):
            earlier_runs(self.folder, "another GPU")
        (self.folder / "attention_throughput.json").unlink()
        with self.assertRaisesRegex(SystemExit, "or neither, found one"):
            earlier_runs(self.folder, GPU)


class Certificate(unittest.TestCase):
    def test_it_has_the_versions_of_what_was_imported(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(sys.modules), unittest.mock.patch.object(sys, "path",
                                                                                                                        [folder, *sys.path]):
            (pathlib.Path(folder) / "from_a_path.py").write_text("")
            importlib.import_module("from_a_path")
            expected = {"torch": importlib.metadata.version("torch"), "from_a_path": None}
            self.assertEqual(versions_of(("torch", "from_a_path", "not_imported")), expected)


if __name__ == "__main__":
    unittest.main()

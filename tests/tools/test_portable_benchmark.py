"""The benchmark of the kernels for every GPU: its arguments, its lengths, its ratios, and all of its rows on the CPU. No GPU."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "optimized" / "benchmarks" / "cuda" / "portable.py"
LIBRARIES = sorted(pathlib.Path(os.environ.get("LETHE_BUILD", ROOT / "build/cpu")).rglob("liblethe_torch.so"))
sys.path.insert(0, str(TOOL.parent))
import portable  # noqa: E402
import torch  # noqa: E402


class Arguments(unittest.TestCase):
    def test_that_are_wrong_are_refused(self):
        for options, words in ((["--length", "300"], "--length: expected a multiple of 128"),
                               (["--length", "128"], "--length: expected a multiple of 128"),
                               (["--rounds", "0"], "--rounds: expected at least 1, found 0"), (["--only", "x"], "--only: invalid choice"),
                               (["--output", "absent/found.json"], "--output: expected a file in a folder that exists")):
            with self.subTest(options):
                with unittest.mock.patch.object(sys, "argv",
                                                ["portable.py", "library", *options]), contextlib.redirect_stderr(io.StringIO()) as found:
                    with self.assertRaises(SystemExit) as end:
                        portable.main()
                self.assertEqual(end.exception.code, 2)
                self.assertIn(words, found.getvalue())


class Lengths(unittest.TestCase):
    def test_have_their_exact_total_and_are_the_same_each_time(self):
        for total, count in ((65536, 32), (1024, 32), (256, 8)):
            lengths = portable.lognormal_lengths(total, count)
            self.assertEqual((sum(lengths), len(lengths), lengths), (total, count, portable.lognormal_lengths(total, count)))
            self.assertGreaterEqual(min(lengths), 1)

    def test_of_the_equal_batch_cost_about_as_much(self):
        lengths = portable.lognormal_lengths(65536, 32)
        batch, length = portable.equal_lengths(lengths)
        self.assertEqual(length % 128, 0)
        self.assertAlmostEqual(batch * length**2 / sum(n * n for n in lengths), 1, delta=0.06)


def sides(*works):
    return [portable.Side(name, None, [], work) for name, work in zip(("ours", "first", "second"), works)]


class Ratios(unittest.TestCase):
    def compare(self, sides, at_most=False, bounds=None, **times):
        usual = {"forward": (1.2, 1.1) if at_most else (1.0, 1.2), "backward": (1.0, 1.2)}
        row = portable.Row("row", "", usual if bounds is None else bounds, None, at_most)
        series = {(i, direction): times.get(side.name, [1.0]) for i, side in enumerate(sides) for direction in portable.DIRECTIONS}
        return next(portable.compared(row, sides, series))

    def test_are_medians_over_rounds_beside_the_fastest(self):
        line = self.compare(sides(1, 1, 1), ours=[1.0, 2.0, 4.0], first=[9.0, 9.0, 9.0], second=[1.1, 2.0, 4.8])
        self.assertEqual((line["beside"], line["milliseconds"], line["beside_milliseconds"], line["reached"]), ("second", 2.0, 2.0, "must"))
        self.assertAlmostEqual(line["ratio"], 1.1)
        self.assertAlmostEqual(line["ratio_spread"], 0.1)

    def test_count_work(self):
        pruned = self.compare(sides(25, 100), ours=[1.0], first=[5.0])
        self.assertEqual((pruned["work"], pruned["ratio"], pruned["reached"]), (0.25, 1.25, "aim"))

    def test_without_bounds_reach_none(self):
        line = self.compare(sides(1, 1), bounds={}, ours=[1.0], first=[0.5])
        self.assertEqual((line["ratio"], line["must"], line["aim"], line["reached"]), (0.5, None, None, ""))
        line |= {"row": "row", "family": "portable", "head_dim": 96, "error": None}
        self.assertTrue(portable.printed(line).endswith(" 0.500 ± 0.000"), portable.printed(line))

    def test_of_time_are_bounded_from_above(self):
        for time, reached in ((1.0, "aim"), (1.15, "must"), (1.25, "no")):
            line = self.compare(sides(25, 100), at_most=True, ours=[time], first=[4.0])
            self.assertEqual((line["ratio"], line["reached"]), (time, reached))


@unittest.skipUnless(LIBRARIES, "needs liblethe_torch.so")
@unittest.skipIf("sanitize" in str(LIBRARIES[:1]), "an interpreter without the sanitizers cannot load a library with them")
class Rows(unittest.TestCase):
    def test_all_are_measured_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "portable.json"
            done = subprocess.run([sys.executable, TOOL, LIBRARIES[0], "--device", "cpu", "--length", "256", "--rounds", "1", "--output", output,
                                   "--commit", "c0"],
                                  capture_output=True, text=True, env=os.environ | {"OMP_WAIT_POLICY": "passive"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = json.loads(output.read_text())
        self.assertEqual((found["commit"], found["gpu"], found["length"], len(found["rows"])), ("c0", "cpu", 256, 44))
        self.assertEqual(len(done.stdout.splitlines()), 45)
        self.assertEqual({line["row"] for line in found["rows"]}, {row.name for row in portable.ROWS})

    def measure(self, row, change):
        """Of the row's first case, where our operator's results are changed."""
        torch.ops.load_library(LIBRARIES[0])
        (row,) = (of for of in portable.ROWS if of.name == row)
        call = portable.Call.__call__

        def changed(self, inputs, *arguments, **options):
            values = call(self, inputs, *arguments, **options)
            return values if options else change(values)

        with unittest.mock.patch.object(portable.Call, "__call__", changed), unittest.mock.patch.dict(os.environ):
            return portable.measured(row, *row.cases(256)[0], argparse.Namespace(length=256, device="cpu", rounds=1))

    def test_with_an_error_have_no_time(self):
        for row in ("gate", "packed"):
            self.assertEqual([line["error"] for line in self.measure(row, lambda values: values)], [None, None])
            (line,) = self.measure(row, lambda values: 1.05 * values)
            self.assertRegex(line["error"], "values: expected a relative error up to 1e-02, found 5")
            self.assertNotIn("milliseconds", line)
            self.assertIn("values: expected", portable.printed(line))

    def test_without_another_side_have_no_time(self):
        with unittest.mock.patch.object(portable.Torch, "__call__", lambda self, inputs: 2 * inputs.value):
            (line,) = self.measure("gate", lambda values: values)
        self.assertIn("other sides: expected one that runs and agrees", line["error"])


if __name__ == "__main__":
    unittest.main()

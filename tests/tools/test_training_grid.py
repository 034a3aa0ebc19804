"""tools/training_grid.py with a program in place of lethe: its cells, what a second call repeats, and what it leaves out. No GPU."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import training_grid  # noqa: E402
from report.training_grid import limits_table, training_grid_page, training_grid_table  # noqa: E402

# As lethe bench --serve: a step takes a second for every 4096 tokens of context, half of it where it prunes; 360M has no memory for 16384 tokens.
BENCH = """#!{python}
import json, sys
size, context = (sys.argv[sys.argv.index(name) + 1] for name in ("--size", "--context"))
with open("{log}", "a") as log:
    print(*sys.argv[1:], file=log)
print('ready {{"loss": 1.0, "tokens": 32768}}', flush=True)
for line in sys.stdin:
    word, count = line.split()
    if word == "context":
        context = count
        if (size, context) == ("360m", "16384"):
            sys.exit("lethe: expected memory, found none")
        print(json.dumps({{"context": int(context), "tokens": 32768, "flops_per_token": 1e9, "product_flops_per_second": 32768e9, "peak_bytes": 3 << 30}}), flush=True)
    else:
        print(int(count) * int(context) / 4096 * (0.5 if "log_pruning_tolerance=-10.0" in sys.argv else 1), flush=True)
"""
RUN = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768}


class Grid(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output, self.log = self.folder / "training_grid.json", self.folder / "log"
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "lethe"
        program.write_text(BENCH.format(python=sys.executable, log=self.log))
        program.chmod(0o755)

    def call(self, *arguments, **run):
        """The exit status, and the processes that were started."""
        self.log.write_text("")
        with mock.patch.object(training_grid, "certificate", lambda: RUN | run), contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.object(sys, "argv", ["training_grid.py", "--build", str(self.folder), "--output", str(self.output), *arguments]):
            status = training_grid.main()
        return status, self.log.read_text().splitlines()

    def cells(self):
        return {(cell["size"], cell["model"], cell["context"]): cell for cell in json.loads(self.output.read_text())["cells"]}

    def test_has_a_process_a_size_and_model_and_a_cell_a_context(self):
        status, processes = self.call("--sizes", "125m", "760m")
        self.assertEqual((status, len(processes), len(self.cells())), (0, 8, 24))
        cell = self.cells()["760m", "fox-pro+acp", 8192]
        self.assertEqual((cell["error"], cell["seconds_a_step"], cell["tokens"]), (None, [1.0] * 4, 32768))
        pruned = [line for line in processes if "log_pruning_tolerance" in line]
        self.assertEqual(len(pruned), 2)
        self.assertTrue(all("--gates bimodal" in line for line in processes if "fox-pro" in line))
        self.assertFalse(any("--gates" in line for line in processes if "transformer" in line))
        self.assertEqual(self.output.with_suffix(".md").read_text(), training_grid_page(self.output))

    def test_goes_on_where_it_was_stopped_and_measures_nothing_twice(self):
        status, _ = self.call("--sizes", "125m", "--until", "-1")
        self.assertEqual((status, self.output.exists()), (training_grid.CONTINUES, False))
        self.assertEqual(self.call("--sizes", "125m", "--contexts", "4096")[0], 0)
        status, processes = self.call("--sizes", "125m", "--models", "fox-pro")
        self.assertEqual((status, len(processes), len(self.cells())), (0, 1, 6))
        self.assertIn("--context 8192", processes[0])
        self.assertEqual(self.call("--sizes", "125m", "--models", "fox-pro"), (0, []))

    def test_that_fails_costs_its_own_cells_and_is_tried_again(self):
        call = ("--sizes", "360m", "125m", "--models", "fox-pro")
        self.assertEqual(self.call(*call)[0], 1)
        cells = self.cells()
        self.assertEqual([cell["error"] is None for cell in cells.values()], [True, True, False, True, True, True])
        self.assertIn("expected memory", cells["360m", "fox-pro", 16384]["error"])
        self.assertIn("Failed: 360m fox-pro 16384: ", training_grid_page(self.output))
        self.assertEqual((len(self.call(*call)[1]), len(self.cells())), (1, 6))

    def test_of_another_run_is_refused(self):
        self.call("--sizes", "125m", "--models", "fox-pro")
        for other in ({"commit": "d" * 40}, {"gpu": "NVIDIA H100"}):
            with self.assertRaises(SystemExit) as refused:
                self.call("--sizes", "125m", **other)
            self.assertIn("--output: expected cells of", refused.exception.code)
        with self.assertRaises(SystemExit):
            self.call("--contexts", "3000")

    def test_has_ratios_shares_and_memory_in_its_tables(self):
        self.call("--sizes", "125m", "760m", "--contexts", "16384", "4096")
        rows = training_grid_table(self.output).splitlines()
        self.assertEqual(rows[2:], ["| 125M, 4096 | 32768 | 65536 | 32768 | 32768 | 2.000 | 1.000 | 1.000 |", "| 125M, 16384 | 8192 | 16384 | 8192 | 8192 | 2.000 | 1.000 | 1.000 |",
                                    "| 760M, 4096 | 32768 | 65536 | 32768 | 32768 | 2.000 | 1.000 | 1.000 |", "| 760M, 16384 | 8192 | 16384 | 8192 | 8192 | 2.000 | 1.000 | 1.000 |"])
        self.assertEqual(limits_table(self.output).splitlines()[3], "| 125M, 16384 | 25 %, 3.0 | 50 %, 3.0 | 25 %, 3.0 | 25 %, 3.0 |")

    def test_without_a_cell_says_so(self):
        self.output.write_text(json.dumps(RUN | {"rounds": 4, "slot_seconds": 0.4, "cells": []}))
        self.assertIn("No cell has been measured yet.", training_grid_page(self.output))


if __name__ == "__main__":
    unittest.main()

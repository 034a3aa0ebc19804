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
size, context, model = (sys.argv[sys.argv.index(name) + 1] for name in ("--size", "--context", "--architecture"))
prunes = "log_pruning_tolerance=-10.0" in sys.argv
def log(*words):
    with open("{log}", "a") as file:
        print(*words, file=file)
log(*sys.argv[1:])
print('ready {{"loss": 1.0, "tokens": 32768, "peak_bytes": 1000}}', flush=True)
for line in sys.stdin:
    log(model + "+acp" * prunes, line.strip())
    word, *count = line.split()
    if word == "context":
        context, = count
        if (size, context) == ("360m", "16384"):
            sys.exit("lethe: expected memory, found none")
        print(json.dumps({{"context": int(context), "tokens": 32768, "flops_per_token": 1e9,
                          "product_flops_per_second": 32768e9, "peak_bytes": 3 << 30}}), flush=True)
    elif word == "rest":
        print(json.dumps({{"held_bytes": 100, "free_bytes": {free}}}), flush=True)
    else:
        print(int(count[0]) * int(context) / 4096 * (0.5 if prunes else 1), flush=True)
"""
RUN = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768}


class Grid(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output, self.log = self.folder / "training_grid.json", self.folder / "log"
        (self.folder / "bin").mkdir()
        self.has_free(1 << 40)

    def has_free(self, free):
        """The bytes that are free beside a process at rest."""
        program = self.folder / "bin" / "lethe"
        program.write_text(BENCH.format(python=sys.executable, log=self.log, free=free))
        program.chmod(0o755)

    def call(self, *arguments, **run):
        """The exit status, and the processes that were started."""
        self.log.write_text("")
        with mock.patch.object(training_grid, "certificate", lambda: RUN | run), contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.object(sys, "argv", ["training_grid.py", "--build", str(self.folder), "--output", str(self.output), *arguments]):
            status = training_grid.main()
        self.asked = [line.split(maxsplit=1) for line in self.log.read_text().splitlines() if "--serve" not in line]
        return status, [line for line in self.log.read_text().splitlines() if "--serve" in line]

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

    def test_models_take_slots_in_turn_and_rest_between_them(self):
        self.call("--sizes", "760m", "--contexts", "4096", "8192", "--rounds", "5")
        models = list(training_grid.MODELS)
        self.assertEqual(self.asked[:4], [[model, "rest"] for model in models])  # as each is ready
        slots = []
        for model, words in self.asked[4:]:
            if not slots or slots[-1][-1] == "rest":
                slots.append([model])
            self.assertEqual(slots[-1][0], model)  # no other before its rest
            slots[-1].append(words)
        for first, context in ((0, "4096"), (20, "8192")):
            rounds = [slots[i : i + 4] for i in range(first, first + 20, 4)]
            for number, of_round in enumerate(rounds):
                self.assertEqual(sorted(slot[0] for slot in of_round), sorted(models))
                for _, *words in of_round:
                    self.assertEqual(words, [f"context {context}"] * (number == 0) + ["go 1", "go 1", "rest"])
        self.assertEqual(len(slots), 40)
        self.assertGreater(len({tuple(slot[0] for slot in slots[i : i + 4]) for i in range(0, 40, 4)}), 1)  # ten rounds in one order: 1 of 24⁹
        self.assertEqual(self.cells()["760m", "fox-pro", 8192]["in_turn_with"], models[1:])
        self.assertNotIn("Not in turn", training_grid_page(self.output))

    def test_models_without_room_beside_one_another_take_theirs_alone(self):
        room = 1.05 * 1000 + (1 << 30)  # of the program's figures
        for free, alone in ((int(room) - 1, True), (int(room) + 1, False)):
            self.has_free(free)
            self.output.unlink(missing_ok=True)
            self.assertEqual(self.call("--sizes", "760m", "--models", "fox-pro", "transformer-pro", "--contexts", "4096", "8192")[0], 0)
            first = [model for model, words in self.asked if words == "context 8192"][0]
            self.assertEqual([model for model, _ in self.asked].index("transformer-pro") > self.asked.index([first, "context 8192"]), alone)
            self.assertEqual(self.cells()["760m", "fox-pro", 4096]["in_turn_with"], [] if alone else ["transformer-pro"])
            self.assertEqual("Not in turn: 760M at 4096, 8192, one after the other FoX (Pro); Transformer (Pro).\n"
                             in training_grid_page(self.output), alone)

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
        self.assertEqual(rows[2:], ["| 125M, 4096 | 32768 | 65536 | 32768 | 32768 | 2.000 | 1.000 | 1.000 |",
                                    "| 125M, 16384 | 8192 | 16384 | 8192 | 8192 | 2.000 | 1.000 | 1.000 |",
                                    "| 760M, 4096 | 32768 | 65536 | 32768 | 32768 | 2.000 | 1.000 | 1.000 |",
                                    "| 760M, 16384 | 8192 | 16384 | 8192 | 8192 | 2.000 | 1.000 | 1.000 |"])
        self.assertEqual(limits_table(self.output).splitlines()[3], "| 125M, 16384 | 25 %, 3.0 | 50 %, 3.0 | 25 %, 3.0 | 25 %, 3.0 |")

    def test_without_a_cell_says_so(self):
        self.output.write_text(json.dumps(RUN | {"rounds": 4, "slot_seconds": 0.4, "cells": []}))
        self.assertIn("No cell has been measured yet.", training_grid_page(self.output))


if __name__ == "__main__":
    unittest.main()

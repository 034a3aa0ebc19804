"""The rows of tools/compare_training.py: one that fails or gives no answer in time has an error, and the others their times. No GPU."""

import contextlib
import importlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare_training  # noqa: E402
import training_rows  # noqa: E402
from fla_models import tell_what_triton_compiles  # noqa: E402
from training_rows import Row, measure  # noqa: E402

READY = """
import sys, time
print("a library's greeting")
print('ready {"loss": 1.0, "tokens": 100}', flush=True)
"""
STEPS = """
for line in sys.stdin:
    print(0.25 * int(line.split()[1]), flush=True)
"""
WORKS = READY + STEPS
ENDS_EARLY = "import sys; sys.exit('expected a GPU, found none')"
ENDS_LATER = READY + "sys.stdin.readline(); print(1.0, flush=True); sys.stdin.readline(); sys.exit('out of memory')"
HANGS = "import sys, time; print('compiled 7 kernels', file=sys.stderr, flush=True); time.sleep(600)"
HANGS_LATER = READY + "time.sleep(600)"


def row(program, limit=60.0):
    made = Row("fla", [sys.executable, "-c", program], case="125m:4096:hgrn2", limit=limit)
    made.wait_until_ready()
    return made


class Rows(unittest.TestCase):
    def setUp(self):
        self.rows = []

    def tearDown(self):
        for made in self.rows:
            made.end()

    def row(self, program, limit=60.0):
        self.rows.append(row(program, limit))
        return self.rows[-1]

    def test_of_a_process_that_works_have_figures_and_times(self):
        works = self.row(WORKS)
        self.assertEqual((works.error, works.figures), (None, {"loss": 1.0, "tokens": 100}))
        self.assertEqual(works.take(8), 0.25)
        works.end()
        self.assertEqual(works.process.returncode, 0)

    def test_of_a_process_that_ends_have_its_last_words(self):
        self.assertEqual(self.row(ENDS_EARLY).error, "ended before its first step: expected a GPU, found none")

    def test_without_an_answer_in_time_are_ended(self):
        hangs = self.row(HANGS, 6.0)
        self.assertEqual(hangs.error, "expected its first step within 6 s, found none: compiled 7 kernels")
        self.assertIsNotNone(hangs.process.wait(60))

    def test_that_fail_later_leave_the_others_their_times(self):
        works, ends, hangs = self.row(WORKS), self.row(ENDS_LATER), self.row(HANGS_LATER, 6.0)
        measure(self.rows, 4, 1.0)
        self.assertEqual(works.times, [0.25] * 4)
        self.assertEqual(ends.error, "ended before the end of 2 steps: out of memory")
        self.assertEqual(hangs.error, "expected the end of 2 steps within 6 s, found none: no message")

    def test_that_take_long_are_named_with_their_last_words(self):
        said = io.StringIO()
        with mock.patch.object(training_rows, "PATIENCE", 0.2), contextlib.redirect_stderr(said):
            self.row(HANGS, 6.0)
        self.assertRegex(said.getvalue(), r"(?m)^125m:4096:hgrn2 fla, its first step: no end within \d+ s: compiled 7 kernels$")


class Comparison(unittest.TestCase):
    def of(self, programs, cases, written):
        """Exit status, results and page of a comparison whose rows are `programs` and whose cases' weights `written` leaves."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as patches:
            output = pathlib.Path(folder) / "found.json"
            chosen = lambda case, options, weights: {name: [sys.executable, "-c", program] for name, program in programs.items()}
            certificate = {"gpu": "a GPU", "driver": "1", "torch": "2", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 100}
            for name, other in (("commands", chosen), ("certificate", lambda: dict(certificate))):
                patches.enter_context(mock.patch.object(compare_training, name, other))
            patches.enter_context(mock.patch.object(compare_training.Case, "write", written))
            patches.enter_context(mock.patch.object(sys, "argv",
                                                    ["compare_training", "--case", *cases, "--rounds", "2", "--slot", "1", "--row-limit", "20",
                                                                  "--output", str(output)]))
            said = patches.enter_context(contextlib.redirect_stdout(io.StringIO()))
            status = compare_training.main()
            return status, json.loads(output.read_text())["results"], output.with_suffix(".md").read_text(), said.getvalue()

    def test_keeps_the_rows_that_work(self):
        status, results, page, said = self.of({"lethe": WORKS, "compiled": ENDS_EARLY}, ["125m:4096:fox-pro"], lambda case, path: None)
        self.assertEqual([(found["row"], found.get("tokens_per_second"), found["error"]) for found in results],
                         [("lethe", 400.0, None), ("compiled", None, "ended before its first step: expected a GPU, found none")])
        self.assertEqual(status, 1)
        self.assertIn("| 125m, 4096, fox-pro | 400 | – | – |", page)
        self.assertIn("expected a GPU, found none", said)

    def test_keeps_the_cases_that_work(self):
        def written(case, path):
            if case.name == "fox-llama":
                raise OSError(28, "No space left on device", "weights")

        status, results, page, _ = self.of({"lethe": WORKS, "compiled": WORKS}, ["125m:4096:fox-llama", "125m:4096:fox-pro"], written)
        self.assertEqual([(found["case"], found["row"], found.get("tokens_per_second"), found["error"]) for found in results],
                         [("125m:4096:fox-llama", name, None, "weights: No space left on device") for name in ("lethe", "compiled")]
                         + [("125m:4096:fox-pro", name, 400.0, None) for name in ("lethe", "compiled")])
        self.assertEqual(status, 1)
        self.assertIn("| 125m, 4096, fox-pro | 400 | 400 | 1.000 |", page)

    def test_that_fails_nowhere_ends_well(self):
        self.assertEqual(self.of({"lethe": WORKS}, ["125m:4096:fox-pro"], lambda case, path: None)[0], 0)


class Commands(unittest.TestCase):
    def test_are_those_of_the_rows_that_are_asked_for(self):
        options = types.SimpleNamespace(build="build", library="library", peer="peer", gpus=[2], rows=["lethe", "official", "fla"])
        fox = compare_training.commands(compare_training.Case("125m:4096:fox-pro"), options, "weights")
        self.assertEqual(list(fox), ["lethe", "official", "2 GPUs"])
        place = fox["lethe"].index("--batch-tokens") + 1
        self.assertEqual((fox["lethe"][place], fox["2 GPUs"][place], fox["2 GPUs"][-2:]), ("32768", "65536", ["--gpus", "2"]))
        options.gpus = []
        recurrent = compare_training.commands(compare_training.Case("125m:4096:mamba2", "checkout"), options, "weights")
        self.assertEqual((list(recurrent), recurrent["fla"][2:]),
                         (["lethe", "fla"], ["--serve-fla", "125m:4096:mamba2", "weights", "fla", "checkout"]))


class Compilation(unittest.TestCase):
    def test_by_triton_is_counted_without_what_its_cache_had(self):
        compilation = types.SimpleNamespace(listener=None)
        triton = types.SimpleNamespace(knobs=types.SimpleNamespace(compilation=compilation))
        said, known = io.StringIO(), {"metadata": {}, "metadata_group": {}, "times": None}
        with mock.patch.object(importlib, "import_module", lambda name: triton), contextlib.redirect_stderr(said):
            tell_what_triton_compiles()
            for name, cached in (("first", False), ("second", True), ("third", False)):
                compilation.listener(src=types.SimpleNamespace(name=name), cache_hit=cached, **known)
        self.assertEqual(said.getvalue(),
                         "kernels that Triton has compiled: 1, the last first\nkernels that Triton has compiled: 2, the last third\n")

    def test_by_an_early_triton_goes_uncounted(self):
        with mock.patch.object(importlib, "import_module", lambda name: types.SimpleNamespace()):
            self.assertIsNone(tell_what_triton_compiles())


if __name__ == "__main__":
    unittest.main()

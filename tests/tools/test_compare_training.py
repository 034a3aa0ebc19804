"""The cases that tools/compare_training.py takes, and its page. No GPU."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "compare_training.py"
sys.path.insert(0, str(ROOT / "tools"))
from compare_training import Case, table  # noqa: E402


class Cases(unittest.TestCase):
    def test_name_a_model_its_size_and_its_length(self):
        case = Case("360m:2048:fox-pro+acp")
        self.assertEqual((case.size, case.length, case.architecture), ("360m", 2048, "fox-pro"))
        self.assertEqual((case.pro, case.forgets, case.prunes), (True, True, True))
        plain = Case("125m:4096:transformer-llama")
        self.assertEqual((plain.pro, plain.forgets, plain.prunes), (False, False, False))

    def test_of_another_form_are_refused_in_one_line(self):
        for text in ("125m", "125m:4096", "125m:4096:fox-pro:x", "7b:4096:fox-pro", "125m:long:fox-pro", "125m:0:fox-pro", "125m:-1:fox-pro",
                     "125m:3000:fox-pro", "125m:4096:fox", ""):
            with self.subTest(text):
                done = subprocess.run([sys.executable, TOOL, "--case", text], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(done.stderr, f"compare_training: --case: expected SIZE:LENGTH:MODEL such as 125m:4096:fox-pro, found {text}\n")

    def test_are_not_measured_for_a_file_that_can_not_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, TOOL, "--output", f"{folder}/absent/found.json"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("--output: expected a file in a folder that exists", done.stderr)


def result(case, row, speed=None):
    return {"case": case, "row": row, "error": None if speed else "loss: expected …", **({"tokens_per_second": speed} if speed else {})}


class Table(unittest.TestCase):
    def test_has_a_ratio_where_both_rows_have_a_speed(self):
        found = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768,
                 "rounds": 5, "slot_seconds": 2.0,
                 "results": [result("125m:4096:fox-pro", "lethe", 300000.4), result("125m:4096:fox-pro", "compiled", 200000.0),
                             result("125m:4096:fox-llama", "lethe", 100.0), result("125m:4096:fox-llama", "compiled"),
                             result("360m:4096:fox-pro", "lethe"), result("360m:4096:fox-pro", "compiled", 50.0)]}
        page = table(found)
        rows = [line for line in page.splitlines() if line.startswith("| ")]
        self.assertEqual(rows, ["| model | tokens/s, lethe | compiled by PyTorch | ratio |", "| 125m, 4096, fox-pro | 300000 | 200000 | 1.500 |",
                                "| 125m, 4096, fox-llama | 100 | – | – |", "| 360m, 4096, fox-pro | – | 50 | – |"])
        for words in ("NVIDIA H200", "cccccccccccc,", "2026-01-02", "5 rounds of 2.0 s"):
            self.assertIn(words, page)

    def test_has_the_official_code_and_several_gpus_where_they_ran(self):
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768,
                 "rounds": 5, "slot_seconds": 2.0,
                 "results": [result("125m:4096:fox-pro", "lethe", 300000.0), result("125m:4096:fox-pro", "compiled", 200000.0),
                             result("125m:4096:fox-pro", "official", 150000.0), result("125m:4096:fox-pro", "4 GPUs"),
                             result("125m:4096:fox-pro", "2 GPUs", 585000.0)]}
        rows = [line for line in table(found).splitlines() if line.startswith("| ")]
        self.assertEqual(rows, ["| model | tokens/s, lethe | compiled by PyTorch | ratio | official code | ratio |",
                                "| 125m, 4096, fox-pro | 300000 | 200000 | 1.500 | 150000 | 2.000 |",
                                "| model | tokens/s, one GPU | 2 GPUs | of one | 4 GPUs | of one |",
                                "| 125m, 4096, fox-pro | 300000 | 585000 | 1.950 | – | – |"])

    def test_has_memory_and_prompts_where_they_were_measured(self):
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768,
                 "rounds": 5, "slot_seconds": 2.0, "results": [result("125m:4096:fox-pro", "lethe", 300000.0) | {"peak_bytes": 3 << 30}],
                 "prompts": [{"case": "125m:16384:fox-pro", "milliseconds": 36.37, "bytes_beyond_the_weights": 1 << 29}]}
        rows = [line for line in table(found).splitlines() if line.startswith("| ")]
        self.assertEqual(rows, ["| model | tokens/s, lethe | GiB at most, lethe |", "| 125m, 4096, fox-pro | 300000 | 3.0 |",
                                "| model | ms | GiB beyond the weights |", "| 125m, 16384, fox-pro | 36.4 | 0.50 |"])

    def test_of_the_committed_results_is_the_committed_page(self):
        for data in ROOT.glob("results/*/training_step*.json"):
            self.assertEqual(data.with_suffix(".md").read_text(), table(json.loads(data.read_text())))


if __name__ == "__main__":
    unittest.main()

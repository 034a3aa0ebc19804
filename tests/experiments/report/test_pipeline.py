"""The path from text to report at a scale without meaning: every claim is trained, measured, judged and drawn, each step once.

usage: test_pipeline.py LETHE [unittest arguments]
"""

import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
JUDGED = ("attention_throughput.csv", "attention_throughput.json", "forgetting_attention_cuda.json")  # files of results/h200 that claims judge
GRID = {"gpu": "a GPU", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02", "tokens_a_step": 32768, "rounds": 2,
        "slot_seconds": 0.4, "cells": [
    {"size": "760m", "model": model, "context": 16384, "error": None, "tokens": 32768, "seconds_a_step": [seconds, 1.01 * seconds],
     "flops_per_token": 8e9,
     "product_flops_per_second": 7e14} for model, seconds in (("fox-pro", 0.5), ("fox-pro+acp", 0.4))]}
VERDICTS = {"reproduced", "trend reproduced", "direction reproduced, size contradicted", "refuted", "inconclusive at this scale", "out of reach here"}


class Pipeline(unittest.TestCase):
    """One job, run once; the tests read its files."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        (cls.root / "experiments").symlink_to(SOURCE / "experiments")
        measured = cls.root / "results" / "h200"
        measured.mkdir(parents=True)
        for name in JUDGED:
            shutil.copy(SOURCE / "results" / "h200" / name, measured)
        (measured / "training_grid.json").write_text(json.dumps(GRID))
        cls.claims = set(re.findall(r"^  \w+/(\w+)$", cls.lethe("list", "--scale", "smoke").stdout, re.MULTILINE))
        cls.log = cls.lethe("run", "--scale", "smoke").stderr
        (cls.machine,) = set((cls.root / "results").iterdir()) - {measured}
        cls.report = cls.tool("report.py")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def lethe(cls, *arguments):
        results = ("--results", str(cls.root / "results")) if arguments[0] == "run" else ()
        return subprocess.run([LETHE, "--root", str(cls.root), *arguments, *results], check=True, capture_output=True, text=True)

    @classmethod
    def tool(cls, name):
        command = [sys.executable, str(SOURCE / "tools" / name), "--root", str(cls.root)]
        return subprocess.run(command, capture_output=True, text=True)

    def times(self):
        """The times of each claim's measurement and each model's training."""
        files = [*self.machine.glob("*.json"), *self.root.glob("artefacts/models/*/done.json")]
        return {path: path.stat().st_mtime_ns for path in files}

    def test_every_claim_has_numbers_and_a_verdict_with_its_certificate(self):
        self.assertEqual({path.stem for path in self.machine.glob("*.json")}, self.claims)
        self.assertEqual({path.parent.name for path in SOURCE.glob("experiments/papers/*/*/paper.csv")}, self.claims)
        for claim in self.claims:
            certificate = json.loads((self.machine / f"{claim}.json").read_text())
            self.assertIn(certificate["verdict"], VERDICTS)
            self.assertTrue(all(comparison["verdict"] in VERDICTS for comparison in certificate["comparisons"]))
            self.assertEqual(certificate["scale"], "smoke")
            self.assertGreater(len((self.machine / f"{claim}.csv").read_text().splitlines()), 1)

    def test_a_model_that_several_claims_ask_for_is_trained_once(self):
        trained, asked = set(), 0
        for claim in self.claims:
            runs = json.loads((self.machine / f"{claim}.json").read_text())["runs"]
            asked += len(runs)
            trained |= {run["artefact"] for run in runs}
        self.assertEqual({path.parent.name for path in self.root.glob("artefacts/models/*/done.json")}, trained)
        self.assertGreater(asked, len(trained))

    def test_a_bundle_alone_is_judged_to_the_same_verdicts(self):
        bundle, judged = self.root / "smoke-all.tar.xz", self.root / "judged"
        self.lethe("bundle", "--to", str(bundle))
        lines = self.lethe("judge", "--scale", "smoke", "--from", str(bundle), "--results", str(judged)).stdout.splitlines()
        self.assertEqual([line.split(":")[0] for line in lines if "not judged" in line], ["generation_cost"])
        (folder,) = judged.iterdir()
        for claim in self.claims - {"generation_cost"}:
            mine, theirs = (json.loads((place / f"{claim}.json").read_text()) for place in (self.machine, folder))
            self.assertEqual(mine["comparisons"], theirs["comparisons"], claim)
            self.assertEqual((self.machine / f"{claim}.csv").read_text().splitlines()[0], (folder / f"{claim}.csv").read_text().splitlines()[0])
            self.assertEqual(mine["runs"], theirs["runs"])

    def test_a_claim_is_judged_by_the_runs_that_there_are(self):
        bundle, judged = self.root / "smoke-part.tar.xz", self.root / "judged-in-part"
        runs = json.loads((self.machine / "ablations.json").read_text())["runs"]
        absent = [run["artefact"] for run in runs if run["label"] in ("FoX (Pro) + RoPE", "FoX (Pro) - KV-shift")]
        elsewhere = self.root / "elsewhere"
        elsewhere.mkdir()
        for name in absent:
            shutil.move(self.root / "artefacts/models" / name, elsewhere / name)
        try:
            self.lethe("bundle", "--to", str(bundle))
        finally:
            for name in absent:
                shutil.move(elsewhere / name, self.root / "artefacts/models" / name)
        text = self.lethe("judge", "ablations", "--scale", "smoke", "--from", str(bundle), "--results", str(judged)).stdout
        self.assertIn("not run yet: FoX (Pro) - KV-shift, context 64, seed 0; FoX (Pro) + RoPE, context 64, seed 0", text)
        (folder,) = judged.iterdir()
        part, whole = (json.loads((place / "ablations.json").read_text()) for place in (folder, self.machine))
        self.assertEqual(len(part["not_run"]), len(absent))
        for found, before in zip(part["comparisons"], whole["comparisons"], strict=True):
            if any(row in found.get("open", "") for row in ("FoX (Pro) + RoPE", "FoX (Pro) - KV-shift")):
                self.assertTrue(found["open"].endswith(" has not run yet"))
                self.assertIsNone(found["measured"])
            else:
                self.assertEqual(found["measured"], before["measured"])

    def test_every_row_names_its_commit_its_machine_and_its_artefact(self):
        for claim in self.claims:
            runs = {run["artefact"] for run in json.loads((self.machine / f"{claim}.json").read_text())["runs"]}
            with (self.machine / f"{claim}.csv").open() as file:
                for row in csv.DictReader(file):
                    self.assertTrue(row["commit"] and row["machine"], row)
                    self.assertIn(row["artefact"], runs | {""}, row)

    def test_the_report_has_every_claims_figure_and_needs_no_other_file(self):
        self.assertEqual(self.report.returncode, 0, self.report.stderr)
        page = (self.machine / "report.html").read_text()
        self.assertEqual(re.findall(r'id="figure-(\w+)"', page)[:len(self.claims)],
                         [name for name in re.findall(r'<section id="(\w+)"', page) if name in self.claims])
        self.assertEqual(page.count('id="figure-h200-'), len(list((self.root / "results/h200").glob("attention_throughput_*.svg"))))
        self.assertNotIn("Own trainings", page)
        self.assertNotRegex(page, r'(src|href)="(?!#|data:)')
        for claim in self.claims:
            self.assertTrue((self.machine / f"{claim}.md").exists(), claim)

    def test_what_was_generated_passes_the_check(self):
        self.tool("report.py")
        checked = self.tool("check_results.py")
        self.assertEqual((checked.stdout, checked.returncode), ("", 0), checked.stderr)

    def test_a_second_call_repeats_nothing(self):
        before = self.times()
        self.lethe("run", "--scale", "smoke")
        self.assertEqual(self.times(), before)

    def test_a_claim_that_is_lost_is_measured_again_without_any_training(self):
        before = self.times()
        (self.machine / "boundaries.csv").unlink()
        self.lethe("run", "--scale", "smoke")
        changed = {path.name for path, time in self.times().items() if time != before[path]}
        self.assertEqual(changed, {"boundaries.json"})

    def test_a_certificate_names_the_commit_that_trained_each_model(self):
        path = self.machine / "boundaries.json"
        done = self.root / "artefacts/models" / json.loads(path.read_text())["runs"][0]["artefact"] / "done.json"
        original = done.read_text()
        self.addCleanup(done.write_text, original)
        changed = re.sub(r'"commit": .*,', f'"commit": "{"a" * 40}",', re.sub(r'"dirty": .*,', '"dirty": true,', original))
        without_seal = re.sub(r' "sha256": .*,\n', "", changed).rstrip("\n")
        done.write_text(re.sub(r'"sha256": .*,', f'"sha256": "{hashlib.sha256(without_seal.encode()).hexdigest()}",', changed))
        (self.machine / "boundaries.csv").unlink()
        self.lethe("run", "--scale", "smoke")
        certificate = json.loads(path.read_text())
        self.assertEqual((certificate["runs"][0]["commit"], certificate["runs"][0]["dirty"]), ("a" * 40, True))
        self.assertNotEqual(certificate["commit"], "a" * 40)


if __name__ == "__main__":
    LETHE = sys.argv.pop(1)
    unittest.main()

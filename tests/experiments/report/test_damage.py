"""A damaged file of results blocks itself alone: it is named, everything else is made, and no tool shows a traceback."""

import json
import random
import shutil
import unittest

from checkout import CERTIFICATE, SOURCE, WithCheckout  # first: it finds tools/report
from report.benchmarks import benchmark_files, benchmark_page
from report.page import page
from report.results import Faults, sound_claims
from report.tables import index, use
from report.throughput import throughput_page
from report.trainings import sound_trainings
from sealed_json import sealed

INPUTS = 300  # a kind; deterministic


def damaged(content, random_of):
    """The bytes truncated, flipped, removed, repeated, or with another value in the place of a JSON value."""
    kind, at = random_of.randrange(6), random_of.randrange(max(1, len(content)))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << random_of.randrange(8)]) + content[at + 1:] if content else b"\0"
    if kind == 2:
        return content[:at] + content[at + random_of.randrange(1, 40):]
    if kind == 3:
        return content[:at] + content[max(0, at - random_of.randrange(1, 40)):]
    if kind == 4:
        return content.replace(random_of.choice([b":", b",", b"\n", b'"', b"1"]), random_of.choice([b"", b"[", b"\0", b"\xff", b": [" * 2000]),
                               random_of.randrange(1, 4))
    try:
        members = json.loads(content)
        name = random_of.choice(list(members))
        members[name] = random_of.choice([None, [], {}, -1, 1e308, "x", [None], {"low": "x"}, True])
        return json.dumps(members).encode()
    except (ValueError, AttributeError, TypeError, IndexError):
        return b""


class Damage(WithCheckout):
    def setUp(self):
        super().setUp()
        self.other = self.checkout.results / "other"
        shutil.copytree(self.checkout.machine, self.other)

    def made(self):
        """The pages of both folders, without figures, and the faults."""
        pages, faults = {}, []
        for folder in (self.checkout.machine, self.other):
            claims, found = sound_claims(self.checkout.root, folder, use)
            pages[folder.name] = page(folder.name, claims, faults=found)
            faults += found
        index(self.checkout.root, self.checkout.results)
        return pages, faults

    def test_of_any_kind_leaves_the_other_folder_as_it_is(self):
        whole = self.made()[0]["other"]
        random_of, seen = random.Random(39), 0
        for name in ("ablations.json", "ablations.csv"):
            path = self.checkout.machine / name
            original = path.read_bytes()
            for case in range(INPUTS):
                path.write_bytes(damaged(original, random_of))
                with self.subTest(name=name, case=case):
                    pages, faults = self.made()
                    self.assertEqual(pages["other"], whole)
                    for fault in faults:
                        self.assertNotIn("\n", fault)
                        self.assertTrue(fault.startswith(str(self.checkout.machine)), fault)
                    seen += bool(faults)
            path.write_bytes(original)
        self.assertGreater(seen, INPUTS, "most damage has to be noticed")

    def test_of_a_training_leaves_the_others(self):
        models = self.checkout.root / "artefacts" / "models"
        for name in ("damaged", "whole"):
            (models / name).mkdir(parents=True)
            (models / name / "run.json").write_text(json.dumps({"label": name, "model": {"layers": 1, "mixer": {"name": "decay"}},
                                                                "training": {"corpus": "bible"}}))
            (models / name / "done.json").write_text(sealed({"validation_loss": 1.5, "time": "now", "machine": {"name": "m"}}))
            (models / name / "log.jsonl").write_text('{"step": 0, "tokens": 10, "loss": 2.5}\n{"step": 1, "tokens": 20, "loss": 2.25}\n')
        random_of = random.Random(40)
        from report.trainings import draw_trainings, trainings_table
        for name in ("run.json", "done.json", "log.jsonl"):
            path = models / "damaged" / name
            original = path.read_bytes()
            for case in range(INPUTS):
                path.write_bytes(damaged(original, random_of))
                with self.subTest(name=name, case=case):
                    trainings, faults = sound_trainings(models)
                    self.assertIn("whole", [training.name for training in trainings])
                    self.assertEqual(len(trainings) + len(faults), 2)
                    self.assertIn("`whole`", trainings_table(trainings))
                    for training in trainings:
                        training.curve(), training.title
            path.write_bytes(original)
        draw_trainings(sound_trainings(models)[0])

    def test_of_every_committed_file_is_named_by_the_tool(self):
        shutil.copytree(SOURCE / "results" / "h200", self.checkout.results / "h200")
        (self.checkout.root / "experiments/papers/forgetting_transformer/ablations/figure.py").write_text("def figure(claim):\n    raise "
                                                                                                          "KeyError('x')\n")
        broken = ["h200/attention_throughput.csv", "h200/forgetting_attention_cuda.json", "other/ablations.json"]
        for name in broken:
            path = self.checkout.results / name
            path.write_bytes(path.read_bytes()[:len(path.read_bytes()) // 2] + b"\xff{")
        result = self.checkout.run("report.py")
        self.assertEqual(result.returncode, 1)
        for name in broken:
            self.assertEqual(sum(name in line for line in result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("figure.py: expected a result, found KeyError 'x'", result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertIn("forgetting attention sustained cuda", (self.checkout.results / "h200/report.html").read_text())
        self.assertIn("Left out", (self.checkout.machine / "report.html").read_text())
        checked = self.checkout.run("check_results.py")
        self.assertEqual((checked.returncode, checked.stderr), (1, ""))
        self.assertIn("other/ablations.json: expected JSON", checked.stdout)

    def test_of_a_verdict_is_no_verdict(self):
        path = self.checkout.machine / "ablations.json"
        path.write_text(json.dumps(CERTIFICATE | {"verdict": "proved"}))
        _, (fault,) = sound_claims(self.checkout.root, self.checkout.machine)
        self.assertEqual(fault, f"{path}: verdict: expected one of reproduced, trend reproduced, direction reproduced, size contradicted, refuted, "
                                f"inconclusive at this scale, "
                                f"out of reach here, found proved")

    def test_of_a_scale_and_of_a_table_without_certificate_are_named(self):
        path = self.checkout.machine / "ablations.json"
        path.write_text(json.dumps(CERTIFICATE | {"scale": "huge"}))
        _, (fault,) = sound_claims(self.checkout.root, self.checkout.machine)
        self.assertEqual(fault, f"{path}: scale: expected one of smoke, quick, gpu, paper, found huge")
        (self.other / "lost.points.csv").write_text("")
        _, (fault,) = sound_claims(self.checkout.root, self.other)
        self.assertEqual(fault, f"{self.other / 'lost.json'}: expected the certificate of lost.points.csv, found none")

    def test_of_measurements_is_one_line(self):
        random_of, seen = random.Random(41), 0
        shutil.copytree(SOURCE / "results" / "h200", self.checkout.results / "h200")
        for path, made in [*((path, benchmark_page) for path in benchmark_files(self.checkout.results / "h200")),
                           (self.checkout.results / "h200/attention_throughput.csv", throughput_page)]:
            original = path.read_bytes()
            for _ in range(40):
                path.write_bytes(damaged(original, random_of))
                faults = Faults()
                with faults.of(path):
                    made(path)
                seen += len(faults)
                for fault in faults:
                    self.assertTrue(fault.startswith(f"{path}:") and "\n" not in fault, fault)
            path.write_bytes(original)
        self.assertGreater(seen, 40)


if __name__ == "__main__":
    unittest.main()

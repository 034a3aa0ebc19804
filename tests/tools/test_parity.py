"""Parity with the official code: what is judged apart, and that examples/fox.py has the names and shapes that a run with the official code found."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tools"), str(SOURCE / "examples")]

import fox  # noqa: E402
from compare_training import mlp_width  # noqa: E402
from official_fox import NEEDS, Missing  # noqa: E402
from parity import ARCHITECTURES, AT_MOST, SCALES, faults, is_apart, judged_courses, largest_difference, page, peer_commit, shapes, unlike  # noqa: E402

RESULTS = sorted(SOURCE.glob("results/*/official_parity.json"))
PEER = SOURCE / ".peers/forgetting-transformer"
LIBRARIES = sorted(Path(os.environ.get("LETHE_BUILD", SOURCE / "build/cpu")).rglob("liblethe_torch.so"))


class Judgement(unittest.TestCase):
    def test_what_is_farther_than_rounding_explains_is_apart(self):
        self.assertFalse(is_apart(1e-6, AT_MOST * 1e-6, 0.0))
        self.assertTrue(is_apart(1e-6, AT_MOST * 1.01e-6, 0.0))
        self.assertFalse(is_apart(0.0, 1e-5, 1e-5))
        self.assertTrue(is_apart(1e-6, math.nan, 1.0))

    def test_a_name_or_shape_of_one_alone_is_named(self):
        ours, theirs = {"a": (2,), "b": (3,), "c": (4,)}, {"a": (2,), "b": (3, 1), "d": (5,)}
        self.assertEqual(unlike(ours, ours), [])
        self.assertEqual(unlike(ours, theirs), ["b: ours (3,), theirs (3, 1)", "c: ours (4,), theirs none", "d: ours none, theirs (5,)"])

    def test_courses_are_compared_by_the_means_of_their_windows(self):
        self.assertEqual(largest_difference([1.0, 3.0, 5.0], [3.0, 1.0, 5.5], 2), 0.5)
        self.assertEqual(largest_difference([1.0, 3.0, 5.0], [3.0, 1.0, 5.5], 1), 2.0)
        self.assertEqual(largest_difference([None, 3.0, 5.0], [3.0, 1.0, 5.5], 1), 2.0)
        self.assertTrue(math.isnan(largest_difference([1.0, math.nan], [1.0, 1.0], 2)))

    def test_courses_may_be_twice_as_far_apart_as_theirs_from_itself(self):
        scale = SCALES["cpu"]  # windows of one step, 1e-4 nats
        judged = lambda ours, again: judged_courses({"ours": [1.0, ours], "theirs": [1.0, 2.0], "exact": [1.1], "again": [1.0, again]}, scale)
        self.assertFalse(judged(2.00009, 2.0)["apart"])
        self.assertTrue(judged(2.00011, 2.0)["apart"])
        self.assertFalse(judged(2.0019, 1.999)["apart"])
        self.assertTrue(judged(2.0021, 1.999)["apart"])
        self.assertAlmostEqual(judged(2.0, 1.999)["itself"], 1e-3)
        self.assertEqual(list(judged(2.0, 1.999)["at_most"]), ["ours"])
        self.assertEqual([round(apart, 12) for apart in judged(2.0, 1.999)["from_exact"].values()], [0.1, 0.1])
        self.assertTrue(judged(2.0, math.nan)["apart"])
        self.assertTrue(judged(math.nan, 2.0)["apart"])


class Result(unittest.TestCase):
    def setUp(self):
        if not RESULTS:
            self.skipTest("no results/*/official_parity.json")

    def test_the_example_has_the_official_names_and_shapes(self):
        for path in RESULTS:
            result = json.loads(path.read_text())
            scale = result["scale"]
            for architecture in ARCHITECTURES:
                pro = architecture == "fox-pro"
                config = fox.Config(scale["vocabulary"], scale["layers"], scale["width"], scale["heads"], mlp_width(scale["width"], pro), pro)
                official = {name: tuple(row["shape"]) for name, row in result[architecture]["once"]["gradients"].items()}
                self.assertEqual(unlike(shapes(fox.LanguageModel(config)), official), [], f"{path}: {architecture}")

    def test_what_is_apart_is_known(self):
        known = {("h200", "fox-llama"): ["training"]}  # of bfloat16 courses 0.022 nats apart, where 0.02 are allowed
        for path in RESULTS:
            result = json.loads(path.read_text())
            for architecture in ARCHITECTURES:
                self.assertEqual(faults(result[architecture]), known.get((path.parent.name, architecture), []), f"{path}: {architecture}")

    def test_the_page_is_of_the_result(self):
        for path in RESULTS:
            self.assertEqual(path.with_suffix(".md").read_text(), page(json.loads(path.read_text())), path)


class Peer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.peer = Path(folder.name)
        (self.peer / "src/forgetting_transformer").mkdir(parents=True)

    def test_a_copy_of_the_official_code_needs_its_commit(self):
        with self.assertRaisesRegex(Missing, "expected a checkout in .*, or the commit of its code by --peer-commit, found neither"):
            peer_commit(self.peer, None)
        with self.assertRaisesRegex(Missing, "--peer-commit: 7 to 40 hexadecimal digits, found main"):
            peer_commit(self.peer, "main")
        self.assertEqual(peer_commit(self.peer, "883f260"), "883f260")
        run = subprocess.run([sys.executable, SOURCE / "tools/parity.py", "--device", "cpu", "--peer", self.peer], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr.count("\n")), (2, 1))
        self.assertIn("by --peer-commit, found neither", run.stderr)

    def test_a_checkout_has_its_own_commit(self):
        for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]):
            subprocess.run(["git", "-C", self.peer, *command], check=True)
        found = subprocess.run(["git", "-C", self.peer, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        self.assertEqual(peer_commit(self.peer, None), found)
        self.assertEqual(peer_commit(self.peer, found[:7]), found)
        with self.assertRaisesRegex(Missing, "as --peer-commit has it, found it at"):
            peer_commit(self.peer, "0" * 7)

    def test_five_steps_beside_the_official_code_are_equal(self):
        absent = [name for name in NEEDS if not importlib.util.find_spec(name)] + ([] if PEER.is_dir() else [str(PEER)])
        if absent or not LIBRARIES:
            self.skipTest(f"absent: {', '.join(absent or ['liblethe_torch.so'])}")
        with tempfile.TemporaryDirectory() as folder:
            call = [sys.executable, SOURCE / "tools/parity.py", "--device", "cpu", "--build", LIBRARIES[0].parents[1], "--steps", 5]
            run = subprocess.run([*map(str, call), "--output", f"{folder}/it.json"], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
            self.assertTrue(Path(folder, "it.md").is_file())


if __name__ == "__main__":
    unittest.main()

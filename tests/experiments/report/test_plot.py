"""Loss curves of models as a picture, and their logs for TensorBoard."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from checkout import SOURCE
from test_readable import write_checkpoint, write_training

WRITER = """
import json
class SummaryWriter:
    def __init__(self, folder): self.folder = folder
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def add_scalar(self, *scalar): print(json.dumps([self.folder, *scalar]))
"""


class Plot(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        write_training(self.root, "aaaa1", "first model", losses=(3.0, 2.5))
        write_training(self.root, "bbbb2", losses=(3.5, 2.0, 1.5))

    def plot(self, *arguments, path=""):
        call = [sys.executable, str(SOURCE / "tools/plot.py"), "--root", str(self.root), *map(str, arguments)]
        return subprocess.run(call, capture_output=True, text=True, cwd=self.root, env=os.environ | {"PYTHONPATH": str(path)})

    def refused(self, expected, *arguments, path=""):
        result = self.plot(*arguments, path=path)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, rf"^plot: {expected}")
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_draws_all_models_or_those_that_are_named(self):
        self.assertEqual(self.plot().stdout, "losses.svg\n")
        drawn = (self.root / "losses.svg").read_text()
        for text in ("first model (aaaa1)", "bbbb2", "training tokens", "validation"):
            self.assertIn(f">{text}</text>", drawn)
        self.assertEqual(self.plot("aaaa", "--output", "one.svg").returncode, 0)
        self.assertNotIn("bbbb2", (self.root / "one.svg").read_text())
        self.assertEqual(self.plot(self.root / "artefacts/models/bbbb2", "--output", "two.png").returncode, 0)
        self.assertTrue((self.root / "two.png").read_bytes().startswith(b"\x89PNG"))

    def test_refuses_what_it_cannot_draw_in_one_line(self):
        (self.root / "file").write_text("")
        self.refused("model: expected the folder or name of a model .*, found 'zzzz'", "zzzz")
        self.refused("model: expected .*, found '', which begins aaaa1, bbbb2", "")
        self.refused("--output: expected a file in a folder that exists, found /nowhere/x.svg", "--output", "/nowhere/x.svg")
        self.refused("--output: expected a file that ends with .svg, .png, .pdf, found x.doc", "--output", "x.doc")
        self.assertFalse(list(self.root.glob("*.svg*")))

    def test_names_a_damaged_model_and_draws_the_others(self):
        (self.root / "artefacts/models/aaaa1/run.json").write_text("{")
        result = self.plot()
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "^plot: left out: .*aaaa1/run.json: expected JSON, found .*\n$")
        self.assertIn("bbbb2", (self.root / "losses.svg").read_text())

    def test_names_a_place_that_can_not_be_written_in_one_line(self):
        (self.root / "loop.svg").symlink_to("loop.svg")
        for place in ("loop.svg", "/dev/full", "/proc/curves.svg"):
            self.refused(f"{place}: expected a place to write, found [^()]*\n$", "--output", place)

    def test_draws_no_log_without_steps(self):
        models = self.root / "artefacts/models"
        for name, log in (("aaaa1", ""), ("cccc3", '{"step": 0}\n')):
            (models / name).mkdir(exist_ok=True)
            (models / name / "run.json").write_text((models / "bbbb2/run.json").read_text())
            (models / name / "log.jsonl").write_text(log)
            self.refused(f".*{name}/log.jsonl: expected a line with tokens and loss, found none\n$", name, "bbbb2")
        result = self.plot()
        self.assertEqual((result.returncode, result.stderr.count("left out: "), result.stdout), (0, 2, "losses.svg\n"))
        (models / "bbbb2/log.jsonl").unlink()
        result = self.plot()
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("bbbb2/log.jsonl: expected a line with tokens and loss", result.stderr)
        self.assertTrue(result.stderr.endswith("plot: models: expected one with a log below " + str(models) + ", found none\n"))

    def test_leaves_out_an_edited_log_of_a_training_without_an_end(self):
        folder = self.root / "artefacts/models/aaaa1"
        (folder / "done.json").unlink()
        write_checkpoint(folder)
        self.assertEqual(self.plot().stderr, "")
        (folder / "log.jsonl").write_text((folder / "log.jsonl").read_text().replace("2.5", "0.5"))
        result = self.plot()
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "^plot: left out: .*aaaa1/log.jsonl: expected the .* bytes of its checkpoint, found others\n$")
        self.refused(".*aaaa1/log.jsonl: expected the .* bytes of its checkpoint, found others\n$", "aaaa1")

    def test_writes_into_a_device_and_leaves_it_one(self):
        self.assertEqual(self.plot("--output", "/dev/null").returncode, 0)
        self.assertTrue(Path("/dev/null").is_char_device())

    def test_exports_every_number_of_the_log(self):
        package = self.root / "packages/torch/utils"
        package.mkdir(parents=True)
        for name in ("torch/__init__.py", "torch/utils/__init__.py"):
            (self.root / "packages" / name).write_text("")
        (package / "tensorboard.py").write_text(WRITER)
        lines = self.plot("bbbb", "--tensorboard", "runs", path=self.root / "packages").stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines[:-1]],
                         [["runs/bbbb2", "loss", loss, 100 * (i + 1)] for i, loss in enumerate((3.5, 2.0, 1.5))])
        self.assertEqual(lines[-1], "tensorboard --logdir runs")
        self.assertFalse((self.root / "losses.svg").exists())

    def test_without_tensorboard_says_so_in_one_line(self):
        (self.root / "packages").mkdir()
        (self.root / "packages/tensorboard.py").write_text("raise ImportError('hidden')\n")
        self.refused("--tensorboard: expected the Python package tensorboard, found none; .* -m pip install tensorboard", "--tensorboard", "runs",
                     path=self.root / "packages")

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "expected the Python package tensorboard, found none")
    def test_writes_event_files_that_tensorboard_reads(self):
        self.assertEqual(self.plot("--tensorboard", "runs").returncode, 0)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator(str(self.root / "runs/bbbb2"))
        events.Reload()
        self.assertEqual([(event.step, event.value) for event in events.Scalars("loss")], [(100, 3.5), (200, 2.0), (300, 1.5)])


if __name__ == "__main__":
    unittest.main()

"""`lethe train` on a GPU, from the outside: it finds the device, and learns as on the CPU.

usage: test_training.py LETHE [unittest's own arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch

TOKENIZER = Path(__file__).resolve().parents[2] / "tools/tokenize_corpus.py"
STEPS = 30


def tiny(batch_tokens):
    """Options of a training of STEPS steps."""
    return (f"--layers 2 --width 128 --heads 2 --context 64 --batch-tokens {batch_tokens} --warmup-tokens {5 * batch_tokens} "
            f"--tokens {batch_tokens * STEPS} --learning-rate 5e-3").split()


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        (cls.folder / "text").mkdir()
        for document in range(8):
            (cls.folder / f"text/{document}.txt").write_text("".join(f"The river forgets {n % 7}.\n" for n in range(document, 400)))
        # With this Python: the program may have been built on another machine.
        prepared = subprocess.run([sys.executable, TOKENIZER, "prepare", "--corpus", cls.folder / "text", "--tokenizer", "bytes",
                                   "--data", cls.folder / "data"], check=True, stdout=subprocess.PIPE, text=True)
        cls.data = prepared.stdout.strip()

    def command(self, root, device, *options):
        return [BINARY, "--root", root, "--threads", "1", "train", "--corpus", self.data, "--device", device, *TINY, *options]

    def trained(self, device, *options, root=None):
        """The lines of the log, and done.json."""
        root = root or tempfile.mkdtemp(dir=self.folder)
        run = subprocess.run(self.command(root, device, *options), capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stderr)
        artefact = Path(run.stdout.splitlines()[-1])
        lines = (artefact / "log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], json.loads((artefact / "done.json").read_text())

    def expect_alike(self, found, expected, difference):
        self.assertEqual((len(found), len(expected)), (STEPS, STEPS))
        for there, here in zip(found, expected):
            self.assertAlmostEqual(there["loss"], here["loss"], delta=difference, msg=f"step {here['step']}")
        self.assertLess(found[-1]["loss"], found[0]["loss"] - 2)

    def test_learns_in_float32_as_on_the_cpu(self):
        there, done = self.trained(DEVICE)
        here, _ = self.trained("cpu")
        self.expect_alike(there, here, 1e-2)
        self.assertEqual(done["device"], DEVICE)
        self.assertEqual(done["machine"].get("gpu", {}).get("name"), torch.cuda.get_device_name(0) if DEVICE == "cuda" else None)

    def test_learns_in_bfloat16_nearly_as_in_float32(self):
        there, _ = self.trained(DEVICE, "--set=compute_dtype=bfloat16")
        here, _ = self.trained("cpu", "--set=compute_dtype=float32")
        self.expect_alike(there, here, 0.03)

    def test_recurrent_models_learn_in_bfloat16_nearly_as_in_float32(self):
        every = ("mamba2", "hgrn2", "deltanet", "gated-deltanet", "gla", "retnet", "samba", "mamba2-fox")
        for architecture in every if DEVICE == "cuda" else ("mamba2-fox",):
            with self.subTest(architecture):
                there, _ = self.trained(DEVICE, f"--architecture={architecture}", "--set=compute_dtype=bfloat16")
                here, _ = self.trained("cpu", f"--architecture={architecture}")
                # GLA's and HGRN2's losses part after some ten steps at this rate
                self.assertEqual((len(there), len(here)), (STEPS, STEPS))
                for found, expected in zip(there[:8], here[:8]):
                    self.assertAlmostEqual(found["loss"], expected["loss"], delta=0.15, msg=f"step {expected['step']}")
                self.assertLess(there[-1]["loss"], there[0]["loss"] - 2)

    def losses_of(self, lines):
        return [(line["step"], line["loss"], line["gradient_norm"]) for line in lines]

    def deterministic(self):
        return "--set=deterministic=true", f"--set=compute_dtype={TYPE}", "--set=checkpoint_tokens=1024"

    def test_equal_deterministic_calls_give_equal_bits(self):
        one, two = (self.trained(DEVICE, *self.deterministic())[0] for _ in range(2))
        self.assertEqual(self.losses_of(one), self.losses_of(two))

    def test_a_killed_training_goes_on_to_equal_bits(self):
        expected, _ = self.trained(DEVICE, *self.deterministic())
        root = Path(tempfile.mkdtemp(dir=self.folder))
        training = subprocess.Popen(self.command(root, DEVICE, *self.deterministic()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while training.poll() is None and not list(root.glob("artefacts/models/*/checkpoint.previous.pt")) and time.monotonic() < deadline:
            time.sleep(0.001)
        training.kill()
        training.wait()
        self.assertFalse(list(root.glob("artefacts/models/*/done.json")), "the training ended before it was killed")
        found, _ = self.trained(DEVICE, *self.deterministic(), root=root)
        self.assertEqual(self.losses_of(found), self.losses_of(expected))

    def test_bench_reports_the_products_that_were_measured(self):
        if DEVICE != "cuda":
            self.skipTest("nothing is measured on a CPU")
        shape = "--layers 2 --width 256 --heads 4 --context 512 --batch-tokens 8192 --seconds 0.1 --set=compute_dtype=bfloat16".split()
        for gemms in ("measured", "default"):
            figures = self.folder / f"{gemms}.json"
            run = subprocess.run([BINARY, "--threads", "1", "bench", "--device", DEVICE, *shape, f"--set=gemms={gemms}", "--profile", "--json",
                                  figures],
                                 capture_output=True, text=True, timeout=300)
            self.assertEqual(run.returncode, 0, run.stderr)
            products = json.loads(figures.read_text()).get("gemms", [])
            self.assertEqual("GEMMs" in run.stdout, gemms == "measured", run.stdout)
            if gemms == "default":
                self.assertEqual(products, [])
                continue
            self.assertGreaterEqual(len(products), 9)  # three a layer's matrix, and the head's
            for product in products:
                self.assertGreater(product["candidates"], 0, product)
                self.assertGreater(product["calls"], 1, product)

    def test_bench_at_rest_holds_less_than_a_step_takes(self):
        if DEVICE != "cuda":
            self.skipTest("a CPU's memory is not counted")
        shape = "--layers 2 --width 256 --heads 4 --context 512 --batch-tokens 32768 --set=vocabulary=1024 --set=compute_dtype=bfloat16".split()
        run = subprocess.run([BINARY, "--threads", "1", "bench", "--serve", "--device", DEVICE, *shape], input="rest\nlosses 1\nrest\n",
                             capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stderr)
        ready, rest, losses, again = (json.loads(line.removeprefix("ready ")) for line in run.stdout.splitlines())
        self.assertLess(rest["held_bytes"], ready["peak_bytes"] / 2)
        self.assertLess(again["held_bytes"], ready["peak_bytes"] / 2)
        self.assertGreater(rest["free_bytes"], 0)
        self.assertGreater(losses[0], 0)

    def test_learns_on_two_gpus_as_on_one(self):
        if DEVICE != "cuda" or torch.cuda.device_count() < 2:
            self.skipTest(f"GPUs: expected 2, found {torch.cuda.device_count()}")
        one, _ = self.trained(DEVICE)
        for zero in ("false", "true"):
            two, done = self.trained(DEVICE, "--gpus=2", f"--set=zero={zero}")
            self.expect_alike(two, one, 1e-2)
            self.assertEqual(done["processes"], 2)


if __name__ == "__main__":
    DEVICE = "cuda"
    if sys.argv[2:3] == ["--device"]:
        DEVICE = sys.argv.pop(3)
        del sys.argv[2]
    BINARY = Path(sys.argv.pop(1)).resolve()
    # A CPU tries the tests themselves, and takes a minute for 30 steps where it has no instructions for bfloat16.
    TINY = tiny(512 if DEVICE == "cuda" else 256)
    TYPE = "bfloat16" if DEVICE == "cuda" else "float32"
    if DEVICE == "cuda" and not torch.cuda.is_available() and os.environ.get("LETHE_REQUIRE_GPU") != "1":
        print("needs a GPU")
        sys.exit(77)  # which ctest counts as skipped
    unittest.main()

"""A text of one's own from the outside: lethe train input.txt, and models that find their data by its content. Run by ctest.

usage: test_own_text.py BINARY [unittest's own arguments]
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = Path(sys.argv.pop(1)).resolve() if __name__ == "__main__" else None

SMALL = "--layers 1 --width 32 --context 64 --batch-tokens 512 --tokens 8192 --learning-rate 0.01".split()


def lethe(cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "LETHE_GPT2_FILES"}
    return subprocess.run([BINARY, "--threads", "1", *arguments], capture_output=True, text=True, errors="replace", cwd=cwd, env=environment,
                          timeout=300)


def sentences(seed: int, count: int) -> str:
    words = random.Random(seed)
    return "".join(f"{words.choice(('the river', 'a shade', 'the moon'))} {words.choice(('forgets', 'carries'))} it.\n" for _ in range(count))


class OwnText(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.home = Path(temporary.name).resolve()
        self.text = self.home / "input.txt"
        self.text.write_text(sentences(1, 3000))

    def done(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        result = lethe(cwd or self.home, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, message: str, *arguments: str, cwd: Path | None = None) -> None:
        result = lethe(cwd or self.home, *arguments)
        self.assertEqual((result.returncode, result.stderr.count("\n"), result.stdout), (2, 1, ""), result.stderr)
        self.assertIn(message, result.stderr)

    def train(self, *arguments: str, cwd: Path | None = None) -> Path:
        """The folder of the trained model."""
        return Path(self.done("train", *arguments, cwd=cwd).stdout.splitlines()[-1])

    def run_of(self, folder: Path) -> dict:
        return json.loads((folder / "run.json").read_text())

    def content(self, folder: Path) -> str:
        return json.loads((folder / "done.json").read_text())["data"]


class Training(OwnText):
    def test_stands_in_for_a_claims_own_text(self):
        claim = ("length_extrapolation", "--scale", "smoke", "--corpus", "input.txt")
        results = Path(self.done("run", *claim).stdout.splitlines()[-1])
        self.assertTrue(results.name.endswith("-smoke-input-txt"), results)
        found = json.loads((results / "length_extrapolation.json").read_text())
        self.assertEqual(found["settings"]["training"]["corpus"], "input.txt")
        self.done("bundle", "--to", "own.tar.xz")
        anyhow = [*claim[:-1], str(self.home / "input.txt")]
        judged = Path(self.done("judge", *anyhow, "--from", "own.tar.xz", "--results", "judged").stdout.splitlines()[-1])
        self.assertEqual(judged.name, results.name)
        self.assertEqual(json.loads((judged / "length_extrapolation.json").read_text())["comparisons"], found["comparisons"])
        self.assertEqual(found["corpus"], "input.txt")
        self.refused("--corpus: expected claims that train on a text, found throughput/open_gate", "run", "open_gate", "--scale", "smoke", "--corpus",
                     "input.txt")

    def test_with_pruning_may_be_faster_than_its_limit_and_says_so(self):
        told = self.done("train", "input.txt", *SMALL, "--set", "log_pruning_tolerance=-10").stderr
        self.assertRegex(told, re.compile(r"^limit +\S+ tokens/s, were .* on this machine and no pair pruned$", re.MULTILINE))
        self.assertRegex(told, r"tokens/s \(\d+ % of the limit without pruning\)")

    def test_on_one_file_says_what_it_does_and_what_to_do_next(self):
        told = self.done("train", "input.txt", *SMALL)
        for line in (r"corpus +input \(.*/input\.txt\) as bytes: \S+ tokens to train on, \S+ to validate, \S+ to test", r"model +\S.* parameters",
                     r"training +8\.19k tokens, 0\.\d+ epochs: 16 steps of 512 tokens in sequences of 64, on cpu with 1 threads",
                     r"folder +.*/artefacts/models/[0-9a-f]{16}", r"checkpoints +every 2\.05k tokens",
                     r"limit +\S+ tokens/s, were all of its FLOPs one large matrix product on this machine",
                     r"time +about \d+ s, \d+ tokens/s \(\d+ % of the limit\)",
                     r"step +\d+ of 16   training \d\.\d+   validation \d\.\d+ \(\d\.\d+ bits per byte\)   \d+ tokens/s "
                     r"\(\d+ % of the limit\)   \d+ s left"):  # fmt: skip
            self.assertRegex(told.stderr, re.compile(f"^{line}$", re.MULTILINE))
        end = told.stdout.splitlines()
        folder = Path(end[-1])
        self.assertEqual(folder.parent, self.home / "artefacts" / "models")
        done = json.loads((folder / "done.json").read_text())
        self.assertTrue(end[0].startswith(f"validation loss {done['validation_loss']:.4f} ("), end[0])
        self.assertIn("bits per byte)", end[0])
        self.assertEqual(end[1], "sample:")
        self.assertEqual(end[-5], "next:")
        for call in end[-4:-1]:  # the calls that it names are right
            self.done(*shlex.split(call)[1:])
        again = self.done("train", "input.txt", *SMALL)
        self.assertIn("trained before", again.stderr)
        self.assertEqual(again.stdout.splitlines()[-1], str(folder))
        self.assertNotIn("sample:", again.stdout)

    def test_losses_in_the_log_agree_with_evaluate(self):
        folder = self.train("input.txt", *SMALL)
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        probed = [line for line in lines if "validation_loss" in line]
        self.assertEqual(len(probed), 16)
        self.assertLess(probed[-1]["validation_loss"], probed[0]["validation_loss"])
        shown = self.done("evaluate", str(folder), "--settings", '{"length": 64, "sequences": 8}').stdout
        loss = float(re.search(r"^  loss, nats +(\S+)", shown, re.MULTILINE)[1])
        self.assertAlmostEqual(loss, probed[-1]["validation_loss"], places=3)

    def test_that_was_killed_says_where_it_goes_on(self):
        call = [BINARY, "--threads", "1", "train", "input.txt", *SMALL, "--tokens", "400000", "--set", "checkpoint_tokens=2048"]
        call.remove("8192"), call.remove("--tokens")
        with subprocess.Popen(call, cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not list(self.home.glob("artefacts/models/*/checkpoint.pt")):
                time.sleep(0.02)
            process.kill()
        resumed = subprocess.run(call, cwd=self.home, capture_output=True, text=True)
        self.assertRegex(resumed.stderr, re.compile(r"^resumed +at step \d+ of 782$", re.MULTILINE))

    def test_of_a_tiny_text_has_lengths_that_fit(self):
        self.text.write_text(sentences(1, 12))
        told = self.done("train", "input.txt", "--layers", "1", "--width", "32")
        self.assertIn("validation loss ", told.stdout)
        run = self.run_of(Path(told.stdout.splitlines()[-1]))["training"]
        self.assertLessEqual(run["context_length"], 32)
        self.assertLessEqual(run["total_tokens"], 20 * 400)
        self.assertLessEqual(run["warmup_tokens"], run["total_tokens"] / 10)

    def test_on_a_folder_says_what_is_left_out(self):
        (self.home / "texts").mkdir()
        for name in "abcd":
            (self.home / "texts" / f"{name}.txt").write_text(sentences(ord(name), 300))
        (self.home / "texts" / "notes.md").write_text("notes")
        told = self.done("train", "texts", *SMALL)
        self.assertIn("left out of texts: files with other suffixes (.md): 1", told.stderr)
        self.assertIn("  left out    files with other suffixes (.md): 1\n", self.done("data", "show", "texts").stdout)

    def test_needs_one_corpus_that_is_there(self):
        self.refused("corpus: expected 'bible', 'headers' or text (a file or a folder), found 'nothing.txt'", "train", "nothing.txt")
        self.refused("corpus: expected once, found input.txt and --corpus", "train", "input.txt", "--corpus", "bible")
        self.refused("run.json: nothing.json: cannot be read", "train", "nothing.json")
        (self.home / "empty.txt").touch()
        self.refused("found 0 bytes", "train", "empty.txt")
        unusable = lethe(self.home, "train", "x" * 300)
        self.assertEqual((unusable.returncode, unusable.stderr), (1, f"lethe: {'x' * 300}: cannot be used: File name too long\n"))


class Defaults(OwnText):
    def test_fit_any_single_option(self):
        for options in ("--width 100", "--width 96 --set rope=true", "--heads 3", "--layers 7", "--tokens 10", "--tokens 1", "--context 1000",
                        "--context 100000", "--batch-tokens 1000", "--batch-tokens 7", "--set micro_batch_tokens=96", "--warmup-tokens 0",
                        "--architecture transformer-llama --width 72", "--architecture decay --tokens 100", "--size 125m --tokens 1000"):  # fmt: skip
            with self.subTest(options):
                self.done("describe", *options.split())

    def test_let_the_warm_up_follow_the_tokens(self):
        for tokens in (16, 1 << 12, 1 << 24):
            described = self.done("describe", "--tokens", str(tokens)).stdout
            self.assertRegex(described, rf"warmup_tokens +{tokens // 16}\n")


class Data(OwnText):
    def setUp(self):
        super().setUp()
        self.model = self.train("input.txt", *SMALL)
        self.elsewhere = self.home / "elsewhere"
        self.elsewhere.mkdir()

    def evaluated(self, *arguments: str, cwd: Path | None = None) -> str:
        return self.done("evaluate", str(self.model), "--settings", '{"length": 64, "sequences": 4}', *arguments, cwd=cwd).stdout

    def test_is_found_from_any_folder(self):
        here = self.evaluated()
        self.assertEqual(self.evaluated(cwd=self.elsewhere), here)
        self.assertFalse((self.elsewhere / "artefacts").exists())
        self.done("generate", str(self.model), "--tokens", "1", "--top", "1", cwd=self.elsewhere)

    def test_is_that_of_the_training_after_the_text_grew(self):
        before = self.evaluated()
        self.text.write_text(self.text.read_text() + sentences(2, 3000))
        self.assertEqual(self.evaluated(), before)
        warned = self.done("evaluate", str(self.model), "--corpus", "input.txt", "--sequences", "2")
        self.assertIn("input.txt has changed since", warned.stderr)
        grown = self.train("input.txt", *SMALL)
        self.assertNotEqual(self.content(grown), self.content(self.model))
        self.assertEqual(self.evaluated(), before)

    def test_of_another_text_of_that_name_is_another(self):
        before = self.evaluated()
        (self.elsewhere / "input.txt").write_text(sentences(3, 3000))
        other = self.train(str(self.elsewhere / "input.txt"), *SMALL)
        self.assertNotEqual(self.content(other), self.content(self.model))
        self.assertEqual(self.evaluated(), before)
        self.refused("expected models of one corpus", "evaluate", str(self.model), str(other))

    def test_that_is_lost_is_prepared_again_or_refused(self):
        before = self.evaluated()
        shutil.rmtree(self.home / "artefacts" / "data")
        self.assertEqual(self.evaluated(), before)
        shutil.rmtree(self.home / "artefacts" / "data")
        self.text.write_text(sentences(4, 3000))
        for call in (("evaluate",), ("generate",), ("train", "--from")):
            result = lethe(self.home, *call, str(self.model))
            self.assertEqual(result.returncode, 2)
            self.assertIn("data: expected the dataset", result.stderr)

    def test_that_is_damaged_is_refused_in_one_line(self):
        shard = self.home / "artefacts" / "data" / "input-bytes" / "train_000.bin"
        content = bytearray(shard.read_bytes())
        content[2000] ^= 1
        shard.write_bytes(content)
        self.refused("train_000.bin: expected content with SHA-256", "evaluate", str(self.model))
        self.refused("train_000.bin: expected content with SHA-256", "generate", str(self.model))


class Continued(OwnText):
    def first_loss(self, folder: Path) -> float:
        return json.loads((folder / "log.jsonl").read_text().splitlines()[0])["loss"]

    def test_training_starts_from_the_source_and_is_another_model(self):
        source = self.train("input.txt", *SMALL)
        longer = self.train("--from", source.name[:6], "--tokens", "4096", cwd=self.home)
        self.assertNotEqual(longer, source)
        self.assertLess(self.first_loss(longer), self.first_loss(source) - 1)
        identity = json.loads(json.loads((longer / "done.json").read_text())["identity"])
        self.assertEqual(json.loads(identity["conversion"]["source"]), json.loads(json.loads((source / "done.json").read_text())["identity"]))
        run = self.run_of(longer)["training"]
        self.assertEqual((run["total_tokens"], run["warmup_tokens"], run["context_length"]), (4096, 256, 64))
        self.assertEqual(self.train("--from", source.name, "--tokens", "4096"), longer)
        other = self.train("input.txt", *SMALL, "--seed", "1")
        self.assertNotEqual(self.train("--from", other.name, "--tokens", "4096", "--seed", "0"), longer)

    def test_training_on_another_text_keeps_the_data_of_the_source(self):
        source = self.train("input.txt", *SMALL)
        (self.home / "other.txt").write_text(sentences(5, 3000))
        tuned = self.train("other.txt", "--from", source.name, "--tokens", "4096")
        self.assertNotEqual(self.content(tuned), self.content(source))
        self.assertEqual(self.run_of(tuned)["conversion"]["source_data"], self.content(source))
        self.assertLess(self.first_loss(tuned), self.first_loss(source) - 1)
        self.done("evaluate", str(tuned))

    def test_training_lies_beside_a_source_elsewhere(self):
        source = self.train("input.txt", *SMALL)
        (elsewhere := self.home / "elsewhere").mkdir()
        longer = self.train("--from", str(source), "--tokens", "4096", cwd=elsewhere)
        self.assertEqual(longer.parent, source.parent)
        self.assertFalse((elsewhere / "artefacts" / "models").exists())
        moved = source.with_name("my-favourite")
        source.rename(moved)
        for call in (("train", "--from", str(moved), "--tokens", "512"), ("convert", str(moved), "--tokens", "512")):
            result = lethe(self.home, *call)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)

    def test_conversion_starts_from_the_model_it_was_given(self):
        source = self.train("input.txt", "--architecture", "transformer-llama", *SMALL)
        trained = (source / "done.json").stat().st_mtime_ns
        (elsewhere := self.home / "elsewhere").mkdir()
        shown = self.done("convert", str(source), "--mixer", "decay", "--state-size", "4", "--tokens", "2048", cwd=elsewhere).stdout
        self.assertEqual(Path(shown.splitlines()[-1]).parent, source.parent)
        self.assertEqual((source / "done.json").stat().st_mtime_ns, trained)
        self.assertEqual(len(list(source.parent.iterdir())), 2)


class Root(OwnText):
    def test_is_where_one_stands(self):
        self.train("input.txt", *SMALL)
        self.assertEqual(sorted(path.name for path in (self.home / "artefacts").iterdir()), ["data", "models"])
        self.assertIn("ablations", self.done("list", "claims").stdout)

    def test_of_a_run_has_the_results_in_an_ignored_folder(self):
        shown = self.done("run", "--scale", "smoke", "duality").stdout
        folder = Path(shown.splitlines()[-1])
        self.assertEqual(folder.parent, self.home / "artefacts" / "results")
        self.assertTrue((folder / "duality.csv").is_file())
        self.assertEqual(sorted(path.name for path in self.home.iterdir()), ["artefacts", "input.txt"])
        report = self.done("report").stdout
        self.assertIn(str(folder / "report.html"), report)
        self.assertEqual(sorted(path.name for path in self.home.iterdir()), ["artefacts", "input.txt"])


if __name__ == "__main__":
    unittest.main()

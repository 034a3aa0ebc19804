"""One trained model from the outside: found again, evaluated, continued, listed, drawn, and refused where it is damaged. Run by ctest.

usage: test_command_models.py BINARY [unittest's own arguments]
"""

import csv
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from command import BINARY, ROOT, TINY, CommandTest, lethe


class Models(CommandTest):
    """One tiny model, trained once."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = cls.temporary.name
        cls.training = lethe("--root", cls.root, "train", *TINY)
        cls.folder = Path(cls.training.stdout.splitlines()[-1]) if cls.training.returncode == 0 else None

    def setUp(self):
        self.assertEqual(self.training.returncode, 0, self.training.stderr)

    def test_of_younger_options_are_drawn_and_those_that_cannot_be_leave_nothing(self):
        with tempfile.TemporaryDirectory() as root:
            self.refused(2, "packs_documents: expected mixers that keep sequences apart, found segment",
                         "--root", root, "train", *TINY, "--architecture", "segment", "--set", "packs_documents=true")
            self.assertFalse(list(Path(root).glob("artefacts/models/*")))
            for architecture in ("deltanet", "gated-deltanet", "delta"):
                self.done("--root", root, "train", *TINY, "--architecture", architecture)
            drawn = lethe("--root", root, "plot", "--output", f"{root}/all.svg")
            self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))

    def test_are_dated_by_their_end(self):
        with tempfile.TemporaryDirectory() as root:
            self.done("--root", self.root, "bundle", "--to", f"{root}/one.tar.xz")
            self.done("--root", root, "bundle", "import", f"{root}/one.tar.xz")
            folder = next(Path(root).glob("artefacts/models/*"))
            end = json.loads((folder / "done.json").read_text())["time"]
            self.assertRegex(end, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            os.utime(folder / "done.json", (1e9, 1e9))
            said = subprocess.run([BINARY, "--root", root, "list", "models"], capture_output=True, text=True, env=os.environ | {"TZ": "UTC"})
            self.assertIn(end[:16].replace("T", " "), said.stdout)

    def test_are_found_again_by_the_same_call(self):
        before = (self.folder / "done.json").stat().st_mtime_ns
        self.assertEqual(self.done("--root", self.root, "train", *TINY).splitlines()[-1], str(self.folder))
        self.assertEqual((self.folder / "done.json").stat().st_mtime_ns, before)
        other = self.done("--root", self.root, "train", str(self.folder / "run.json"), "--seed", "1")
        self.assertNotEqual(other.splitlines()[-1], str(self.folder))

    def test_are_called_found_only_where_nothing_is_left_to_do(self):
        with tempfile.TemporaryDirectory() as root:
            shutil.copytree(Path(self.root) / "artefacts", Path(root) / "artefacts")
            folder = Path(root) / "artefacts/models" / self.folder.name
            call, found = ("--root", root, "train", *TINY), "found       trained before: nothing is left to do\n"
            (folder / "run.json").write_text("{")
            said = lethe(*call)
            self.assertRegex(said.stderr, rf"^lethe: {folder}/run.json: expected the run of done.json, found .*; it is written anew\n{found}$")
            self.assertEqual((folder / "run.json").read_bytes(), (self.folder / "run.json").read_bytes())
            self.done("--root", root, "evaluate", folder.name, "--sequences", "1")
            for damage, status in ((lambda: (folder / "done.json").write_text("{"), 0), (lambda: (folder / "checkpoint.pt").unlink(), 0),
                                   (lambda: [(folder / "done.json").write_text("{"), (folder / "log.jsonl").write_text("")], 1)):
                damage()
                said = lethe(*call)
                self.assertEqual(said.returncode, status, said.stderr)
                self.assertNotIn("trained before", said.stderr)

    def test_are_trained_by_two_processes_under_the_same_name(self):
        run = (*TINY, "--seed", "2")
        folder = self.done("--root", self.root, "train", *run, "--processes", "2").splitlines()[-1]
        self.assertEqual(json.loads((Path(folder) / "done.json").read_text())["processes"], 2)
        self.assertEqual(self.done("--root", self.root, "train", *run).splitlines()[-1], folder)

    def test_keep_the_run_that_was_asked_for(self):
        run = json.loads((self.folder / "run.json").read_text())
        self.assertEqual((run["model"]["width"], run["training"]["total_tokens"]), (16, 512))
        self.assertIn("width                  16", self.done("describe", str(self.folder / "run.json")))

    def test_are_evaluated_beyond_their_training_length(self):
        table = str(Path(self.root) / "loss.csv")
        shown = self.done("--root", self.root, "evaluate", str(self.folder), "--sequences", "2", "--csv", table)
        self.assertRegex(shown,
                         r"trained on sequences of +32\n(.*\n)+  tokens in each +128\n(.*\n)+at the training length\n(.*\n)*  tokens in each +32\n")
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["position"]) for row in rows], list(range(1, 129)))
        self.assertTrue(all(0 < float(row["loss"]) < 12 for row in rows))

    def test_are_evaluated_side_by_side_on_the_whole_split(self):
        other = self.done("--root", self.root, "train", *TINY, "--seed", "7").splitlines()[-1]
        table = Path(self.root) / "both.csv"
        shown = self.done("--root", self.root, "evaluate", str(self.folder), other, "--length", "64", "--csv", str(table))

        def of(label):
            return [[float(x) for x in re.split(r"  +", line.strip())[1:]] for line in shown.splitlines() if line.strip().startswith(label)]

        self.assertEqual(shown.splitlines()[0].split()[-2:], [self.folder.name, Path(other).name])
        losses, perplexities, bits = of("loss, nats"), of("perplexity"), of("bits per byte")
        self.assertEqual([len(row) for row in losses], [2, 2])  # at 64 and at the training length, of two models
        for loss, perplexity, bit in zip(sum(losses, []), sum(perplexities, []), sum(bits, [])):
            self.assertAlmostEqual(math.exp(loss), perplexity, delta=1e-4 * perplexity)
            self.assertGreater(bit, loss / math.log(2))  # a begin token is a token without a byte
            self.assertLess(bit, 1.01 * loss / math.log(2))
        self.assertTrue(all(share > 99 for row in of("of the split, %") for share in row))
        header = table.read_text().splitlines()[0]
        self.assertIn(f"{self.folder.name} loss", header)
        self.assertIn(f"{Path(other).name} loss", header)
        done = json.loads((self.folder / "done.json").read_text())
        self.assertAlmostEqual(losses[1][0], done["validation_loss"], delta=0.1)

    def test_are_evaluated_by_any_row_of_the_table(self):
        evaluate = ("--root", self.root, "evaluate", str(self.folder))
        self.assertIn("  loss, nats", self.done(*evaluate, "--what", "per_token_loss", "--settings", '{"length": 32, "sequences": 1}'))
        self.refused(2, "--what: expected one of per_token_loss, pruned_share", *evaluate, "--what", "needles")
        self.refused(2, "log_pruning_tolerance: expected a model that prunes, found none", *evaluate, "--what", "pruned_share")
        self.refused(2, "pruned_share: expected keys among length, sequences, split, found window", *evaluate, "--what", "pruned_share",
                     "--window", "11")
        self.refused(2, "--settings: expected a JSON object, found 64", *evaluate, "--settings", "64")

    def test_continue_a_prompt_the_same_way_for_the_same_seed(self):
        call = ("--root", self.root, "generate", self.folder.name[:8], "--prompt", "In the beginning", "--tokens", "8")

        def written(*more: str) -> bytes:  # a barely trained model writes arbitrary bytes, so not decoded
            return subprocess.run([BINARY, *call, *more], capture_output=True, timeout=300, check=True).stdout

        self.assertTrue(written().startswith(b"In the beginning"))
        self.assertEqual(written(), written())
        self.assertNotEqual(written(), written("--seed", "1"))

    def test_are_converted_and_say_what_was_kept(self):
        softmax = self.done("--root", self.root, "train", "--architecture", "transformer-llama", *TINY).splitlines()[-1]
        call = ("--root", self.root, "convert", softmax, "--mixer", "decay", "--state-size", "4", "--tokens", "256")
        shown = self.done(*call)
        for words in ("kept, scaled:\n  model.layers.*.attn.v_proj.weight", "new:\n", "attn.key_gate_proj.bias", "largest |S|"):
            self.assertIn(words, shown)
        folder = Path(shown.splitlines()[-1])
        self.assertEqual(json.loads((folder / "run.json").read_text())["conversion"]["projections"], "product")
        self.assertEqual(self.done(*call).splitlines()[-1], str(folder))
        self.assertNotEqual(self.done(*call, "--value-scale", "0.5").splitlines()[-1], str(folder))
        gated = ("--root", self.root, "convert", softmax, "--mixer", "gated_linear", "--tokens", "256")
        shown = self.done(*gated, "--features", "elu_plus_one", "--attention-norm", "true")
        self.assertIn("attn.fgate_proj.bias", shown)
        model = json.loads((Path(shown.splitlines()[-1]) / "run.json").read_text())["model"]
        self.assertEqual((model["mixer"]["forget_gate"], model["mixer"]["name"]), ("full", "gated_linear"))
        self.refused(2, "--forget-gate: expected full, bias_only or fixed", *gated, "--forget-gate", "none")
        self.refused(2, "--state-size: expected an option of the mixer local, found one that it has not",
                     "--root", self.root, "convert", softmax, "--mixer", "local", "--state-size", "8")
        self.refused(2, "--warmup-tokens: expected 0", "--root", self.root, "convert", softmax, "--mixer", "decay", "--warmup-tokens", "-7")
        self.refused(2, "source: expected softmax attention", "--root", self.root, "convert", str(self.folder), "--mixer", "decay")

    def test_are_listed_with_their_state_and_one_broken_blocks_none(self):
        with tempfile.TemporaryDirectory() as root:
            models = Path(root) / "artefacts/models"
            for name in ("finished", "stopped", "training", "diverged", "damaged", "lost", "edited"):
                shutil.copytree(self.folder, models / name)
                if name in ("stopped", "training"):
                    (models / name / "done.json").unlink()
                    log = models / name / "log.jsonl"
                    log.write_text("\n".join(log.read_text().splitlines()[:2]) + "\n")
                    shutil.copy(models / name / "checkpoint.previous.pt", models / name / "checkpoint.pt")  # of two steps
            done = models / "diverged/done.json"
            content = json.loads(done.read_text()) | {"diverged": "loss: expected a finite number"}
            del content["sha256"]
            content["sha256"] = hashlib.sha256(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
            done.write_text(json.dumps(content, indent=1, sort_keys=True))
            (models / "damaged/run.json").write_text('{"model": [')
            (models / "lost/checkpoint.pt").unlink()
            (models / "edited/done.json").unlink()
            (models / "edited/log.jsonl").write_text((models / "edited/log.jsonl").read_text().replace('"loss":5', '"loss":1', 1))
            with open(models / "training/lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                listed = self.done("--root", root, "list", "models")
            for line in (r"finished +finished +fox-pro +12k +512 +bible +\d\.\d{4} +\d{4}-\d\d-\d\d \d\d:\d\d", r"stopped +stopped 50 %",
                         r"training +training 50 %",
                         r"diverged +failed: loss: expected a finite", r"damaged +broken: .*run\.json: expected",
                         r"lost +broken: .*checkpoint\.pt: expected a checkpoint, found none",
                         r"edited +broken: .*log\.jsonl: expected \d+ bytes .*, those of its checkpoint"):
                self.assertRegex(listed, rf"(?m)^  {line}")
            self.assertNotIn("\n\n", listed)

    def test_that_are_not_finished_say_what_goes_on(self):
        with tempfile.TemporaryDirectory() as root:
            name, folder = self.folder.name, Path(root) / "artefacts/models" / self.folder.name
            shutil.copytree(self.folder, folder)
            (folder / "done.json").unlink()
            (folder / "checkpoint.previous.pt").replace(folder / "checkpoint.pt")
            (folder / "log.jsonl").write_text("".join((folder / "log.jsonl").read_text().splitlines(keepends=True)[:2]))
            found = f"expected a trained model, found {name}, which "
            for call in (("evaluate", name), ("generate", f"{folder}/"), ("convert", name[:6]), ("train", "--from", name),
                         ("export", name, "--output", f"{root}/weights"), ("bundle", name, "--to", f"{root}/bundle")):
                self.refused(2, f": {found}stopped at 50 % of its steps; lethe train {folder}/run.json goes on\n", "--root", root, *call)
            with open(folder / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.refused(2, f"artefact: {found}is in training at 50 % of its steps\n", "--root", root, "generate", name)
            self.assertEqual(self.done("--root", root, "train", str(folder / "run.json")).splitlines()[-1], str(folder))
            self.assertEqual(len((folder / "log.jsonl").read_text().splitlines()), 4)
            self.done("--root", root, "evaluate", name, "--sequences", "1")

    def test_whose_folder_can_not_be_read_are_not_none(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertIn("none yet", self.done("--root", root, "list", "models"))
            (Path(root) / "artefacts").write_text("")
            for call in (("list", "models"), ("evaluate", "3f2a"), ("bundle",)):
                self.refused(1, f"{root}/artefacts/models: expected a folder of models, found Not a directory\n", "--root", root, *call)
            self.refused(2, "--root: expected a folder, found ", "--root", f"{root}/artefacts", "list", "models")

    def test_are_drawn_and_named_in_the_report(self):
        picture = Path(self.root) / "curves.svg"
        self.assertEqual(self.done("--root", self.root, "plot", str(self.folder), "--output", str(picture)), f"{picture}\n")
        self.assertIn("training tokens", picture.read_text())
        self.refused(1, "plot: model: expected the folder or name of a model", "--root", self.root, "plot", "no-such-model")
        self.refused(2, "--output: expected once, found 2 times", "plot", "--output", "a.svg", "--output", "b.svg")
        pages = re.findall(r"^report: (.*report\.html)$", self.done("--root", self.root, "report"), re.MULTILINE)
        self.assertIn(self.folder.name, "".join(Path(page).read_text() for page in pages))

    def test_of_another_format_are_refused_in_one_line(self):
        with tempfile.TemporaryDirectory() as root:
            old = Path(root) / "artefacts/models/0123456789abcdef"
            old.mkdir(parents=True)
            (Path(root) / "experiments").symlink_to(ROOT / "experiments")  # the claims at the beginning of the list
            run = json.loads((self.folder / "run.json").read_text())
            del run["format"]
            (old / "run.json").write_text(json.dumps(run))
            (old / "done.json").write_text("{}")
            refusal = "run.format: expected 2 (train the model anew), found 1"
            self.refused(2, refusal, "--root", root, "evaluate", "0123")
            self.assertIn(f"  0123456789abcdef  broken: {old}/run.json: {refusal}", self.done("--root", root, "list"))

    def test_whose_files_are_damaged_are_named_and_not_evaluated(self):
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "experiments").symlink_to(ROOT / "experiments")
            models = Path(root) / "artefacts/models"
            shutil.copytree(Path(self.root) / "artefacts", Path(root) / "artefacts")
            name = self.folder.name
            for copy, file in (("aaaa", "run.json"), ("bbbb", "done.json"), ("cccc", "checkpoint.pt")):
                shutil.copytree(models / name, models / copy)
                damaged = bytearray((models / copy / file).read_bytes())
                damaged[damaged.index(b'"training_loss": ') + 17 if file == "done.json" else len(damaged) // 2] ^= 4
                (models / copy / file).write_bytes(damaged)
            listed = self.done("--root", root, "list")
            self.assertRegex(listed, f"(?m)^  aaaa  broken: {models}/aaaa/run.json: .*expected")
            self.assertRegex(listed, f"(?m)^  bbbb  broken: {models}/bbbb/done.json: expected content with SHA-256")
            self.assertRegex(listed, f"(?m)^  {name}  ")
            for command in ("evaluate", "generate", "convert"):
                for copy in ("aaaa", "bbbb", "cccc")[: 2 if command == "convert" else 3]:  # convert refuses the source before
                    result = lethe("--root", root, command, copy)
                    self.assertIn(result.returncode, (1, 2), result.stderr)
                    self.assertRegex(result.stderr, f"^lethe: .*{models}/{copy}/.*: .*expected .*, found .*\n$")
                    self.assertEqual(result.stdout, "")

    def test_of_an_earlier_step_or_under_the_name_of_another_are_not_evaluated(self):
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "experiments").symlink_to(ROOT / "experiments")
            shutil.copytree(Path(self.root) / "artefacts", Path(root) / "artefacts")
            models, name = Path(root) / "artefacts/models", self.folder.name
            shutil.copytree(models / name, models / "aaaa")
            shutil.copy(models / "aaaa/checkpoint.previous.pt", models / "aaaa/checkpoint.pt")
            (models / name).rename(models / ("0" * 16))
            result = lethe("--root", root, "evaluate", "aaaa")
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"^lethe: .*/aaaa/checkpoint.pt: expected step \d+ \(done.json\), found \d+; delete done.json: .*\n$")
            result = lethe("--root", root, "evaluate", "0" * 16)
            self.assertRegex(result.stderr, f"^lethe: .*/{'0' * 16}: expected the model of that name, found {name}; rename the folder\n$")
            self.assertEqual(result.stdout, "")

    def test_are_evaluated_into_a_file_that_is_refused_before_the_work(self):
        evaluate = ("--root", self.root, "evaluate", str(self.folder), "--sequences", "1", "--csv")
        self.refused(1, "absent/loss.csv.new: cannot be opened", *evaluate, f"{self.root}/absent/loss.csv")
        self.assertTrue(self.done(*evaluate, "/dev/stdout").startswith("position,"))
        self.assertTrue(Path("/dev/stdout").is_symlink())

    def test_need_the_vocabulary_of_their_data(self):
        self.refused(2, "vocabulary: expected 257", "--root", self.root, "train", *TINY, "--set", "vocabulary=300")

    def test_that_exceed_the_memory_are_refused_with_their_size(self):
        models = set((Path(self.root) / "artefacts/models").iterdir())
        for options in ({"--layers": "1000", "--width": "16384"}, {"--batch-tokens": "1099511627776", "--tokens": "1099511627776"}):
            result = lethe("--root", self.root, "train", *(options.get(before, word) for before, word in zip(("", *TINY), TINY)))
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(set((Path(self.root) / "artefacts/models").iterdir()), models, "nothing is left of it")
            self.assertRegex(result.stderr, r"(?m)^lethe: memory: expected at most the [0-9.]+ GiB of cpu, found [0-9.e+]+ GiB for a step of .*\n$")


if __name__ == "__main__":
    unittest.main()

"""The lethe command from the outside: exit status, one line of error, a model from training to text. Run by ctest.

usage: test_command.py BINARY [unittest's own arguments]
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = Path(sys.argv.pop(1)).resolve() if __name__ == "__main__" else None
ROOT = Path(__file__).resolve().parents[2]

TINY = ("--layers 1 --width 16 --heads 2 --context 32 --batch-tokens 128 --warmup-tokens 128 --tokens 512 "
        "--set mlp_multiple=16 --set checkpoint_tokens=256").split()  # fmt: skip


def lethe(*arguments: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "LETHE_GPT2_FILES"}
    # Runs in a separate folder: no result may depend on the working directory.
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run([BINARY, "--threads", "1", *arguments], capture_output=True, text=True, cwd=elsewhere,
                              env=environment, timeout=300)  # fmt: skip


class CommandTest(unittest.TestCase):
    def done(self, *arguments: str) -> str:
        result = lethe(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, status: int, message: str, *arguments: str) -> None:
        result = lethe(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(message, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(result.stdout, "")


class Calls(CommandTest):
    def test_explain_themselves(self):
        self.assertIn("Examples:", self.done("--help"))
        for command in ("run", "train", "data"):
            self.assertIn(f"lethe {command}", self.done(command, "--help"))

    def test_that_are_wrong_end_with_2_and_one_line(self):
        for message, *arguments in (
            ("command: expected one of list, run,",),
            ("found frobnicate", "frobnicate"),
            ("argument: expected what lethe train --help lists, found --frobnicate", "train", "--frobnicate"),
            ("--set: expected a member among", "describe", "--set", "kv_shft=false"),
            ("--set: expected key=value, found 'rope'", "describe", "--set", "rope"),
            ("rope: expected true or false, found 5", "describe", "--set", "rope=5"),
            ("architecture", "describe", "--architecture", "fox"),
            ("forget_gate: expected full", "describe", "--architecture", "gated_delta", "--set", "forget_gate=none"),
            ("size", "describe", "--size", "7b"),
            ("corpus: expected 'bible', 'headers' or a folder of text, found 'nowhere'", "data", "show", "nowhere"),
            ("no_such_claim", "run", "no_such_claim"),
            ("artefact: expected the folder or name of a trained model", "generate", "no-such-model"),
            ("--threads: expected a number from 0 to 4096, found -1", "list", "--threads", "-1"),
            ("--threads: expected a number from 0 to 4096, found many", "list", "--threads", "many"),
            ("--threads: expected a value, found none", "list", "--threads"),
            ("--root: expected a folder, found /nowhere", "--root", "/nowhere", "list"),
            ("--tokens: expected a number of at least 1, found 0", "generate", "some-model", "--tokens", "0"),
            ("heads: expected a whole number, found", "describe", "--heads", "few"),
            ("--seed: expected a whole number, found 1.5", "generate", "some-model", "--seed", "1.5"),
            ("artefact: expected a value, found none", "generate"),
        ):
            with self.subTest(arguments):
                self.refused(2, message, *arguments)

    def test_of_describe_know_the_papers_largest_model(self):
        for heads, non_embedding in (((), "759441984"), (("--heads", "12"), "758117664")):
            described = self.done("describe", "--size", "760m", *heads)
            members = dict(line.split(maxsplit=1) for line in described.splitlines() if line.startswith("  "))
            self.assertEqual((members["non-embedding"], members["vocabulary"]), (non_embedding, "50257"))

    def test_of_describe_say_what_runs_attention_on_a_gpu_and_why(self):
        for options, expected in (
            (("--set", "compute_dtype=bfloat16"), "sm_90a kernels"),
            (("--set", "compute_dtype=bfloat16", "--heads", "16"),
             "portable, not the sm_90a kernels: head dim: expected 64 or 128, found 96"),
            ((), "portable, not the sm_90a kernels: dtype: expected bfloat16 or float16, found float32"),
        ):
            with self.subTest(options=options):
                members = dict(line.split(maxsplit=1)
                               for line in self.done("describe", "--size", "760m", *options).splitlines() if line.startswith("  "))
                self.assertEqual(members["attention"], expected)
        described = self.done("describe", "--architecture", "decay", "--set", "compute_dtype=bfloat16")
        self.assertIn("  decay                  portable, float64: a few PyTorch calls a token", described)
        self.assertNotIn("  attention ", described)

    def test_of_describe_take_a_mixer_a_layer(self):
        mixers = '[{"name": "local", "window": 8}, {"name": "gated_delta", "state_size": 4}]'
        described = self.done("describe", "--set", f"mixer={mixers}", "--set", "qk_norm=none")
        for line in ("  window                 8", "  state_size             4", "  qk_norm                none",
                     "  local                  portable", "  gated_delta            portable"):
            self.assertIn(line, described)
        self.refused(2, "expected a member among", "describe", "--set", f"mixer={mixers}", "--set", "forget_gat=full")

    def test_of_list_show_claims_with_their_cost_architectures_and_sizes(self):
        listed = self.done("list")
        for name in ("forgetting_transformer/ablations", "adaptive_computation_pruning/savings", "per_token_loss", "fox-pro", "760m"):
            self.assertIn(name, listed)


class Corpora(CommandTest):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        self.texts = self.root / "texts"
        self.texts.mkdir()
        for name in "abc":
            (self.texts / f"{name}.txt").write_text(f"The text of {name}. " * 200)

    def test_of_a_folder_are_prepared_and_shown(self):
        prepared = self.done("--root", str(self.root), "data", "prepare", str(self.texts))
        for expected in ("bytes, vocabulary 257", "train       3001 tokens in 1 documents", "The text of"):
            self.assertIn(expected, prepared)
        self.assertEqual(self.done("--root", str(self.root), "data", "show", str(self.texts)), prepared)

    def test_in_gpt2_tokens_need_its_files(self):
        self.refused(2, "--gpt2-files", "--root", str(self.root), "data", "prepare", str(self.texts), "--tokenizer", "gpt2")


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

    def test_are_found_again_by_the_same_call(self):
        before = (self.folder / "done.json").stat().st_mtime_ns
        self.assertEqual(self.done("--root", self.root, "train", *TINY).splitlines()[-1], str(self.folder))
        self.assertEqual((self.folder / "done.json").stat().st_mtime_ns, before)
        other = self.done("--root", self.root, "train", str(self.folder / "run.json"), "--seed", "1")
        self.assertNotEqual(other.splitlines()[-1], str(self.folder))

    def test_keep_the_run_that_was_asked_for(self):
        run = json.loads((self.folder / "run.json").read_text())
        self.assertEqual((run["model"]["width"], run["training"]["total_tokens"]), (16, 512))
        self.assertIn("width                  16", self.done("describe", str(self.folder / "run.json")))

    def test_are_evaluated_beyond_their_training_length(self):
        table = str(Path(self.root) / "loss.csv")
        shown = self.done("--root", self.root, "evaluate", str(self.folder), "--sequences", "2", "--csv", table)
        self.assertIn("2 sequences of 128 tokens, trained on 32", shown)
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["position"]) for row in rows], list(range(1, 129)))
        self.assertTrue(all(0 < float(row["loss"]) < 12 for row in rows))

    def test_are_evaluated_by_any_row_of_the_table(self):
        evaluate = ("--root", self.root, "evaluate", str(self.folder))
        self.assertIn("loss (lethe): ", self.done(*evaluate, "--what", "per_token_loss", "--settings", '{"length": 32, "sequences": 1}'))
        self.refused(2, "evaluation: expected one of per_token_loss, pruned_share", *evaluate, "--what", "needles")
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
        self.refused(2, "forget_gate: expected full, bias_only or fixed", *gated, "--forget-gate", "none")
        self.refused(2, "source: expected softmax attention", "--root", self.root, "convert", str(self.folder), "--mixer", "decay")

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
            self.assertIn(f"  0123456789abcdef  {refusal}", self.done("--root", root, "list"))

    def test_need_the_vocabulary_of_their_data(self):
        self.refused(2, "vocabulary: expected 257", "--root", self.root, "train", *TINY, "--set", "vocabulary=300")


if __name__ == "__main__":
    unittest.main()

"""The lethe command from the outside: exit status, one line of error, benchmarks, results, corpora. Run by ctest.

usage: test_command.py BINARY [unittest's own arguments]
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from command import BINARY, ROOT, TINY, CommandTest, lethe


class Calls(CommandTest):
    def test_explain_themselves(self):
        self.assertIn("Examples:", self.done("--help"))
        for command in ("run", "train", "data"):
            self.assertIn(f"lethe {command}", self.done(command, "--help"))

    def test_show_types_defaults_and_all_settings_by_group(self):
        shown = self.done("train", "--help")
        for line in (r"^Model:\n  --architecture TEXT=fox-pro", r"^Training:\n  --tokens INT=\d+", r"--learning-rate FLOAT=0\.\d+",
                     r"\binitialization TEXT=normal"):
            self.assertRegex(shown, re.compile(line, re.MULTILINE))
        described = self.done("describe")
        members = re.findall(r"^  (\w+) ", described[:described.index("on compute capability")], re.MULTILINE)
        for member in set(members) - {"name"}:
            self.assertRegex(shown, rf"\b{member} (INT|FLOAT|BOOL|TEXT|FLOAT\|null)=")
        for command in ("list", "run"):
            self.assertIn("smoke", self.done(command, "--help"))

    def test_show_the_version_with_commit_and_build(self):
        self.assertRegex(self.done("--version"), r"^lethe \d+\.\d+\.\d+\ncommit  (unknown|[0-9a-f]{40}( with .*)?)\nbuild   \w+, g\+\+ .*, torch 2\.")

    def test_that_are_wrong_end_with_2_and_one_line(self):
        for message, *arguments in (
            ("command: expected one of list, run,",),
            ("found frobnicate", "frobnicate"),
            ("found trian (did you mean train?)", "trian"),
            ("command: expected one of prepare, show, pack, unpack, found none", "data"),
            ("found prepar (did you mean prepare?)", "data", "prepar"),
            ("argument: expected what lethe train --help lists, found --frobnicate\n", "train", "--frobnicate"),
            ("lethe train --help lists, found --layer (did you mean --layers?)", "train", "--layer=3"),
            ("lethe --help lists, found --verison (did you mean --version?)", "--verison"),
            ("--layers: expected once, found 2 times", "train", "--layers", "3", "--layers", "4"),
            ("--threads: expected once, found 2 times", "list", "--threads", "1", "--threads", "2"),
            ("layers: expected once, found 2 times", "train", "--set", "layers=3", "--set", "layers=4"),
            ("--layers: expected once, found 2 times", "describe", "--layers", "3", "--set", "layers=4"),
            ("parts: expected one of claims, evaluations", "list", "modells"),
            ("--scale: expected one of smoke, quick, gpu, paper, found tiny", "list", "--scale", "tiny"),
            ("found 'kv_shft' (did you mean kv_shift?)", "describe", "--set", "kv_shft=false"),
            ("--set: expected a member among", "describe", "--set", "kv_shft=false"),
            ("--set: expected key=value, found 'rope'", "describe", "--set", "rope"),
            ("rope: expected true or false, found 5", "describe", "--set", "rope=5"),
            ("initialization: expected one of normal, scaled", "describe", "--set", "initialization=usual"),
            ("found fox-po (did you mean fox-pro?)", "describe", "--architecture", "fox-po"),
            ("--architecture: expected one of ", "describe", "--architecture", "fox"),
            ("forget_gate: expected full", "describe", "--architecture", "gated_delta", "--set", "forget_gate=none"),
            ("corpus: expected 'bible', 'headers' or text (a file or a folder), found 'nowhere'", "data", "show", "nowhere"),
            ("corpus: expected 'bible', 'headers' or text (a file or a folder), found 'aeec'", "describe", "aeec"),
            ("heads: expected 1 ", "train", "--heads", "0"),
            ("--gates: expected a model with FoX's gate, found open gates", "bench", *TINY, "--architecture", "mamba2", "--gates", "open"),
            ("experiments: expected a paper, a claim or paper/claim, found no_such_claim\n", "run", "no_such_claim"),
            ("paper/claim, found ablatoins (did you mean ablations?)", "run", "needle", "ablatoins"),
            ("found troughput (did you mean throughput?)", "judge", "troughput"),
            ("--from: expected a file, found /nowhere", "judge", "--from", "/nowhere"),
            ("found gate (did you mean gates?)", "evaluate", "some-model", "--what", "gate"),
            ("found dekay (did you mean decay?)", "convert", "some-model", "--mixer", "dekay"),
            ("expected one of float32, bfloat16, found float16 (did you mean", "export", "some-model", "--output", "x", "--dtype", "float16"),
            ("--seed: expected a number of at least 0, found -1", "generate", "some-model", "--seed", "-1"),
            ("--top: expected a number of at most 9223372036854775807, found 9223372036854775808", "generate", "some-model", "--top", str(2**63)),
            ("--seed: expected a number of at most 18446744073709551615, found 18446744073709551616", "generate", "some-model", "--seed", str(2**64)),
            ("some-model", "generate", "some-model", "--seed", str(2**64 - 1)),
            (f"--layers: expected a whole number, found \"{99 * '9'}…\n", "describe", "--layers", 400 * "9"),
            (f"--tokens: expected a number of at least 1, found {100 * '9'}…\n", "generate", "some-model", "--tokens", 400 * "9"),
            (f"--threads: expected a number from 0 to {max(64, os.cpu_count())}, found {100 * '9'}…\n", "list", "--threads", 400 * "9"),
            ("--learning-rate: expected a number, found \"1e999\"\n", "describe", "--learning-rate", "1e999"),
            ("--until: expected a number of at least 0, found 1e999\n", "train", "--until", "1e999"),
            ("--value-scale: expected a number of at least 0, found 1e999\n", "convert", "some-model", "--value-scale", "1e999"),
            ("--settings: expected JSON with numbers of double precision", "evaluate", "some-model", "--settings", '{"length": 1e999}'),
            ("--temperature: expected a number of at least 0, found 1e999", "generate", "some-model", "--temperature", "1e999"),
            ("artefact: expected the folder or name of a trained model", "generate", "no-such-model"),
            ("--layers: expected 1 … 1000, found 1000000000", "describe", "--layers", "1000000000"),
            ("--layers: expected a whole number, found 1000000000.0", "describe", "--layers", "1e9"),
            ("--layers: expected 1 … 1000, found -1", "describe", "--layers", "-1"),
            ("--width: expected a whole number of 64 bits with sign", "describe", "--width", "18446744073709551615"),
            ("parameters: expected at most 2^44", "describe", "--layers", "1000", "--width", "1048576"),
            ("--batch-tokens: expected a whole number, found 9", "describe", "--batch-tokens", "9e18"),
            ("--batch-tokens: expected 1 … 2^53, found 9", "describe", "--batch-tokens", "9000000000000000000"),
            ("--context: expected 1 … 2^53, found -512", "describe", "--context", "-512"),
            ("layers: expected 1 … 1000, found 0", "describe", "--set", "layers=0"),
            ("--tokens: expected 1 … 2^53, found 0", "describe", "--tokens", "0"),
            ("--tokens: expected a whole number, found \"many\"", "describe", "--tokens", "many"),
            ("--learning-rate: expected > 0, found", "describe", "--learning-rate", "-1"),
            ("--seed: expected a whole number ≥ 0, found -1", "train", "--seed", "-1"),
            ("--device: expected cpu, cuda or cuda:N, found tpu", "train", "--device", "tpu", "--set", "seed=1"),
            ("--size: expected 760m, 360m or 125m, found 7b", "describe", "--size", "7b"),
            ("--from: expected the folder or name of a trained model", "train", "--from", "no-such-model"),
            ("state_size: expected 1 … 1048576", "describe", "--architecture", "delta", "--set", "state_size=1000000000000"),
            ("rope: expected JSON of at most 64 levels", "describe", "--set", "rope=" + 500 * "[" + 500 * "]"),
            ("--threads: expected a number from 0 to", "list", "--threads", "1000000000"),
            (f"--threads: expected a number from 0 to {max(64, os.cpu_count())}, found -1", "list", "--threads", "-1"),
            (f"--threads: expected a number from 0 to {max(64, os.cpu_count())}, found many", "list", "--threads", "many"),
            ("--threads: expected a value, found none", "list", "--threads"),
            ("--root: expected a folder, found /nowhere", "--root", "/nowhere", "list"),
            ("--tokens: expected a number of at least 1, found 0", "generate", "some-model", "--tokens", "0"),
            ("--heads: expected a whole number, found", "describe", "--heads", "few"),
            ("--seed: expected a whole number, found 1.5", "generate", "some-model", "--seed", "1.5"),
            ("artefact: expected a value, found none", "generate"),
            ("--processes: expected one a GPU, 2, found 3", "train", "--gpus", "2", "--processes", "3"),
            ("--processes: expected", "train", "--processes", str(8 * os.cpu_count() + 1)),
            ("argument: expected a value, found an empty one", "train", ""),
            ("--from: expected a value, found an empty one", "train", "--from", ""),
            ("--architecture: expected a value, found an empty one", "train", "--architecture="),
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
            (("--set", "compute_dtype=bfloat16"),
             "9.0: sm_90a kernels; 8.0, 10.0: sm_80 kernels (forward tiles 128 × 32, wide backward 128 × 64, two stages); "
             "8.6, 8.9, 12.0: sm_80 kernels (forward tiles 128 × 32, wide backward 128 × 64, one stage)"),
            (("--set", "compute_dtype=bfloat16", "--heads", "16"),
             "9.0: sm_90a kernels; 8.0, 10.0: sm_80 kernels (forward tiles 128 × 32, wide backward 128 × 64, two stages); "
             "8.6, 8.9, 12.0: sm_80 kernels (forward tiles 128 × 32, fused backward 128 × 32)"),
            (("--set", "compute_dtype=bfloat16", "--heads", "8"),
             "9.0: sm_90a kernels; 8.0, 10.0: sm_80 kernels (forward tiles 64 × 32, wide backward 64 × 64, one stage); "
             "8.6, 8.9, 12.0: sm_80 kernels (forward tiles 64 × 32, backward in two kernels 64 × 16)"),
            (("--set", "compute_dtype=bfloat16", "--set", "deterministic=true"),
             "9.0: sm_90a kernels; 8.0, 8.6, 8.9, 10.0, 12.0: sm_80 kernels (forward tiles 128 × 32, backward in two kernels 128 × 64)"),
            ((), "every GPU since 8.0: sm_80 kernels (forward tiles 128 × 32, backward in two kernels 128 × 16), "
                 "not the sm_90a kernels: dtype: expected bfloat16 or float16, found float32"),
        ):
            with self.subTest(options=options):
                members = dict(line.split(maxsplit=1)
                               for line in self.done("describe", "--size", "760m", *options).splitlines() if line.startswith("  "))
                self.assertEqual(members["attention"], expected)
        described = self.done("describe", "--architecture", "decay", "--set", "compute_dtype=bfloat16")
        self.assertIn("  decay                  9.0, 8.0, 10.0: vector gate kernels; 8.6, 8.9, 12.0: scan kernels\n", described)
        self.assertNotIn("  attention ", described)
        described = self.done("describe", "--architecture", "delta")
        self.assertIn("  delta                  every GPU since 8.0: scan kernels, not the delta chunk kernels: "
                      "dtype: expected bfloat16 or float16, found float32\n", described)
        described = self.done("describe", "--architecture", "mamba2", "--context", "1024", "--set", "compute_dtype=bfloat16")
        self.assertIn("  mamba2                 9.0: chunk kernels (states kept for the backward); ", described)

    def test_of_describe_take_a_mixer_a_layer(self):
        mixers = '[{"name": "local", "window": 8}, {"name": "gated_delta", "state_size": 4}]'
        described = self.done("describe", "--set", f"mixer={mixers}", "--set", "qk_norm=none")
        for line in ("  window                 8", "  state_size             4", "  qk_norm                none",
                     "  local                  every GPU since 8.0: sm_80 kernels (", "  gated_delta            every GPU since 8.0: scan kernels"):
            self.assertIn(line, described)
        self.refused(2, "expected a member among", "describe", "--set", f"mixer={mixers}", "--set", "forget_gat=full")

    def test_of_list_show_claims_with_their_cost_architectures_and_sizes(self):
        listed = self.done("list")
        for name in ("forgetting_transformer/ablations", "adaptive_computation_pruning/savings", "per_token_loss", "fox-pro", "760m"):
            self.assertIn(name, listed)

    def test_whose_output_can_not_be_written_fail(self):
        for command in (("list", "sizes"), ("describe",), ("list", "models")):
            with open("/dev/full", "w") as full, tempfile.TemporaryDirectory() as root:
                result = subprocess.run([BINARY, "--root", root, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
            self.assertEqual((result.returncode, result.stderr), (1, "lethe: standard output: cannot be written\n"))

    def test_of_list_name_a_damaged_claim_and_go_on(self):
        with tempfile.TemporaryDirectory() as root:
            shutil.copytree(ROOT / "experiments/papers", Path(root) / "experiments/papers")
            (Path(root) / "experiments/papers/forgetting_transformer/ablations/config.toml").write_text("[claim\n")
            listed = self.done("--root", root, "list", "claims")
            self.assertRegex(listed, r"forgetting_transformer/ablations\n    .*ablations/config.toml: .*line 1")
            self.assertRegex(listed, r"decaying_fast_weights/generation_cost\n    Time and memory")


class Benchmarks(CommandTest):
    """lethe bench on a model of one layer."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.call = ("bench", "--seconds", "0.05", *TINY, "--set", "vocabulary=257")

    def test_print_the_figures_of_a_step(self):
        shown = self.done(*self.call)
        figures = {line[:22].strip(): float(line[22:]) for line in shown.splitlines()}
        self.assertEqual(list(figures), ["tokens/s", "us a token", "ms a step", "TFLOP/s", "% of a large product"])
        self.assertAlmostEqual(figures["tokens/s"] * figures["us a token"], 1e6, delta=1e4)
        self.assertAlmostEqual(figures["us a token"] * 128 / 1000, figures["ms a step"], delta=0.01 * figures["ms a step"])

    def test_write_what_they_print_and_a_trace(self):
        found, trace = self.folder / "found.json", self.folder / "trace.json"
        shown = self.done(*self.call, "--profile", "--json", str(found), "--trace", str(trace))
        figures = json.loads(found.read_text())
        self.assertRegex(shown, rf"(?m)^us a token +{figures['microseconds_per_token']:.4f}$")
        operators = figures["operators"]
        largest = max(operators, key=lambda name: operators[name]["microseconds_per_token"])
        self.assertRegex(shown, rf"us a token by operator .*\n +[0-9.]+ +[0-9.]+ %  {re.escape(largest)}\n")
        self.assertGreater(sum(entry["microseconds_per_token"] for entry in operators.values()), 0)
        self.assertIn("lethe::_forgetting_attention_forward", {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]})
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["found.json", "trace.json"])
        self.assertEqual(json.loads(self.done(*self.call, "--json", "/dev/stdout").split("\n", 5)[5])["device"], "cpu")

    def test_print_the_time_of_a_prompt(self):
        found = self.folder / "found.json"
        shown = self.done(*self.call, "--prompt", "--json", str(found))
        self.assertRegex(shown, r"^ms a prompt +[0-9.]+\n$")  # memory is a GPU's
        figures = json.loads(found.read_text())
        self.assertEqual((figures["device"], figures["prompts"] >= 1, figures["milliseconds"] > 0), ("cpu", True, True))
        self.refused(2, "excludes", *self.call, "--prompt", "--serve")
        self.refused(2, "excludes", *self.call, "--prompt", "--processes", "2")

    def test_take_steps_on_command_at_one_context_after_the_other(self):
        served = lethe(*self.call, "--serve", input="go 2\ncontext 16\nlosses 2\nrest\ncontext 64\ngo 1\nstop 1\ngo 1\n")
        self.assertEqual(served.returncode, 0, served.stderr)
        ready, seconds, short, losses, rest, long, last = served.stdout.splitlines()
        self.assertEqual(rest, "{}")  # memory is a GPU's
        self.assertTrue(ready.startswith("ready "))
        self.assertGreater(float(seconds), 0)
        self.assertGreater(float(last), 0)
        self.assertEqual(len(json.loads(losses)), 2)
        short, long = json.loads(short), json.loads(long)
        self.assertEqual((short["context"], long["context"], short["tokens"], long["tokens"]), (16, 64, 128, 128))
        self.assertGreater(long["flops_per_token"], short["flops_per_token"])
        self.assertGreater(short["product_flops_per_second"], 0)
        for words, found in (("foo\n", "expected go, losses, context, rest or stop, found 'foo'"), ("go 0\n", "expected a number from 1 on after go, found '0'")):
            wrong = lethe(*self.call, "--serve", input=words)
            self.assertEqual((wrong.returncode, wrong.stderr.count("\n")), (2, 1))
            self.assertIn(f"lethe: standard input: {found}", wrong.stderr)
        refused = lethe(*self.call, "--serve", input="context 48\n")  # no part of a step's tokens
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1), refused.stderr)

    def test_refuse_files_that_can_not_be_written_before_the_work(self):
        for option in ("--json", "--trace"):
            self.refused(1, "cannot be opened", *self.call, option, f"{self.folder}/absent/file")
        self.refused(1, "expected a file, found a folder", *self.call, "--json", str(self.folder))
        full = lethe(*self.call, "--json", "/dev/full")
        self.assertEqual((full.returncode, full.stderr), (1, "lethe: /dev/full: cannot be written: No space left on device\n"))


class Results(CommandTest):
    def test_are_refused_before_the_work_where_they_can_not_be_written(self):
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "file").write_text("")
            run, refusal = ("run", "duality", "--scale", "smoke"), "results: expected a folder to write in, found"
            for command in (run, ("judge", "savings", "--scale", "gpu")):
                self.refused(2, f"--{refusal} {root}/file/", "--root", root, *command, "--results", f"{root}/file")
            (Path(root) / "artefacts").write_text("")
            self.refused(2, f"lethe: {refusal} {root}/artefacts/results/", "--root", root, *run)
            self.assertEqual(sorted(path.name for path in Path(root).iterdir()), ["artefacts", "file"])


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

    def test_are_not_packed_in_thousands_of_files(self):
        parts = self.root / "parts"
        pack = ("--root", str(self.root), "data", "pack", str(self.texts), "--to", str(parts), "--part-bytes")
        self.refused(2, "--part-bytes: expected at least ", *pack, "1")
        self.assertEqual(list(parts.iterdir()), [])
        self.done(*pack, "200")
        self.assertGreater(len(list(parts.glob("*.part"))), 1)

    def test_in_gpt2_tokens_need_its_files(self):
        for command in (("data", "prepare"), ("data", "show"), ("train",)):  # the last two have no such option
            self.refused(2, "--gpt2-files of lethe data prepare (or LETHE_GPT2_FILES): expected the folder of GPT-2's encoder.json", "--root",
                         str(self.root), *command, str(self.texts), "--tokenizer", "gpt2")


if __name__ == "__main__":
    unittest.main()

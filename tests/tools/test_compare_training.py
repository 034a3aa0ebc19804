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
import torch  # noqa: E402
from compare_training import Case, runs, table  # noqa: E402
from fla_models import our_state, trained_in_bfloat16  # noqa: E402


class Cases(unittest.TestCase):
    def test_name_a_model_its_size_and_its_length(self):
        case = Case("360m:2048:fox-pro+acp")
        self.assertEqual((case.size, case.length, case.architecture), ("360m", 2048, "fox-pro"))
        self.assertEqual((case.pro, case.forgets, case.prunes), (True, True, True))
        plain = Case("125m:4096:transformer-llama")
        self.assertEqual((plain.pro, plain.forgets, plain.prunes), (False, False, False))

    def test_of_another_form_are_refused_in_one_line(self):
        for text in ("125m", "125m:4096", "125m:4096:fox-pro:x", "7b:4096:fox-pro", "125m:long:fox-pro", "125m:0:fox-pro", "125m:-1:fox-pro",
                     "125m:3000:fox-pro", "125m:4096:fox", "125m:4096:mamba2+acp", ""):
            with self.subTest(text):
                done = subprocess.run([sys.executable, TOOL, "--case", text], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(done.stderr, f"compare_training: --case: expected SIZE:LENGTH:MODEL such as 125m:4096:fox-pro, found {text}\n")

    def test_of_recurrent_models_need_the_code_that_draws_their_weights(self):
        self.assertTrue(Case("125m:4096:mamba2", "fla").recurrent)
        done = subprocess.run([sys.executable, TOOL, "--case", "125m:4096:mamba2"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr,
                         "compare_training: --fla: expected a checkout of FLA, which draws the weights of 125m:4096:mamba2, found none\n")

    def test_have_the_rows_that_know_their_model(self):
        rows = ("lethe", "compiled", "official", "fla", "fla-compiled", "fla-gla")
        of = lambda name: [row for row in rows if runs(row, Case(f"125m:4096:{name}", "fla"))]
        self.assertEqual(of("transformer-llama"), ["lethe", "compiled"])
        self.assertEqual(of("fox-pro"), ["lethe", "compiled", "official"])
        self.assertEqual(of("mamba2"), ["lethe", "fla", "fla-compiled", "fla-gla"])
        for name in ("hgrn2", "gla", "deltanet", "gated-deltanet"):
            self.assertEqual(of(name), ["lethe", "fla", "fla-compiled"])

    def test_are_not_measured_for_a_file_that_can_not_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, TOOL, "--output", f"{folder}/absent/found.json"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("--output: expected a file in a folder that exists", done.stderr)


def result(case, row, speed=None):
    return {"case": case, "row": row, "error": None if speed else "loss: expected …", **({"tokens_per_second": speed} if speed else {})}


class FlaWeights(unittest.TestCase):
    def test_of_mamba2_get_our_names_and_pieces(self):
        heads, width, inner, state = 2, 4, 8, 3
        convolved = inner + 2 * state
        layer = "backbone.layers.0."
        rows = torch.arange(inner + convolved + heads).float().unsqueeze(1).expand(-1, width)
        ours = our_state({"backbone.embeddings.weight": torch.zeros(5, width), layer + "norm.weight": torch.zeros(width),
                          layer + "mixer.dt_bias": torch.zeros(heads), layer + "mixer.in_proj.weight": rows,
                          layer + "mixer.conv1d.weight": torch.zeros(convolved, 1, 4),
                          layer + "mixer.norm.weight": torch.zeros(inner), "backbone.norm_f.weight": torch.zeros(width),
                          "lm_head.weight": torch.zeros(5, width)})
        begin = "model.layers.0."
        self.assertEqual({name: tuple(value.shape) for name, value in ours.items()}, {
            "model.embeddings.weight": (5, width), begin + "attn_norm.weight": (width,), begin + "attn.dt_bias": (heads,),
            begin + "attn.in_proj.z.weight": (inner, width), begin + "attn.in_proj.xBC.weight": (convolved, width),
            begin + "attn.in_proj.dt.weight": (heads, width),
            begin + "attn.conv1d.weight": (convolved, 4), begin + "attn.norm.weight": (inner,), "model.norm.weight": (width,),
            "lm_head.weight": (5, width)})
        pieces = torch.cat([ours[begin + f"attn.in_proj.{piece}.weight"] for piece in ("z", "xBC", "dt")])
        self.assertTrue(torch.equal(pieces, rows))

    def test_of_other_layers_join_gate_and_up(self):
        layer = "model.layers.0."
        ours = our_state({layer + "attn.g_norm.weight": torch.zeros(4), layer + "attn.q_conv1d.weight": torch.zeros(4, 1, 4),
                          layer + "mlp.gate_proj.weight": torch.zeros(6, 4), layer + "mlp.up_proj.weight": torch.ones(6, 4)})
        self.assertEqual(list(our_state({layer + "attn.g_norm_swish_gate.weight": torch.zeros(4)})), [layer + "attn.o_norm.weight"])
        self.assertEqual({name: tuple(value.shape) for name, value in ours.items()}, {
            layer + "attn.o_norm.weight": (4,), layer + "attn.q_conv1d.weight": (4, 4), layer + "mlp.gate_proj.weight": (12, 4)})
        self.assertEqual(ours[layer + "mlp.gate_proj.weight"][:, 0].tolist(), [0.0] * 6 + [1.0] * 6)


class FlaStep(unittest.TestCase):
    def test_rounds_the_weights_and_keeps_their_updates(self):
        model = torch.nn.Linear(4, 3)
        model.bias._no_weight_decay = True
        before, tokens, labels = model.weight.detach().clone(), torch.randn(5, 4), torch.randn(5, 3)
        masters, backward = trained_in_bfloat16(model,
                                                lambda x, y: (torch.nn.functional.linear(x, model.weight.float(), model.bias) - y).square().sum())
        optimizer = torch.optim.SGD(masters.parameters(), lr=1e-4)
        first = backward(tokens, labels)
        self.assertEqual([weight.dtype for weight in model.parameters()], [torch.bfloat16, torch.float32])
        self.assertTrue(torch.equal(model.weight, before.bfloat16()))
        self.assertTrue(all(master.grad is not None and master.dtype == torch.float32 for master in masters))
        for _ in range(20):
            optimizer.step()
            optimizer.zero_grad()
            last = backward(tokens, labels)
        self.assertLess(last, first)
        self.assertFalse(torch.equal(masters[0], masters[0].bfloat16().float()))


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

    def test_has_the_faster_row_of_fla(self):
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768,
                 "rounds": 5, "slot_seconds": 2.0,
                 "results": [result("125m:4096:mamba2", "lethe", 300000.0), result("125m:4096:mamba2", "fla", 150000.0),
                             result("125m:4096:mamba2", "fla-compiled", 200000.0), result("125m:4096:hgrn2", "lethe", 300000.0),
                             result("125m:4096:hgrn2", "fla"), result("125m:4096:hgrn2", "fla-compiled")]}
        rows = [line for line in table(found).splitlines() if line.startswith("| ")]
        self.assertEqual(rows, ["| model | tokens/s, lethe | FLA | ratio |", "| 125m, 4096, mamba2 | 300000 | 200000 | 1.500 |",
                                "| 125m, 4096, hgrn2 | 300000 | – | – |"])
        self.assertIn("rows fla, fla-compiled, which `--help` describes.\n", table(found))
        found["results"][1]["triton"] = "3.7.1"
        self.assertIn("which `--help` describes, with Triton 3.7.1.\n", table(found))

    def test_has_memory_and_prompts_where_they_were_measured(self):
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "c" * 40, "date": "2026-01-02T03:04:05Z", "tokens_a_step": 32768,
                 "rounds": 5, "slot_seconds": 2.0, "results": [result("125m:4096:fox-pro", "lethe", 300000.0) | {"peak_bytes": 3 << 30}],
                 "prompts": [{"case": "125m:16384:fox-pro", "milliseconds": 36.37, "bytes_beyond_the_weights": 1 << 29}]}
        rows = [line for line in table(found).splitlines() if line.startswith("| ")]
        self.assertEqual(rows, ["| model | tokens/s, lethe | GiB at most, lethe |", "| 125m, 4096, fox-pro | 300000 | 3.0 |",
                                "| model | ms | GiB beyond the weights |", "| 125m, 16384, fox-pro | 36.4 | 0.50 |"])

    def test_of_the_committed_results_is_the_committed_page(self):
        for data in (*ROOT.glob("results/*/training_step*.json"), *ROOT.glob("results/*/recurrent_*.json")):
            self.assertEqual(data.with_suffix(".md").read_text(), table(json.loads(data.read_text())))


if __name__ == "__main__":
    unittest.main()

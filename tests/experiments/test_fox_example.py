"""examples/fox.py is the suite's model: the same weights give the same loss and gradient norm in `lethe bench`.

usage: test_fox_example.py LETHE LIBLETHE_TORCH
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import fox  # noqa: E402

LETHE, LIBRARY = sys.argv.pop(1), sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, MULTIPLE = 64, 2, 2, 257, 48, 32


def config(pro, forgets):
    hidden = int(WIDTH * (3.5 if pro else 4) * 2 / 3)
    return fox.Config(VOCABULARY, LAYERS, WIDTH, HEADS, -(-hidden // MULTIPLE) * MULTIPLE, pro, forgets)


def figures_of_lethe(architecture, weights):
    command = [LETHE, "bench", "--serve", "--architecture", architecture, "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS, "--context", LENGTH,
               "--batch-tokens", 2 * LENGTH, "--weights", weights, "--set", f"mlp_multiple={MULTIPLE}"]
    output = subprocess.run(list(map(str, command)), input="", capture_output=True, text=True, check=True).stdout
    return json.loads(output.removeprefix("ready "))


class FoxExample(unittest.TestCase):
    def test_has_the_suites_losses_and_gradients(self):
        for architecture in ("fox-pro", "fox-llama", "transformer-llama"):
            with self.subTest(architecture), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(1)
                model = fox.LanguageModel(config(architecture.endswith("pro"), architecture.startswith("fox")))
                for parameter in model.parameters():  # unlike any initialization
                    parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
                text = torch.randint(VOCABULARY, (2, LENGTH + 1))
                save_file(dict(model.state_dict(), text=text), f"{folder}/weights.safetensors")
                loss = model.losses(text[:, :-1], text[:, 1:]).mean()
                loss.backward()
                norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
                found = figures_of_lethe(architecture, f"{folder}/weights.safetensors")
                self.assertAlmostEqual(found["loss"], loss.item(), delta=2e-5)
                self.assertAlmostEqual(found["gradient_norm"] / norm.item(), 1, delta=1e-4)

    def test_prunes_in_16_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            torch.manual_seed(2)
            pruned, whole = (fox.LanguageModel(fox.Config(VOCABULARY, LAYERS, WIDTH, HEADS, 64, True, True, log_pruning_tolerance=tolerance))
                             for tolerance in (-10.0, None))
            whole.load_state_dict(pruned.state_dict())
            text = torch.randint(VOCABULARY, (2, LENGTH + 1))
            losses = [model.to(dtype).losses(text[:, :-1], text[:, 1:]).mean().item() for model in (pruned, whole)]
            self.assertAlmostEqual(*losses, delta=1e-2)

    def test_loads_every_name_of_an_exported_model(self):
        for architecture in ("fox-pro", "transformer-llama"):
            with self.subTest(architecture), tempfile.TemporaryDirectory() as folder:
                def lethe(*arguments):
                    call = map(str, (LETHE, "--threads", 1, "--root", folder, *arguments))
                    return subprocess.run(list(call), capture_output=True, text=True, errors="replace")

                trained = lethe("train", "--architecture", architecture, "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS, "--context", LENGTH,
                                "--batch-tokens", 2 * LENGTH, "--tokens", 20 * LENGTH, "--sample", 0, "--set", f"mlp_multiple={MULTIPLE}")
                self.assertEqual(trained.returncode, 0, trained.stderr)
                artefact, file = trained.stdout.splitlines()[-1], f"{folder}/model.safetensors"
                refused = lethe("export", artefact, "--output", f"{folder}/absent/model.safetensors")
                self.assertEqual((refused.returncode, refused.stderr.count("\n")), (1, 1), refused.stderr)
                self.assertIn("cannot be opened", refused.stderr)
                self.assertEqual(lethe("export", artefact, "--output", file).returncode, 0)
                model = fox.LanguageModel(config(architecture.endswith("pro"), architecture.startswith("fox")))
                model.load_state_dict(load_file(file), strict=True)
                text = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
                save_file(dict(load_file(file), text=text), f"{folder}/weights.safetensors")
                loss = model.losses(text[:, :-1], text[:, 1:]).mean().item()
                self.assertAlmostEqual(figures_of_lethe(architecture, f"{folder}/weights.safetensors")["loss"], loss, delta=2e-5)
                self.assertEqual(lethe("export", artefact, "--output", file, "--dtype", "bfloat16").returncode, 0)
                self.assertEqual({tensor.dtype for tensor in load_file(file).values()}, {torch.bfloat16})


if __name__ == "__main__":
    unittest.main()

"""attention_inputs on a GPU: both paths against the CPU in float64.

usage: python3 tests/cuda/test_attention_inputs.py LIBRARY [--device DEVICE] [unittest arguments]
  DEVICE  where it runs (default cuda); "--device cpu" tries the tests themselves without a GPU
"""
import itertools
import sys
import unittest

import torch
from test_operators import BUDGET, error, load_library_or_skip

DEVICE = "cuda"
HEADS = 3
NAMES = ("query", "key", "value", "key_shift", "value_shift", "query_norm", "key_norm", "cosine", "sine", "gate_logits", "gate_bias")
ANGLES = ("cosine", "sine")
PRO = ("shift", "norm", "gate")
EVERYTHING = ("shift", "norm", "rotation", "gate")


def problem(dtype, switches=EVERYTHING, batch=2, length=100, head_dim=64, padding=4, seed=0):
    """Tensors by name. Products are pieces of one tensor; with 4 columns of padding their rows are multiples of 16 bytes apart."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    wide, width = torch.promote_types(dtype, torch.float32), HEADS * head_dim
    pieces = normal(batch, length, 3 * width + 3 * 4 + padding).to(dtype).split([width] * 3 + [4] * 3 + [padding], -1)
    tensors = dict(zip(("query", "key", "value"), pieces))
    if "shift" in switches:
        tensors.update(key_shift=pieces[3][..., :HEADS], value_shift=pieces[4][..., :HEADS])
    if "norm" in switches or "norm_per_head" in switches:
        size = width if "norm_per_head" in switches else head_dim
        weight = lambda: (1 + 0.3 * normal(size + 1)).to(wide)[1:]  # at no multiple of 16 bytes
        tensors.update(query_norm=weight(), key_norm=weight())
    if "rotation" in switches:
        frequencies = 1e4 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
        tensors.update(cosine=angles.cos().to(wide), sine=angles.sin().to(wide))
    if "gate" in switches:
        tensors.update(gate_logits=pieces[5][..., :HEADS], gate_bias=normal(HEADS).to(wide))
    return tensors


def run(tensors, device):
    """Outputs and gradients by name, where memory that the operator does not write holds NaN."""
    tensors = {name: tensor.to(device).detach().requires_grad_(name not in ANGLES) for name, tensor in tensors.items()}
    torch.use_deterministic_algorithms(True)
    try:
        outputs = torch.ops.lethe._attention_inputs_forward(*(tensors.get(name) for name in NAMES), HEADS, 1e-5)
        directions = [torch.linspace(-3, 5, output.numel(), dtype=torch.float64).sin().view(output.shape).to(output) for output in outputs]
        differentiable = [name for name in tensors if name not in ANGLES]
        gradients = torch.autograd.grad(outputs, [tensors[name] for name in differentiable], directions, allow_unused=True)
    finally:
        torch.use_deterministic_algorithms(False)
    results = dict(zip(("queries", "keys", "values", "log_forget"), outputs))
    results.update({f"gradient of {name}": gradient for name, gradient in zip(differentiable, gradients) if gradient is not None})
    return {name: tensor.detach().cpu() for name, tensor in results.items()}


def strided_copy(tensors, device):
    """On the device with the strides kept: pieces of one tensor there too."""
    copies = {}
    for name, tensor in tensors.items():
        whole = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype, device=device)
        whole.copy_(tensor.as_strided(whole.shape, (1,), 0))
        copies[name] = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copies


class AttentionInputs(unittest.TestCase):
    def check(self, dtype, **options):
        tensors = problem(dtype, **options)
        with self.subTest(dtype=dtype, **options):
            expected = run({name: tensor.double() for name, tensor in tensors.items()}, "cpu")
            found = run(strided_copy(tensors, DEVICE), DEVICE)
            self.assertEqual(found.keys(), expected.keys())
            for name, exact in expected.items():
                if exact.numel():
                    self.assertLessEqual(error(found[name], exact), BUDGET[dtype], name)  # which NaN isn't

    def test_every_switch_equals_the_cpu(self):
        for count in range(1, 5):
            for switches in itertools.combinations(EVERYTHING, count):
                self.check(torch.bfloat16, switches=switches)
        for switches in (("norm_per_head",), ("norm_per_head", "shift", "gate"), ("norm_per_head", "shift", "rotation", "gate")):
            self.check(torch.bfloat16, switches=switches)

    def test_every_head_dim_equals_the_cpu(self):
        for head_dim in (2, 16, 24, 32, 96, 128, 256, 300):
            for switches in (PRO, ("rotation",), ("norm_per_head", *EVERYTHING)):
                self.check(torch.bfloat16, head_dim=head_dim, switches=switches)

    def test_every_dtype_equals_the_cpu(self):
        for dtype in (torch.float16, torch.float32, torch.float64):
            for head_dim in (64, 96):
                self.check(dtype, head_dim=head_dim)
                self.check(dtype, head_dim=head_dim, switches=("norm_per_head", "shift"))

    def test_every_length_equals_the_cpu(self):
        for length in (1, 2, 15, 16, 17, 30, 31, 32, 33, 62, 63, 64, 65, 257, 600):
            for head_dim in (64, 96):
                self.check(torch.bfloat16, length=length, head_dim=head_dim, batch=3)

    def test_rows_at_any_distance_equal_the_cpu(self):
        for padding in (1, 2, 12):
            self.check(torch.bfloat16, padding=padding)
            self.check(torch.bfloat16, padding=padding, switches=PRO)

    def test_many_sequences_of_one_token_equal_the_cpu(self):
        self.check(torch.bfloat16, batch=700, length=1)

    def test_equal_calls_give_equal_bits(self):
        for head_dim in (64, 96):
            tensors = strided_copy(problem(torch.bfloat16, head_dim=head_dim, length=1500), DEVICE)
            first, second = run(tensors, DEVICE), run(tensors, DEVICE)
            for name, expected in first.items():
                self.assertTrue(torch.equal(second[name], expected), name)

    def test_empty_inputs_have_zero_gradients_of_weights(self):
        for shape in ({"batch": 0}, {"length": 0}):
            found = run(problem(torch.bfloat16, **shape), DEVICE)
            for name in ("query_norm", "key_norm", "gate_bias"):
                self.assertFalse(found[f"gradient of {name}"].any(), name)

    @unittest.skipUnless(torch.cuda.is_available(), "needs CUDA's streams")
    def test_a_graph_replays_with_new_contents(self):
        tensors = strided_copy(problem(torch.bfloat16), DEVICE)
        arguments = [tensors.get(name) for name in NAMES]
        call = lambda: torch.ops.lethe._attention_inputs_forward(*arguments, HEADS, 1e-5)
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = call()
        for tensor, new in zip(arguments, problem(torch.bfloat16, seed=1).values()):
            tensor.copy_(new)
        graph.replay()
        for found, expected in zip(replayed, call()):
            self.assertTrue(torch.equal(found, expected))


if __name__ == "__main__":
    if sys.argv[2:3] == ["--device"]:
        DEVICE = sys.argv.pop(3)
        del sys.argv[2]
        torch.ops.load_library(sys.argv.pop(1))
    else:
        load_library_or_skip()
    unittest.main()

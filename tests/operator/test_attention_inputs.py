"""The derivative of attention_inputs, its shapes without data, and its bits.

usage: test_attention_inputs.py <path of liblethe_torch.so> [unittest arguments]
"""

import itertools
import sys
import unittest

import torch

NAMES = ("query", "key", "value", "key_shift", "value_shift", "query_norm", "key_norm", "cosine", "sine", "gate_logits", "gate_bias")
DIFFERENTIABLE = [name for name in NAMES if name not in ("cosine", "sine")]
HEADS = 2
SWITCHES = ("shift", "norm", "norm_per_head", "rotation", "gate")


def problem(switches, dtype=torch.float64, batch=2, length=5, head_dim=4):
    """The operator's tensors by name; products are pieces of one tensor, as a model's are."""
    heads = HEADS
    generator = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)
    width = heads * head_dim
    whole = normal(batch, length, 3 * width + 3 * heads + 3).to(dtype)
    pieces = whole.split([width] * 3 + [heads] * 3 + [3], -1)
    tensors = dict(zip(("query", "key", "value"), pieces))
    if "shift" in switches:
        tensors.update(key_shift=pieces[3], value_shift=pieces[4])
    if "norm" in switches or "norm_per_head" in switches:
        size = width if "norm_per_head" in switches else head_dim
        tensors.update(query_norm=1 + 0.3 * normal(size).to(wide), key_norm=1 + 0.3 * normal(size).to(wide))
    if "rotation" in switches:
        angles = torch.outer(torch.arange(length, dtype=torch.float64), 10.0 ** -torch.arange(0, 1, 2 / head_dim, dtype=torch.float64))
        tensors.update(cosine=angles.cos().to(wide), sine=angles.sin().to(wide))
    if "gate" in switches:
        tensors.update(gate_logits=pieces[5], gate_bias=normal(heads).to(wide))
    return {name: tensor.detach().requires_grad_(name in DIFFERENTIABLE) for name, tensor in tensors.items()}


def run(tensors):
    return torch.ops.lethe._attention_inputs_forward(*(tensors.get(name) for name in NAMES), HEADS, 1e-5)


def every_choice_of(switches):
    return itertools.chain.from_iterable(itertools.combinations(switches, count) for count in range(len(switches) + 1))


class AttentionInputs(unittest.TestCase):
    def check_gradients(self, switches, **shape):
        tensors = problem(switches, **shape)
        names = [name for name in tensors if tensors[name].requires_grad]

        def outputs(*values):
            return [output for output in run({**tensors, **dict(zip(names, values))}) if output.numel()]

        with self.subTest(switches=switches, **shape):
            self.assertTrue(torch.autograd.gradcheck(outputs, [tensors[name] for name in names]))

    def test_has_the_derivative_that_differences_measure(self):
        for switches in every_choice_of(("shift", "norm", "rotation", "gate")):
            self.check_gradients(switches, length=3)
        self.check_gradients(("shift", "norm_per_head", "rotation"), length=3)
        self.check_gradients(SWITCHES[:2], length=1)
        self.check_gradients(SWITCHES[:2], batch=1, length=66, head_dim=2)  # more than one piece of work

    def run_backward(self, tensors, of=lambda outputs: outputs):
        outputs = of(list(run(tensors)))
        directions = [torch.linspace(-1, 1, output.numel(), dtype=torch.float64).sin().view(output.shape).to(output.dtype) for output in outputs]
        wanted = [tensor for tensor in tensors.values() if tensor.requires_grad]
        return torch.autograd.grad(outputs, wanted, directions, allow_unused=True, materialize_grads=True)

    def test_narrow_dtypes_have_the_gradients_of_float64(self):
        for dtype, budget in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)):
            tensors = problem(SWITCHES, dtype=dtype, length=150, head_dim=16)
            expected = self.run_backward({name: tensor.detach().double().requires_grad_(tensor.requires_grad) for name, tensor in tensors.items()})
            for name, found, exact in zip(DIFFERENTIABLE, self.run_backward(tensors), expected):
                with self.subTest(dtype=dtype, name=name):
                    self.assertLessEqual(float((found.double() - exact).norm() / exact.norm()), budget)

    def test_a_gradient_that_does_not_arrive_is_zero(self):
        tensors = problem(SWITCHES)
        for index, kept in enumerate((("query", "query_norm"), ("key", "key_shift", "key_norm"), ("value", "value_shift"),
                                      ("gate_logits", "gate_bias"))):
            gradients = dict(zip(DIFFERENTIABLE, self.run_backward(tensors, of=lambda outputs: outputs[index:index + 1])))
            for name, gradient in gradients.items():
                self.assertEqual(bool(gradient.abs().sum() > 0), name in kept, name)

    def test_equal_calls_give_equal_bits_with_any_number_of_threads(self):
        threads = torch.get_num_threads()
        tensors = problem(SWITCHES, dtype=torch.float32, length=300, head_dim=128)
        try:
            torch.set_num_threads(1)
            expected = [*run(tensors), *self.run_backward(tensors)]
            for count in (2, 3):
                torch.set_num_threads(count)
                for found, first in zip([*run(tensors), *self.run_backward(tensors)], expected):
                    self.assertTrue(torch.equal(found, first))
        finally:
            torch.set_num_threads(threads)

    def test_reads_any_strides(self):
        tensors = problem(SWITCHES, length=7)
        expected = run(tensors), self.run_backward(tensors)
        for name, view in (("contiguous", lambda t: t.contiguous()), ("last dimension strided", lambda t: torch.stack((t, t), -1)[..., 0]),
                           ("transposed", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t)):
            strided = {key: view(tensor.detach()).requires_grad_(tensor.requires_grad) for key, tensor in tensors.items()}
            with self.subTest(name):
                for found, first in zip((*run(strided), *self.run_backward(strided)), (*expected[0], *expected[1])):
                    self.assertTrue(torch.equal(found, first))

    def test_passes_opcheck(self):
        for dtype, switches in ((torch.float64, SWITCHES), (torch.bfloat16, SWITCHES), (torch.float32, ("rotation",)), (torch.float32, ("gate",))):
            tensors = problem(switches, dtype=dtype)
            arguments = [*(tensors.get(name) for name in NAMES), HEADS, 1e-5]
            torch.library.opcheck(torch.ops.lethe._attention_inputs_forward.default, arguments)
            detached = [argument.detach() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
            outputs = torch.ops.lethe._attention_inputs_forward(*detached)
            torch.library.opcheck(torch.ops.lethe._attention_inputs_backward.default, [*map(torch.ones_like, outputs), *detached])

    def test_no_tokens_give_zero_gradients_of_weights(self):
        for shape in ({"batch": 0}, {"length": 0}):
            gradients = dict(zip(DIFFERENTIABLE, self.run_backward(problem(SWITCHES, **shape), of=lambda outputs: outputs)))
            for name in ("query_norm", "key_norm", "gate_bias"):
                self.assertTrue((gradients[name] == 0).all(), name)

    def test_computes_the_gate_alone(self):
        tensors = problem(("gate",))
        *empty, log_forget = run({name: tensors[name] for name in ("gate_logits", "gate_bias")})
        self.assertEqual([output.numel() for output in empty], [0, 0, 0])
        torch.testing.assert_close(log_forget, torch.nn.functional.logsigmoid(tensors["gate_logits"] + tensors["gate_bias"]))

    def test_extreme_logits_give_finite_gates_and_gradients(self):
        tensors = problem(("shift", "gate"), dtype=torch.float32)
        for name in ("key_shift", "value_shift", "gate_logits"):
            with torch.no_grad():
                tensors[name][..., 0], tensors[name][..., 1] = 1e4, -1e4
        *_, log_forget = run(tensors)
        torch.testing.assert_close(log_forget, torch.nn.functional.logsigmoid(tensors["gate_logits"] + tensors["gate_bias"]))
        for gradient in self.run_backward(tensors):
            self.assertTrue(gradient.isfinite().all())


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    unittest.main()

"""The Python interface of the operators: schema, shapes without data, derivatives, compilation.

usage: test_operator.py <path of liblethe_torch.so> [unittest arguments]
"""

import math
import shutil
import sys
import sysconfig
import unittest
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

forgetting_attention = None  # torch.ops.lethe.forgetting_attention, once the library is loaded


def inputs(length, key_length=None, heads=2, query_heads=2, key_dim=8, value_dim=4, batch=2, dtype=torch.float64):
    """Random query, key, value and log_forget, all requiring gradients."""
    generator = torch.Generator().manual_seed(7)
    key_length = key_length or length

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [
        normal(batch, length, query_heads, key_dim).to(dtype),
        normal(batch, key_length, heads, key_dim).to(dtype),
        normal(batch, key_length, heads, value_dim).to(dtype),
        torch.nn.functional.logsigmoid(normal(batch, key_length, query_heads)).to(gate_dtype),
    ]
    return [tensor.requires_grad_() for tensor in tensors]


def dense(query, key, value, log_forget):
    """The definition, as a matrix."""
    group = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(group, 2), value.repeat_interleave(group, 2)
    prefix = log_forget.cumsum(1).transpose(1, 2)
    offset = key.shape[1] - query.shape[1]
    logits = torch.einsum("bihd,bjhd->bhij", query, key) / math.sqrt(query.shape[3])
    logits = logits + prefix[:, :, offset:, None] - prefix[:, :, None, :]
    visible = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(offset)
    return torch.einsum("bhij,bjhd->bihd", logits.masked_fill(~visible, -math.inf).softmax(-1), value)


class Calls(TorchDispatchMode):
    """Names of the operators that are called below autograd."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **kwargs or {})


class WithoutGradient(torch.autograd.Function):
    """The same values, whose gradient is discarded."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return None


class Operator(unittest.TestCase):
    def test_grouped_queries_at_the_end_equal_the_dense_formula(self):
        tensors = inputs(9, key_length=150, heads=2, query_heads=6)
        torch.testing.assert_close(forgetting_attention(*tensors), dense(*tensors), rtol=1e-11, atol=1e-12)

    def test_has_the_derivative_that_differences_measure(self):
        for shape in ({"length": 5}, {"length": 3, "key_length": 7, "query_heads": 4}):
            with self.subTest(shape):
                tensors = [t.detach().requires_grad_() for t in inputs(**shape)]
                tensors[3] = (tensors[3].detach() - 0.1).requires_grad_()  # a difference step stays below 0
                self.assertTrue(torch.autograd.gradcheck(forgetting_attention, tensors))

    def test_passes_opcheck(self):
        bound = torch.tensor([40.0, 50.0])
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for options in ({}, {"scale": 0.5}, {"log_pruning_tolerance": -10.0}, {"log_pruning_tolerance": -3.0, "logit_bound": bound}):
                with self.subTest(dtype=dtype, options=options):
                    arguments = inputs(130, dtype=dtype)
                    torch.library.opcheck(torch.ops.lethe.forgetting_attention.default, arguments, options)
        torch.library.opcheck(torch.ops.lethe.forgetting_attention_with_statistics.default, inputs(9))
        for keep_residual in (False, True):
            for dtype in (torch.float64, torch.bfloat16):
                torch.library.opcheck(torch.ops.lethe._forgetting_attention_forward.default,
                                      (*inputs(9, dtype=dtype), 0.5, None, None, 5, False, keep_residual))

    def test_keeps_the_rounding_of_the_values_only_for_a_gradient(self):
        forward = torch.ops.lethe._forgetting_attention_forward
        for dtype in (torch.bfloat16, torch.float16):
            tensors = inputs(70, dtype=dtype)
            exact = forgetting_attention(*(tensor.detach().double() for tensor in tensors), scale=0.5)
            values, *_, residual = forward(*tensors, 0.5, None, None, None, False, False)
            self.assertEqual(residual.shape, values.shape)
            error = lambda found: float((found.detach() - exact).norm() / exact.norm())
            self.assertLess(50 * error(values.double() + residual.double()), error(values.double()))
            with torch.no_grad():
                self.assertEqual(forward(*tensors, 0.5, None, None, None, False, False)[-1].numel(), 0)
        self.assertEqual(forward(*inputs(70), 0.5, None, None, None, False, True)[-1].numel(), 0)

    def compiled_equals_eager(self, backend):
        def layer(query, key, value, log_forget):
            return forgetting_attention(query * 2.0, key, value, log_forget, log_pruning_tolerance=-12.0).sin()

        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        for length in (5, 140):  # the second length compiles with a symbol for it
            eager, traced = inputs(length, dtype=torch.float32), inputs(length, dtype=torch.float32)
            layer(*eager).sum().backward()
            compiled(*traced).sum().backward()
            for expected, actual in zip(eager, traced):
                torch.testing.assert_close(actual.grad, expected.grad)

    def test_compiles_as_one_graph(self):
        self.compiled_equals_eager("aot_eager")

    @unittest.skipUnless(shutil.which("g++"), "inductor needs a C++ compiler")
    @unittest.skipUnless(Path(sysconfig.get_paths()["include"], "Python.h").exists(), "inductor needs Python.h")
    def test_compiles_with_inductor(self):
        self.compiled_equals_eager("inductor")

    def test_reads_any_strides(self):
        tensors = [t.detach() for t in inputs(70)]
        expected = forgetting_attention(*tensors)
        for name, view in (
            ("transposed", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)),
            ("last dimension strided", lambda t: torch.stack((t, t), -1)[..., 0]),
            ("slice", lambda t: torch.cat((t, t), 1)[:, : t.shape[1]]),
        ):
            with self.subTest(name):
                strided = [view(t).requires_grad_() for t in tensors]
                values = forgetting_attention(*strided)
                torch.testing.assert_close(values, expected, rtol=0, atol=0)
                values.sum().backward()  # an expanded gradient: all strides zero
        expanded = [t[:1, :, :1].expand(2, -1, 2, *([-1] * (t.dim() - 3))) for t in tensors]
        torch.testing.assert_close(forgetting_attention(*expanded), forgetting_attention(*[t.contiguous() for t in expanded]))

    def test_takes_empty_tensors(self):
        for shape in ({"batch": 0}, {"query_heads": 0, "heads": 0}, {"value_dim": 0}):
            with self.subTest(shape):
                tensors = inputs(3, **shape)
                values, log_normalizer, visited = torch.ops.lethe.forgetting_attention_with_statistics(
                    *tensors, log_pruning_tolerance=-10.0)
                self.assertEqual(values.shape, (*tensors[0].shape[:3], tensors[2].shape[3]))
                values.sum().backward()
                self.assertEqual(tensors[3].grad.shape, tensors[3].shape)
        query, key, value, log_forget = inputs(4)
        self.assertEqual(forgetting_attention(query[:, :0], key, value, log_forget).shape, (2, 0, 2, 4))
        self.assertEqual(forgetting_attention(query[:, :0], key[:, :0], value[:, :0], log_forget[:, :0]).shape, (2, 0, 2, 4))

    def test_logits_of_minus_infinity_weigh_nothing_beside_others(self):
        query, key = torch.full((1, 1, 1, 4), 1e20), torch.full((1, 1300, 1, 4), -1e20)
        key[:, :100] = 0  # further back than the keys whose weights exist at one time
        value = torch.arange(1300.0).view(1, 1300, 1, 1).requires_grad_()
        values = forgetting_attention(query, key, value, torch.zeros(1, 1300, 1))
        torch.testing.assert_close(values, torch.full_like(values, 49.5))
        values.sum().backward()
        torch.testing.assert_close(value.grad.flatten(), torch.tensor([0.01] * 100 + [0.0] * 1200))

    def test_a_nan_gradient_reaches_no_gate_before_the_visited_blocks(self):
        tensors = inputs(600, batch=1)
        tensors[3] = torch.full_like(tensors[3], -0.5).requires_grad_()
        values, _, _, boundary, _ = torch.ops.lethe._forgetting_attention_forward(*tensors, 0.35, -10.0, None, None, False, False)
        first = int(boundary[0, :, 500 // 128].max()) * 64  # key that row 500's tile visits
        self.assertGreater(first, 64)
        gradient = torch.ones_like(values)
        gradient[:, 500] = 0
        (expected,) = torch.autograd.grad(values, tensors[3], gradient, retain_graph=True)
        gradient[:, 500] = math.nan
        (found,) = torch.autograd.grad(values, tensors[3], gradient)
        torch.testing.assert_close(found[:, : first - 63], expected[:, : first - 63])
        torch.testing.assert_close(found[:, 501:], expected[:, 501:], rtol=0, atol=0)
        self.assertTrue(found[:, first + 1 : 501].isnan().all())

    def test_computes_no_gradient_of_outputs_without_one(self):  # the residual's: as large as the values
        for dtype in (torch.float64, torch.bfloat16):
            tensors = inputs(70, dtype=dtype)
            values = forgetting_attention(*tensors)
            with Calls() as calls:
                torch.autograd.grad(values, tensors, torch.ones_like(values))
            self.assertEqual(calls.names[-1:], ["lethe::_forgetting_attention_backward"])
            self.assertEqual([name for name in calls.names if "zeros" in name or "fill" in name], [])

    def test_has_no_gradients_where_none_arrives(self):
        tensors = inputs(5)
        values = WithoutGradient.apply(forgetting_attention(*tensors))
        self.assertEqual(torch.autograd.grad(values, tensors, torch.ones_like(values), allow_unused=True), (None,) * 4)

    def test_refuses_a_second_derivative_by_name(self):
        tensors = inputs(5)
        (gradient,) = torch.autograd.grad(forgetting_attention(*tensors).sum(), tensors[0], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "lethe::_forgetting_attention_backward"):
            gradient.sum().backward()

    def test_names_the_argument_of_an_implementation_that_is_asked_for(self):
        query, key, value, _ = inputs(5)
        with self.assertRaisesRegex(RuntimeError, r"key: expected 4 dimensions \[B,Tk,H,D\], found 2"):
            torch.ops.lethe.forgetting_attention_implementation(query, key[0, 0], value)

    def test_has_its_shapes_on_the_meta_device(self):
        tensors = [t.detach().to("meta") for t in inputs(5, key_length=300, dtype=torch.bfloat16)]
        values, log_normalizer, visited = torch.ops.lethe.forgetting_attention_with_statistics(*tensors)
        self.assertEqual((values.shape, values.dtype), ((2, 5, 2, 4), torch.bfloat16))
        self.assertEqual((log_normalizer.shape, log_normalizer.dtype), ((2, 5, 2), torch.float32))
        self.assertEqual((visited.shape, visited.dtype), ((2, 2), torch.int64))
        with self.assertRaisesRegex(RuntimeError, "value: expected shape"):
            forgetting_attention(tensors[0], tensors[1], tensors[2][:, 1:], tensors[3])

    def test_windows_and_sequences_have_shapes_on_the_meta_device(self):
        numbers = torch.tensor([0, 120, 120, 300])
        cases = [(5, 2, {"window": 40}, (2, 2)), (300, 1, {"window": 10**15, "log_pruning_tolerance": -10.0}, (1, 2))]
        cases += [(300, 1, {"cu_seqlens": cu_seqlens, "window": window, "log_pruning_tolerance": tolerance}, (3, 2))
                  for cu_seqlens in (numbers, numbers.int(), numbers.to("meta")) for window in (None, 40) for tolerance in (None, -10.0)]
        for length, batch, options, of_pairs in cases:
            with self.subTest(length=length, **options):
                tensors = [t.detach().to("meta").requires_grad_() for t in inputs(length, key_length=300, batch=batch, dtype=torch.bfloat16)]
                values, log_normalizer, visited = torch.ops.lethe.forgetting_attention_with_statistics(*tensors, **options)
                self.assertEqual((values.shape, values.dtype), ((batch, length, 2, 4), torch.bfloat16))
                self.assertEqual((log_normalizer.shape, log_normalizer.dtype), ((batch, length, 2), torch.float32))
                self.assertEqual((visited.shape, visited.dtype, visited.device.type), (of_pairs, torch.int64, "meta"))
                for gradient, tensor in zip(torch.autograd.grad(values, tensors, torch.empty_like(values)), tensors):
                    self.assertEqual((gradient.shape, gradient.dtype), (tensor.shape, tensor.dtype))
        with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected 300 last, the number of tokens, found 299"):
            forgetting_attention(*tensors, cu_seqlens=torch.tensor([0, 299]))
        with self.assertRaisesRegex(RuntimeError, "window: expected at least 1"):
            forgetting_attention(*tensors, window=0)


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    forgetting_attention = torch.ops.lethe.forgetting_attention
    unittest.main()

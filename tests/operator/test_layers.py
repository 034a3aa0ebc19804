"""The layers' operators in Torch: derivatives, shapes without data, threads, errors.

usage: test_layers.py <path of liblethe_torch.so> [unittest arguments]
"""

import sys
import unittest

import torch

BUDGET = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}
EPSILON = 1e-3


def wide(dtype):
    return torch.promote_types(dtype, torch.float32)


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def add_rms_norm(residual, branch, weight, epsilon, dtype):
    x = residual if branch is None else residual + branch
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight, x


def swiglu(gate_and_up):
    gate, up = gate_and_up.chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up,)


def gated_output(o, gate, norm, epsilon):
    if norm is not None:
        o = o * (o.square().mean(-1, keepdim=True) + epsilon).rsqrt() * norm.view(o.shape[2:])
    return (o.flatten(2) * (1 if gate is None else gate.sigmoid()),)


def short_convolution(x, weight, bias, state, silu):
    width = weight.shape[1]
    before = x.new_zeros(x.shape[0], width - 1, x.shape[2]) if state is None else state
    u = torch.nn.functional.conv1d(torch.cat((before, x), 1).transpose(1, 2), weight.unsqueeze(1), bias, groups=x.shape[2]).transpose(1, 2)
    return (torch.nn.functional.silu(u) if silu else u,)


def scaled_heads(x, scale):
    return (x.unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1),)


def gated_skip(o, x, skip, gate):
    return ((o + x.view(o.shape) * skip.unsqueeze(-1)).flatten(2) * torch.nn.functional.silu(gate),)


FORMULAS = {"add_rms_norm": add_rms_norm, "swiglu": swiglu, "gated_output": gated_output, "scaled_heads": scaled_heads, "gated_skip": gated_skip,
            "short_convolution": short_convolution}


def operator(name):
    """torch.ops.lethe.NAME with a tuple of results."""
    def call(*arguments):
        results = getattr(torch.ops.lethe, name)(*arguments)
        return results if isinstance(results, tuple) else (results,)
    return call


def cases(dtype):
    """Operators and arguments, with and without what may be absent; rows of 37, 32 and 36 columns, some with a stride."""
    weights = wide(dtype)
    branch, weight = normal(2, 5, 80, dtype=dtype, seed=2)[..., 3:40], normal(37, dtype=weights, seed=3)
    for residual_dtype in {weights, dtype}:
        residual = normal(2, 5, 37, dtype=residual_dtype, seed=1)
        yield "add_rms_norm", (residual, branch, weight, EPSILON, dtype)
        yield "add_rms_norm", (residual.transpose(0, 1), None, weight, EPSILON, dtype)
    products = 3 * normal(2, 5, 70, dtype=dtype, seed=4)
    yield "swiglu", (products[..., 2:66],)
    yield "swiglu", (products[0, 0, :34],)
    o, gate, norm = normal(2, 5, 3, 12, dtype=dtype, seed=5), products[..., 20:56], normal(36, dtype=weights, seed=6)
    yield "gated_output", (o, gate, norm, EPSILON)
    yield "gated_output", (o.transpose(0, 1), gate.transpose(0, 1), norm, EPSILON)
    for absent in ((gate, None), (None, norm), (None, None)):
        yield "gated_output", (o, *absent, EPSILON)
    scale, skip = normal(2, 5, 3, dtype=weights, seed=11), normal(3, dtype=weights, seed=12)
    yield "scaled_heads", (products[..., 20:56], scale)
    yield "scaled_heads", (products[..., 20:56].transpose(0, 1), scale.transpose(0, 1))
    passing = normal(2, 5, 48, dtype=dtype, seed=13)[..., 5:41]
    yield "gated_skip", (o, passing, skip, gate)
    yield "gated_skip", (o.transpose(0, 1), passing.transpose(0, 1), skip, gate.transpose(0, 1))
    taps, bias, state = normal(35, 4, dtype=weights, seed=7), normal(35, dtype=weights, seed=8), normal(2, 3, 35, dtype=dtype, seed=10)
    yield "short_convolution", (products[..., 10:45], taps, bias, state, True)
    yield "short_convolution", (products[..., 10:45].transpose(0, 1), taps, None, None, False)
    yield "short_convolution", (products[:, :1, 35:], taps, None, state, True)
    for width in (2, 3):
        yield "short_convolution", (products[:, :, 35:], taps[:, :width], bias, state[:, :width - 1], False)


def described(name, arguments):
    return f"{name}({', '.join(str(list(a.shape)) if torch.is_tensor(a) else str(a) for a in arguments)})"


def run(function, arguments, only=None):
    """Results, and the gradients of the tensors for a fixed ∂loss of each result, or of result `only`."""
    arguments = [a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments]
    results = function(*arguments)
    chosen = [result for i, result in enumerate(results) if only in (None, i)]
    torch.autograd.backward(chosen, [normal(*result.shape, seed=9).to(result.dtype) for result in chosen])
    return [result.detach() for result in results], [a.grad for a in arguments if torch.is_tensor(a)]


def error(actual, expected):
    return float((actual.double() - expected).norm() / expected.norm())


class Layers(unittest.TestCase):
    def test_results_and_gradients_equal_the_formulas_in_every_dtype(self):
        for dtype, budget in BUDGET.items():
            for name, arguments in cases(dtype):
                for only in (None, 0):
                    with self.subTest(described(name, arguments), dtype=dtype, only=only):
                        exact = [a.double() if torch.is_tensor(a) else a for a in arguments]
                        expected, actual = run(FORMULAS[name], exact, only), run(operator(name), arguments, only)
                        for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1])):
                            self.assertEqual(a.shape, e.shape)
                            self.assertLessEqual(error(a, e), budget)

    def test_derivatives_equal_what_differences_measure(self):
        for name, arguments in cases(torch.float64):
            with self.subTest(described(name, arguments)):
                torch.autograd.gradcheck(operator(name), [a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments])

    def test_gradients_of_the_sum_alone_reach_residual_and_branch(self):
        gradients = run(operator("add_rms_norm"), (normal(3, 8), normal(3, 8), normal(8), EPSILON, torch.float64), only=1)[1]
        for gradient, expected in zip(gradients, (normal(3, 8, seed=9), normal(3, 8, seed=9), torch.zeros(8))):
            self.assertTrue((gradient == expected).all())

    def test_an_expanded_gradient_equals_a_dense_one(self):
        for name, arguments in cases(torch.float64):
            with self.subTest(described(name, arguments)):
                given = [a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments]
                tensors = [a for a in given if torch.is_tensor(a)]
                gradients = lambda loss: torch.autograd.grad([loss(r) for r in operator(name)(*given)], tensors)
                for a, e in zip(gradients(lambda r: r.sum()), gradients(lambda r: (r * torch.ones_like(r)).sum())):
                    self.assertTrue(torch.equal(a, e))

    def test_without_a_branch_the_sum_is_the_residual_itself(self):
        residual = normal(3, 8)
        results = operator("add_rms_norm")(residual, None, normal(8), EPSILON, torch.float64)
        self.assertEqual(results[1].data_ptr(), residual.data_ptr())

    def test_equal_calls_give_equal_bits_with_any_number_of_threads(self):
        f = torch.float32
        calls = {"add_rms_norm": (normal(1000, 70, dtype=f), normal(1000, 70, dtype=f), normal(70, dtype=f), EPSILON, f),
                 "swiglu": (normal(1000, 140, dtype=f),),
                 "gated_output": (normal(2, 500, 5, 14, dtype=f), normal(2, 500, 70, dtype=f), normal(70, dtype=f), EPSILON),
                 "scaled_heads": (normal(2, 500, 70, dtype=f), normal(2, 500, 5, dtype=f)),
                 "gated_skip": (normal(2, 500, 5, 14, dtype=f), normal(2, 500, 70, dtype=f), normal(5, dtype=f), normal(2, 500, 70, dtype=f)),
                 # One head and one token: what a library would divide among threads.
                 "scaled_heads, one token": (normal(1, 1, 100001, dtype=f), normal(1, 1, 1, dtype=f)),
                 "gated_skip, one head": (normal(1, 1001, 1, 129), normal(1, 1001, 129), normal(1), normal(1, 1001, 129)),
                 "gated_skip, one head in float32": (normal(1, 1001, 1, 129, dtype=f), normal(1, 1001, 129, dtype=f), normal(1, dtype=f),
                                                     normal(1, 1001, 129, dtype=f)),
                 "short_convolution": (normal(2, 500, 70, dtype=f), normal(70, 4, dtype=f), normal(70, dtype=f), normal(2, 3, 70, dtype=f), True)}
        threads = torch.get_num_threads()
        try:
            for name, arguments in calls.items():
                called = operator(name.split(",")[0])
                torch.set_num_threads(1)
                alone = run(called, arguments)
                for count in (2, 3):
                    torch.set_num_threads(count)
                    several = run(called, arguments)
                    for a, e in zip((*several[0], *several[1]), (*alone[0], *alone[1])):
                        self.assertTrue(torch.equal(a, e), f"{name}, {count} threads")
        finally:
            torch.set_num_threads(threads)

    def test_no_rows_give_none_and_a_weight_gradient_of_zero(self):
        for name, arguments in (("add_rms_norm", (normal(0, 8), normal(0, 8), normal(8), EPSILON, torch.float64)),
                                ("swiglu", (normal(0, 8),)), ("gated_output", (normal(0, 3, 2, 4), normal(0, 3, 8), normal(8), EPSILON)),
                                ("scaled_heads", (normal(0, 3, 8), normal(0, 3, 2))),
                                ("gated_skip", (normal(0, 3, 2, 4), normal(0, 3, 8), normal(2), normal(0, 3, 8))),
                                ("short_convolution", (normal(2, 0, 8), normal(8, 4), normal(8), normal(2, 3, 8), True))):
            gradients = run(operator(name), arguments)[1]
            self.assertEqual([g.shape for g in gradients], [a.shape for a in arguments if torch.is_tensor(a)])
            self.assertEqual(sum(float(g.abs().sum()) for g in gradients), 0)

    def test_passes_opcheck(self):
        for dtype in (torch.float64, torch.bfloat16):
            for name, arguments in cases(dtype):
                with self.subTest(described(name, arguments), dtype=dtype):
                    given = tuple(a.detach().requires_grad_() if torch.is_tensor(a) else a for a in arguments)
                    torch.library.opcheck(getattr(torch.ops.lethe, name).default, given)
                    torch.library.opcheck(getattr(torch.ops.lethe, f"_{name}_forward").default, given)

    def test_compiled_models_equal_eager_ones(self):
        def block(residual, branch, weight, products, gate):
            normed, total = torch.ops.lethe.add_rms_norm(residual * 1.0, branch, weight, EPSILON, torch.float64)
            hidden = torch.ops.lethe.swiglu(products) + normed
            return (torch.ops.lethe.gated_output(hidden.view(2, 5, 4, 8), gate, weight, EPSILON) + total,)

        arguments = (normal(2, 5, 32), normal(2, 5, 32), normal(32), normal(2, 5, 64), normal(2, 5, 32))
        compiled = run(torch.compile(block, fullgraph=True, backend="aot_eager"), arguments)
        for a, e in zip(sum(compiled, []), sum(run(block, arguments), [])):
            torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)

    def test_errors_name_the_argument(self):
        x, w, double, lethe = normal(3, 8), normal(8), torch.float64, torch.ops.lethe
        for call, message in (
                (lambda: lethe.add_rms_norm(x, normal(3, 7), w, EPSILON, double), "branch: expected shape"),
                (lambda: lethe.add_rms_norm(x, x, normal(7), EPSILON, double), "weight: expected shape"),
                (lambda: lethe.add_rms_norm(x, None, w, EPSILON, torch.int32), "dtype: expected float64"),
                (lambda: lethe.add_rms_norm(x.half(), None, w.float(), EPSILON, torch.bfloat16),
                 "residual: expected dtype Float or BFloat16, found Half"),
                (lambda: lethe.add_rms_norm(x, None, w, -1e-6, double), r"epsilon: expected a finite number >= 0, found -1e-06"),
                (lambda: lethe.gated_output(normal(1, 2, 3, 4), None, normal(12), float("nan")), "epsilon: expected a finite number >= 0"),
                (lambda: lethe.scaled_heads(normal(2, 5, 8), normal(2, 5, 3)), "x: expected as many columns for each of the heads"),
                (lambda: lethe.gated_skip(normal(2, 5, 2, 4), normal(2, 5, 8), normal(3), normal(2, 5, 8)), "skip: expected shape"),
                (lambda: lethe.swiglu(normal(3, 7)), "gate_and_up: expected an even number of columns, found 7"),
                (lambda: lethe.gated_output(normal(1, 2, 3, 4), normal(1, 2, 11), None, EPSILON), "gate: expected shape"),
                (lambda: lethe.gated_output(normal(1, 2, 3, 4), None, normal(12).float(), EPSILON), "norm: expected dtype Double, found Float"),
                (lambda: lethe.gated_output(normal(2, 3, 4), None, None, EPSILON), "o: expected 4 dimensions"),
                (lambda: lethe.short_convolution(normal(3, 4), normal(4, 4)), "x: expected 3 dimensions"),
                (lambda: lethe.short_convolution(normal(2, 3, 4), normal(4, 5)), "weight: expected 2 to 4 columns, found 5"),
                (lambda: lethe.short_convolution(normal(2, 3, 4), normal(5, 4)), "weight: expected shape"),
                (lambda: lethe.short_convolution(normal(2, 3, 4), normal(4, 4).float()), "weight: expected dtype Double, found Float"),
                (lambda: lethe.short_convolution(normal(2, 3, 4), normal(4, 4), normal(3)), "bias: expected shape"),
                (lambda: lethe.short_convolution(normal(2, 3, 4), normal(4, 4), None, normal(2, 2, 4)), "state: expected shape")):
            with self.subTest(message):
                with self.assertRaisesRegex(RuntimeError, "^" + message):
                    call()


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    unittest.main()

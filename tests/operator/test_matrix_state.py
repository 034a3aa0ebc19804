"""The Python interface of gated_state and delta_state: schema, shapes without data, derivatives, compilation, memory.

usage: test_matrix_state.py <path of liblethe_torch.so> [unittest arguments]
"""

import functools
import itertools
import math
import shutil
import sys
import sysconfig
import unittest
from pathlib import Path

import torch

lethe = None  # torch.ops.lethe, once the library is loaded


def inputs(length, key_dim=5, value_dim=7, heads=2, batch=2, dtype=torch.float64):
    """Random arguments by name, all requiring gradients; features positive and keys of norm 1, so that every rule is stable."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    key = normal(batch, length, heads, key_dim).abs()
    tensors = {
        "query": normal(batch, length, heads, key_dim).abs().to(dtype),
        "key": torch.nn.functional.normalize(key, dim=-1).to(dtype),
        "value": normal(batch, length, heads, value_dim).to(dtype),
        "log_key_gate": (torch.nn.functional.logsigmoid(normal(batch, length, heads, key_dim)) - 0.1).to(wide),
        "log_head_gate": (torch.nn.functional.logsigmoid(normal(batch, length, heads)) - 0.1).to(wide),
        "log_value_gate": (torch.nn.functional.logsigmoid(normal(batch, length, heads, value_dim)) - 0.1).to(wide),
        "beta": (normal(batch, length, heads).sigmoid() + 0.1).to(wide),
        "state": normal(batch, heads, key_dim, value_dim).to(wide),
        "normalized_state": normal(batch, heads, key_dim, value_dim + 1).abs().to(wide),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def calls():
    """Each way to call the operators, by name: (operator, names of the positional arguments, keyword arguments)."""
    gated, delta = lethe.gated_state.default, lethe.delta_state.default
    qkv = ("query", "key", "value")
    return {
        "no gate": (gated, (*qkv, None, None), {}),
        "key gate": (gated, (*qkv, "log_key_gate", None, "state"), {"scale": 0.5}),
        "head gate": (gated, (*qkv, "log_head_gate", None, "state"), {}),
        "value gate": (gated, (*qkv, None, "log_value_gate"), {}),
        "both gates": (gated, (*qkv, "log_key_gate", "log_value_gate", "state"), {}),
        "normalized": (gated, (*qkv, "log_head_gate", None, "normalized_state"), {"normalize": True}),
        "delta": (delta, (*qkv, "beta"), {}),
        "gated delta": (delta, (*qkv, "beta", "log_key_gate", "state"), {"scale": 0.5}),
    }


def arguments_of(names, tensors):
    return [name and tensors[name] for name in names]


def by_token(operator, names, tensors, scale=None, normalize=False):
    """The definition, one token after the other."""
    named = {name.removeprefix("normalized_"): tensors[name] for name in names if name}
    query, key, value = named["query"], named["key"], named["value"]
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    if normalize:
        value = torch.cat((value, value.new_ones(*value.shape[:3], 1)), -1)
    state = named.get("state", torch.zeros(query.shape[0], query.shape[2], query.shape[3], value.shape[3], dtype=value.dtype))
    rows = []
    for t in range(query.shape[1]):
        if "log_key_gate" in named:
            state = state * named["log_key_gate"][:, t, :, :, None].exp()
        if "log_head_gate" in named:
            state = state * named["log_head_gate"][:, t, :, None, None].exp()
        if "log_value_gate" in named:
            state = state * named["log_value_gate"][:, t, :, None, :].exp()
        write = value[:, t]
        if "beta" in named:
            write = named["beta"][:, t, :, None] * (write - torch.einsum("bhkv,bhk->bhv", state, key[:, t]))
        state = state + key[:, t, :, :, None] * write[:, :, None, :]
        rows.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    read = torch.stack(rows, 1)
    return (read[..., :-1] / read[..., -1:] if normalize else scale * read), state


def for_every_call(test):
    """Expands a test of one call into a test of each."""

    @functools.wraps(test)
    def run(self, *arguments):
        for name, call in calls().items():
            with self.subTest(name):
                test(self, *arguments, *call)

    return run


class MatrixState(unittest.TestCase):
    @for_every_call
    def test_agrees_with_a_loop_over_tokens(self, operator, names, options):
        tensors = inputs(37)
        for actual, expected in zip(operator(*arguments_of(names, tensors), **options), by_token(operator, names, tensors, **options)):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)

    @for_every_call
    def test_has_the_derivative_that_differences_measure(self, operator, names, options):
        tensors = inputs(5, key_dim=3, value_dim=4, batch=1)
        self.assertTrue(torch.autograd.gradcheck(lambda *a: operator(*a, **options), arguments_of(names, tensors)))

    @for_every_call
    def test_passes_opcheck(self, operator, names, options):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            torch.library.opcheck(operator, arguments_of(names, inputs(9, dtype=dtype)), options)
        some = inputs(9)
        given = [some[name] for name in ("query", "key", "value", "log_key_gate", "log_value_gate")]
        torch.library.opcheck(lethe._matrix_state_forward.default, (*given, None, some["state"], 0.5, False))

    @for_every_call
    def compiled_equals_eager(self, backend, operator, names, options):
        def layer(query, *rest):
            values, state = operator(query * 2.0, *rest, **options)
            return values.sin(), state

        torch._dynamo.reset()  # every call compiles anew, and the number of times is limited
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        for length in (5, 40):  # the second length compiles with a symbol for it
            eager, traced = inputs(length, dtype=torch.float32), inputs(length, dtype=torch.float32)
            sum(r.sum() for r in layer(*arguments_of(names, eager))).backward()
            sum(r.sum() for r in compiled(*arguments_of(names, traced))).backward()
            for name in names:
                if name:
                    torch.testing.assert_close(traced[name].grad, eager[name].grad)

    def test_compiles_as_one_graph(self):
        self.compiled_equals_eager("aot_eager")

    @unittest.skipUnless(shutil.which("g++"), "inductor needs a C++ compiler")
    @unittest.skipUnless(Path(sysconfig.get_paths()["include"], "Python.h").exists(), "inductor needs Python.h")
    def test_compiles_with_inductor(self):
        """One call of each operator: the graphs of all are traced by the test before, and inductor takes seconds for each."""
        for name, call in {call[0]: (name, call) for name, call in calls().items()}.values():
            with self.subTest(name):
                MatrixState.compiled_equals_eager.__wrapped__(self, "inductor", *call)

    @for_every_call
    def test_reads_any_strides(self, operator, names, options):
        views = {
            "transposed": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
            "last dimension strided": lambda t: torch.stack((t, t), -1)[..., 0],
            "slice": lambda t: torch.cat((t, t), 1)[:, : t.shape[1]],
        }
        plain = {name: t.detach() for name, t in inputs(40).items()}
        expected = operator(*arguments_of(names, plain), **options)
        for name, view in views.items():
            with self.subTest(name):
                strided = {n: view(t).requires_grad_() for n, t in plain.items()}
                values, state = operator(*arguments_of(names, strided), **options)
                torch.testing.assert_close((values, state), expected, rtol=0, atol=0)
                values.sum().backward()  # an expanded gradient: all strides zero; the state has none
        expanded = {n: t[:1].expand(2, *t.shape[1:]) for n, t in plain.items()}
        torch.testing.assert_close(operator(*arguments_of(names, expanded), **options),
                                   operator(*arguments_of(names, {n: t.contiguous() for n, t in expanded.items()}), **options))

    @for_every_call
    def test_takes_empty_tensors(self, operator, names, options):
        for shape in ({"batch": 0}, {"heads": 0}, {"value_dim": 0}, {"length": 0}):
            with self.subTest(shape):
                tensors = inputs(**{"length": 3, **shape})
                values, state = operator(*arguments_of(names, tensors), **options)
                self.assertEqual(values.shape, tensors["value"].shape)
                expected = by_token(operator, names, tensors, **options)[1] if shape != {"length": 0} else (
                    tensors[names[-1]] if "state" in str(names[-1]) else torch.zeros_like(tensors["state"]))
                torch.testing.assert_close(state, expected)
                (values.sum() + state.sum()).backward()
                for name in names:
                    if name:
                        self.assertTrue(tensors[name].grad.isfinite().all())

    @for_every_call
    def test_saves_its_inputs_alone_on_the_cpu(self, operator, names, options):
        arguments = arguments_of(names, inputs(200))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            operator(*arguments, **options)
        self.assertEqual(sorted(t.data_ptr() for t in saved if t.numel() > 0), sorted(t.data_ptr() for t in arguments if t is not None))

    def test_states_that_kernels_leave_have_their_size_on_the_meta_device(self):
        bytes_of = {(64, 1100, None, torch.bfloat16): 18 * 8192, (65, 600, None, torch.bfloat16): 10 * 2 * 8192,
                    (65, 600, None, torch.float16): 10 * (2 * 8192 + 32),
                    (64, 512, "log_head_gate", torch.bfloat16): 0, (64, 512, "log_head_gate", torch.float16): 0,
                    (40, 513, "log_head_gate", torch.bfloat16): 9 * 8192,
                    (128, 300, "log_head_gate", torch.float16): 5 * (2 * 8192 + 32), (64, 1100, None, torch.float16): 18 * (8192 + 16),
                    (64, 1100, "log_key_gate", torch.bfloat16): 0, (64, 1100, None, torch.float32): 0, (128, 8193, None, torch.bfloat16): 0,
                    (129, 1100, None, torch.bfloat16): 0}
        for (key_dim, length, gate, dtype), size in bytes_of.items():
            with self.subTest(key_dim=key_dim, length=length, gate=gate, dtype=dtype):
                given = inputs(length, key_dim=key_dim, dtype=dtype)
                head = [name and given[name].detach().to("meta") for name in ("query", "key", "value", gate, None, None, None)]
                *_, kept = lethe._matrix_state_forward(*head, 0.5, False, True)
                self.assertEqual((kept.shape, kept.dtype), ((2, 2, size), torch.uint8))
                *_, kept = lethe._matrix_state_forward(*head, 0.5, True, True)
                divisors = -(-length // 64) * 256 if size and gate and key_dim <= 64 else 0  # z·q of every token
                self.assertEqual(kept.shape,
                                 (2, 2, size + size // 8192 * 256 + divisors if length < 8192 or key_dim > 128 else 129 * 2 * (8192 + 256)))
                *_, kept = lethe._matrix_state_forward(*head, 0.5, False)
                self.assertEqual((kept.shape, kept.dtype), ((0,), torch.uint8))

    def test_states_of_two_tiles_of_columns_have_their_size_on_the_meta_device(self):  # with a gate a token alone
        for (key_dim, value_dim, dtype), size in {(64, 64, torch.bfloat16): 18 * 8192, (64, 65, torch.bfloat16): 18 * 2 * 8192,
                                                  (128, 128, torch.float16): 18 * 4 * (8192 + 16), (64, 129, torch.bfloat16): 0}.items():
            with self.subTest(key_dim=key_dim, value_dim=value_dim, dtype=dtype):
                given = inputs(1100, key_dim=key_dim, value_dim=value_dim, dtype=dtype)
                head = [given[name].detach().to("meta") for name in ("query", "key", "value")]
                gate = given["log_head_gate"].detach().to("meta")
                left = lambda gate, normalize: lethe._matrix_state_forward(*head, gate, None, None, None, 0.5, normalize, True)[-1].shape
                self.assertEqual(left(gate, False), (2, 2, size))
                self.assertEqual(left(None, False), (2, 2, size if value_dim <= 64 else 0))
                self.assertEqual(left(None, True), (2, 2, 18 * (8192 + 256) if value_dim == 64 else 0))
                self.assertEqual(left(gate, True), (2, 2, 18 * (8192 + 256 + 256) if value_dim == 64 else 0))

    def test_what_the_delta_rule_leaves_has_its_size_on_the_meta_device(self):
        chunk = lambda row_tiles, column_tiles, parts: 5120 * parts + 512 + column_tiles * (8192 * (row_tiles + 1) + 256 + 4)
        cases = ((64, 64, 65, None, (1, 1)), (128, 128, 4096, "log_head_gate", (2, 2)), (65, 40, 200, None, (2, 1)), (40, 65, 200, "log_head_gate", (1, 2)),
                 (64, 64, 64, None, None), (64, 64, 200, "log_key_gate", None), (64, 129, 200, None, None))
        for (key_dim, value_dim, length, gate, tiles), (dtype, parts) in itertools.product(cases, ((torch.bfloat16, 1), (torch.float16, 2))):
            with self.subTest(key_dim=key_dim, value_dim=value_dim, length=length, gate=gate, dtype=dtype):
                given = inputs(length, key_dim=key_dim, value_dim=value_dim, dtype=dtype)
                head = [name and given[name].detach().to("meta") for name in ("query", "key", "value", gate, None, "beta", None)]
                *_, kept = lethe._matrix_state_forward(*head, 0.5, False, True)
                size = -(-length // 64) * chunk(*tiles, parts) if tiles else 0
                self.assertEqual((kept.shape, kept.dtype), ((2, 2, size), torch.uint8))

    def test_refuses_a_second_derivative_by_name(self):
        tensors = inputs(5)
        (gradient,) = torch.autograd.grad(lethe.gated_state(tensors["query"], tensors["key"], tensors["value"], None, None)[0].sum(),
                                          tensors["query"], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "lethe::_matrix_state_backward"):
            gradient.sum().backward()

    @for_every_call
    def test_has_its_shapes_on_the_meta_device(self, operator, names, options):
        tensors = {n: t.detach().to("meta") for n, t in inputs(5, dtype=torch.bfloat16).items()}
        values, state = operator(*arguments_of(names, tensors), **options)
        self.assertEqual((values.shape, values.dtype), ((2, 5, 2, 7), torch.bfloat16))
        self.assertEqual((state.shape, state.dtype), ((2, 2, 5, 8 if options.get("normalize") else 7), torch.float32))
        with self.assertRaisesRegex(RuntimeError, "value: expected shape"):
            operator(*arguments_of(names, tensors | {"value": tensors["value"][:, 1:]}), **options)

    @for_every_call
    def test_sequences_have_their_shapes_on_the_meta_device(self, operator, names, options):
        names = [name for name in names if "state" not in str(name)]  # sequences begin with 0
        numbers = torch.tensor([0, 2, 2, 5])
        for cu_seqlens in (numbers, numbers.int(), numbers.to("meta")):
            tensors = {n: t.detach().to("meta").requires_grad_() for n, t in inputs(5, batch=1, dtype=torch.bfloat16).items()}
            values, state = operator(*arguments_of(names, tensors), **options, cu_seqlens=cu_seqlens)
            self.assertEqual((values.shape, values.dtype), ((1, 5, 2, 7), torch.bfloat16))
            self.assertEqual((state.shape, state.dtype), ((1, 2, 5, 8 if options.get("normalize") else 7), torch.float32))
            given = [tensors[name] for name in names if name]
            for gradient, tensor in zip(torch.autograd.grad([values, state], given, [torch.empty_like(values), torch.empty_like(state)]), given):
                self.assertEqual((gradient.shape, gradient.dtype), (tensor.shape, tensor.dtype))
        with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected 5 last, the number of tokens, found 4"):
            operator(*arguments_of(names, tensors), **options, cu_seqlens=torch.tensor([0, 4]))


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    lethe = torch.ops.lethe
    unittest.main()

"""Packed sequences (cu_seqlens) of the operators: as each sequence by itself.

usage: test_packed.py LIBLETHE_TORCH [--device cuda] [unittest's own arguments]
"""

import itertools
import sys
import unittest
import unittest.mock

import on_device
import torch
from test_window import sizes_of

LENGTHS = [5, 0, 64, 1, 200, 130, 0]
BOUNDS = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
HEADS, KEY_HEADS, DIM = 4, 2, 64


def tensors(dtype, *, matrix_state=False, dim=DIM, value_dim=None):
    """query, key [1,T,H,D], value [1,T,H,Dv]; log f [1,T,H], with cuts; β."""
    generator = torch.Generator().manual_seed(3)
    total, heads = sum(LENGTHS), HEADS if matrix_state else KEY_HEADS

    def normal(heads, dim=dim):
        return torch.randn(1, total, heads, dim, generator=generator).to(DEVICE, dtype)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    gate = torch.nn.functional.logsigmoid(4 * torch.randn(1, total, HEADS, generator=generator) + 3)
    gate[0, 100, 1] = -float("inf")
    beta = torch.rand(1, total, HEADS, generator=generator)
    key = torch.nn.functional.normalize(normal(heads).float(), dim=-1).to(dtype) if matrix_state else normal(heads)
    return normal(HEADS), key, normal(heads, value_dim or dim), gate.to(DEVICE, wide), beta.to(DEVICE, wide)


def sequences(dtype=torch.int32, device="cpu"):
    return torch.tensor([0, *LENGTHS]).cumsum(0).to(device, dtype)


class Packed(unittest.TestCase):
    def expect_as_apart(self, call, inputs, bound, exactly=False):
        """call(inputs, cu_seqlens) is that of each sequence without it, or exactly: by the CPU in float64; and so are its gradients."""
        arriving = torch.randn(call(inputs, sequences()).shape, generator=torch.Generator().manual_seed(4)).to(inputs[0].dtype)

        def with_gradients(function, inputs):
            inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
            found = function(inputs)
            return [found, *torch.autograd.grad(found, inputs, arriving.to(found))]

        def apart(inputs):
            starts = sequences().tolist()
            return torch.cat([call([tensor[:, a:b] for tensor in inputs], None) for a, b in zip(starts, starts[1:]) if b > a], 1)

        expected = with_gradients(apart, [tensor.double().cpu() for tensor in inputs] if exactly else inputs)
        for cu_seqlens in (sequences(), sequences(torch.int64), sequences(device=DEVICE)):
            for found, wanted, of in zip(with_gradients(lambda inputs: call(inputs, cu_seqlens), inputs), expected, (inputs[0], *inputs)):
                self.assertEqual(found.dtype, of.dtype)
                wanted = wanted.to(found.device)
                self.assertLessEqual((found - wanted).double().norm(), bound * max(1.0, wanted.double().norm().item()))
                self.assertTrue(found.isfinite().all())

    def test_attention_is_that_of_each_sequence(self):
        for dtype, dim in [(dtype, DIM) for dtype in DTYPES] + [(DTYPES[-1], 96)]:
            *inputs, _ = tensors(dtype, dim=dim)
            for tolerance in (None, -10.0):
                with self.subTest(dtype=dtype, dim=dim, tolerance=tolerance):
                    self.expect_as_apart(lambda x, cu: lethe.forgetting_attention(*x, log_pruning_tolerance=tolerance, cu_seqlens=cu), inputs,
                                         BOUNDS[dtype] + (1e-4 if tolerance else 0))

    def test_attention_of_every_size_is_exact(self):
        for dtype, dim, value_dim in sizes_of(DEVICE, DTYPES):
            *inputs, _ = tensors(dtype, dim=dim, value_dim=value_dim)
            pairs = []
            for tolerance in (None, -10.0):
                with self.subTest(dtype=dtype, dim=dim, value_dim=value_dim, tolerance=tolerance):
                    self.expect_as_apart(lambda x, cu: lethe.forgetting_attention(*x, log_pruning_tolerance=tolerance, cu_seqlens=cu), inputs,
                                         BOUNDS[dtype] + (1e-4 if tolerance else 0), exactly=True)
                pairs.append(lethe.forgetting_attention_with_statistics(*inputs, log_pruning_tolerance=tolerance, cu_seqlens=sequences())[2])
            with self.subTest("fewer pairs", dtype=dtype, dim=dim, value_dim=value_dim):
                self.assertTrue((pairs[1].sum(0) < pairs[0].sum(0)).all())

    def test_attention_of_long_calls_is_that_of_each_sequence(self):
        if DEVICE == "cpu":
            self.skipTest("a GPU's kernels share a head of more than 8192 tokens among CTAs")
        with unittest.mock.patch.object(sys.modules[__name__], "LENGTHS", [3000, 1, 4095, 2600, 5]):
            for dtype in DTYPES[1:]:
                *inputs, _ = tensors(dtype)
                with self.subTest(dtype=dtype):
                    self.expect_as_apart(lambda x, cu: lethe.forgetting_attention(*x, cu_seqlens=cu), inputs, BOUNDS[dtype])

    def test_states_are_those_of_each_sequence(self):
        others = [(torch.bfloat16, *sizes) for sizes in (((40, 72),) if DEVICE == "cpu" else ((64, 32), (40, 72), (128, 96)))]
        for dtype, rows, columns in [(dtype, DIM, DIM) for dtype in DTYPES] + others:
            query, key, value, gate, beta = tensors(dtype, matrix_state=True, dim=rows, value_dim=columns)
            positive = [query.abs(), key.abs() + 0.1]
            of_each = lambda count: gate.unsqueeze(3) * torch.linspace(0.2, 1, count, device=DEVICE, dtype=gate.dtype)
            calls = {
                "no gate": (lambda x, cu: lethe.gated_state(*x, None, None, cu_seqlens=cu)[0], [query, key, value]),
                "scalar gate": (lambda x, cu: lethe.gated_state(*x, None, cu_seqlens=cu)[0], [query, key, value, gate]),
                "key gate": (lambda x, cu: lethe.gated_state(*x, None, cu_seqlens=cu)[0],
                             [query, key, value, gate.unsqueeze(3).expand(-1, -1, -1, rows).contiguous()]),
                "value gate": (lambda x, cu: lethe.gated_state(*x[:3], None, x[3], cu_seqlens=cu)[0], [query, key, value, of_each(columns)]),
                "decay rule": (lambda x, cu: lethe.gated_state(*x, cu_seqlens=cu)[0], [query, key, value, of_each(rows), of_each(columns)]),
                "normalized": (lambda x, cu: lethe.gated_state(*x, None, normalize=True, cu_seqlens=cu)[0], [*positive, value, gate]),
                "delta": (lambda x, cu: lethe.delta_state(*x, cu_seqlens=cu)[0], [query, key, value, beta]),
                "gated delta": (lambda x, cu: lethe.delta_state(*x, cu_seqlens=cu)[0], [query, key, value, beta, gate]),
                "key-gated delta": (lambda x, cu: lethe.delta_state(*x, cu_seqlens=cu)[0], [query, key, value, beta, of_each(rows)]),
            }
            for name, (call, inputs) in calls.items():
                with self.subTest(name, dtype=dtype, rows=rows, columns=columns):
                    self.expect_as_apart(call, inputs, BOUNDS[dtype])

    def test_the_state_is_that_of_the_last_sequence(self):
        query, key, value, gate, _ = tensors(torch.float32, matrix_state=True)
        last = slice(sum(LENGTHS[:5]), None)
        found = lethe.gated_state(query, key, value, gate, None, cu_seqlens=sequences())[1]
        expected = lethe.gated_state(query[:, last], key[:, last], value[:, last], gate[:, last], None)[1]
        self.assertLess((found - expected).abs().max(), 1e-4)

    def test_statistics_are_those_of_the_sequences(self):
        query, key, value, gate, _ = tensors(torch.float32)
        _, log_normalizer, pairs = lethe.forgetting_attention_with_statistics(query, key, value, gate, cu_seqlens=sequences())
        starts = sequences().tolist()
        for a, b in zip(starts, starts[1:]):
            if b > a:
                _, expected, _ = lethe.forgetting_attention_with_statistics(query[:, a:b], key[:, a:b], value[:, a:b], gate[:, a:b])
                self.assertLess((log_normalizer[:, a:b] - expected).abs().max(), 1e-4)
        self.assertEqual(tuple(pairs.shape), (len(LENGTHS), HEADS))
        wholes = torch.tensor([n * (n + 1) // 2 for n in LENGTHS], device=pairs.device)
        for head in (0, 2, 3):  # without cuts
            self.assertTrue(torch.equal(pairs[:, head], wholes))
        self.assertTrue((pairs[:, 1] <= wholes).all())

    def test_a_sequence_is_pruned_by_its_own_length(self):
        query, key, value, gate, _ = tensors(torch.float32)
        query, key, value = (x.repeat(1, 21, 1, 1)[:, :8192] for x in (query, key, value))
        gate = torch.full((1, 8192, HEADS), -0.02, device=DEVICE)
        options = {"log_pruning_tolerance": -5.0, "logit_bound": torch.full((HEADS,), 0.5, device=DEVICE)}
        short = torch.tensor([0, *range(1024, 8193, 1024)])

        def pairs(cu_seqlens, by_mass):
            return lethe.forgetting_attention_with_statistics(query, key, value, gate, cu_seqlens=cu_seqlens, prune_by_mass=by_mass, **options)[2]

        alone = [lethe.forgetting_attention_with_statistics(*(x[:, :1024] for x in (query, key, value, gate)),
                                                            cu_seqlens=torch.tensor([0, 1024]), prune_by_mass=by_mass, **options)[2]
                 for by_mass in (False, True)]
        for by_mass in (False, True):  # sequences begin with blocks, so they are pruned as apart
            self.assertTrue(torch.equal(pairs(short, by_mass), alone[by_mass].expand(8, HEADS)))
        self.assertTrue((pairs(short, True) < pairs(short, False)).all())
        whole = 1024 * 1025 // 2
        self.assertTrue((pairs(short, False) < whole).all())

    def test_other_sequences_have_no_effect(self):
        *inputs, _ = tensors(DTYPES[-1])
        before = lethe.forgetting_attention(*inputs, cu_seqlens=sequences())
        first, last = sum(LENGTHS[:4]), sum(LENGTHS[:5])
        for tensor in inputs[:3]:
            tensor[:, first:last] *= -3
        after = lethe.forgetting_attention(*inputs, cu_seqlens=sequences())
        for part in (slice(0, first), slice(last, None)):
            self.assertTrue(torch.equal(before[:, part], after[:, part]))
        self.assertFalse(torch.equal(before, after))

    def test_weights_beyond_their_format_stay_in_their_sequence(self):
        lengths = [300, 40, 500, 64, 250]  # at tiles of 128 and 192 tokens, which most of them share
        first, last = sum(lengths[:2]), sum(lengths[:3])
        with unittest.mock.patch.object(sys.modules[__name__], "LENGTHS", lengths):
            for dtype, dim, step in itertools.product(DTYPES, (64, 128), (8, 48, 64)):  # octaves that logits rise by in a block of 128 keys
                with self.subTest(dtype=dtype, dim=dim, step=step):
                    *inputs, _ = tensors(dtype, dim=dim)
                    before = lethe.forgetting_attention(*inputs, cu_seqlens=sequences())
                    direction = torch.ones(dim, dtype=torch.float64, device=DEVICE) / dim**0.5
                    age = torch.arange(last - first, device=DEVICE, dtype=torch.float64).flip(0)[:, None, None] / 128
                    query, key = (torch.nn.functional.normalize(x[:, first:last].double(), dim=-1) for x in inputs[:2])
                    inputs[0][:, first:last] = (query + dim**0.5 * direction).to(dtype)
                    inputs[1][:, first:last] = (key + step * 0.6931 * age * direction).to(dtype)
                    after = lethe.forgetting_attention(*inputs, cu_seqlens=sequences())
                    for part in (slice(0, first), slice(last, None)):
                        self.assertTrue(torch.equal(before[:, part], after[:, part]))
                    expected = lethe.forgetting_attention(*(x[:, first:last].double() for x in inputs))
                    error = (after[:, first:last].double() - expected).norm() / expected.norm()
                    self.assertLessEqual(error.item(), BOUNDS[dtype])

    def test_compiled_calls_are_equal(self):
        *inputs, _ = tensors(torch.float32)
        call = torch.compile(lambda *x: lethe.forgetting_attention(*x[:-1], cu_seqlens=x[-1]), fullgraph=True, backend="aot_eager")
        for device in {"cpu", DEVICE}:
            cu_seqlens = sequences(device=device)
            self.assertTrue(torch.equal(call(*inputs, cu_seqlens), lethe.forgetting_attention(*inputs, cu_seqlens=cu_seqlens)))

    def test_wrong_sequences_are_refused_in_one_line(self):
        query, key, value, gate, beta = tensors(torch.float32, matrix_state=True)
        total = sum(LENGTHS)

        def attend(cu_seqlens, q=query, k=key):
            return lethe.forgetting_attention(q, k, value if len(k) == 1 else value.repeat(2, 1, 1, 1), gate, cu_seqlens=cu_seqlens)

        for call, message in (
            *((lambda numbers=numbers, device=device: attend(torch.tensor(numbers, device=device)), message)
              for device in dict.fromkeys(("cpu", DEVICE)) for numbers, message in (
                  ([1, total], "cu_seqlens: expected 0 first, found 1"),
                  ([0, 7], f"cu_seqlens: expected {total} last, the number of tokens, found 7"),
                  ([0, 9, 4, total], "cu_seqlens: expected ascending numbers, found 4 after 9"))),
            (lambda: attend(torch.tensor([0])), "cu_seqlens: expected at least 2 numbers, found 1"),
            (lambda: attend(torch.tensor([[0, total]])), "cu_seqlens: expected 1 dimensions [N+1], found 2"),
            (lambda: attend(torch.tensor([0.0, total])), "cu_seqlens: expected dtype int32 or int64, found Float"),
            (lambda: attend(sequences(), query.repeat(2, 1, 1, 1), key.repeat(2, 1, 1, 1)),
             "query: expected a batch of one with cu_seqlens, found 2"),
            (lambda: attend(sequences(), query[:, 1:]), "query: expected as many tokens as key with cu_seqlens, found shapes "),
            (lambda: lethe.gated_state(query, key, value, gate, None, torch.zeros(1, HEADS, DIM, DIM, device=DEVICE), cu_seqlens=sequences()),
             "state: expected none with cu_seqlens, whose sequences begin with 0, found one"),
            (lambda: lethe.gated_state(query, key, value, gate.int(), None, cu_seqlens=sequences()),
             "log_key_gate: expected dtype float64, float32, bfloat16 or float16, found Int"),
            (lambda: lethe.forgetting_attention(query, key, value, gate[:, 1:], cu_seqlens=sequences()),
             f"log_forget: expected {total} tokens as query, found shape [1, {total - 1}, "),
        ):
            with self.subTest(message), self.assertRaises(RuntimeError) as caught:
                call()
            self.assertEqual(str(caught.exception).splitlines()[0][:len(message)], message)

    def test_wrong_numbers_are_refused_within_a_transformation(self):
        x = [torch.randn(1, 5, 1, 4).to(DEVICE) for _ in range(3)] + [torch.zeros(1, 5, 1).to(DEVICE)]
        call = lambda q, cu: lethe.forgetting_attention(q, *x[1:], cu_seqlens=cu)
        for place in dict.fromkeys(("cpu", DEVICE)):
            numbers = lambda *all_of: torch.tensor(all_of, device=place)
            right = numbers(0, 3, 5)
            whole = torch.func.grad(lambda q, cu: call(q, cu).sum())(x[0], right)
            q = x[0].clone().requires_grad_()
            self.assertTrue(torch.equal(whole, torch.autograd.grad(call(q, right).sum(), q)[0]))
            both = torch.func.vmap(lambda cu: call(x[0], cu))(numbers([0, 3, 5], [0, 1, 5]))
            self.assertTrue(torch.equal(both[1], call(x[0], numbers(0, 1, 5))))
            with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected ascending numbers, found 2 after 3"):
                torch.func.grad(lambda q, cu: call(q, cu).sum())(x[0], numbers(0, 3, 2, 5))
            with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected 5 last, the number of tokens, found 4"):
                torch.func.vmap(lambda cu: call(x[0], cu), in_dims=1)(numbers([0, 0], [3, 3], [5, 4]))
            with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected 0 first, found 1"):
                torch.func.vmap(torch.func.vmap(lambda cu: call(x[0], cu)))(numbers([[0, 3, 5], [0, 1, 5]], [[0, 2, 5], [1, 2, 5]]))

    def test_numbers_are_checked_again_when_they_change(self):
        *inputs, _ = tensors(torch.float32)
        cu_seqlens = sequences(device=DEVICE)
        for _ in range(2):
            lethe.forgetting_attention(*inputs, cu_seqlens=cu_seqlens)
        cu_seqlens[1] = -1
        with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected ascending numbers, found -1 after 0"):
            lethe.forgetting_attention(*inputs, cu_seqlens=cu_seqlens)
        with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected .* last, the number of tokens, found"):
            lethe.forgetting_attention(*(x[:, :-1] for x in inputs), cu_seqlens=sequences(device=DEVICE))
        with torch.inference_mode():
            lethe.forgetting_attention(*inputs, cu_seqlens=sequences(device=DEVICE))
            wrong = torch.tensor([0, 9, 4, sum(LENGTHS)], device=DEVICE)
            with self.assertRaisesRegex(RuntimeError, "cu_seqlens: expected ascending numbers, found 4 after 9"):
                lethe.forgetting_attention(*inputs, cu_seqlens=wrong)

    def test_a_captured_call_reads_no_numbers(self):
        if DEVICE != "cuda":
            self.skipTest("a CPU has no CUDA graphs")
        *inputs, _ = tensors(torch.bfloat16)
        cu_seqlens = sequences(device="cuda")
        expected = lethe.forgetting_attention(*inputs, cu_seqlens=cu_seqlens)
        graph, others = torch.cuda.CUDAGraph(), cu_seqlens.clone()
        with torch.cuda.graph(graph):
            found = lethe.forgetting_attention(*inputs, cu_seqlens=others)
        graph.replay()
        self.assertTrue(torch.equal(found, expected))


if __name__ == "__main__":
    DEVICE, DTYPES = on_device.from_arguments()
    lethe = torch.ops.lethe
    unittest.main()

"""The sliding window of Forgetting Attention, beside a dense softmax in float64.

usage: test_window.py LIBLETHE_TORCH [--device cuda] [unittest's own arguments]
"""

import unittest

import on_device
import torch

BOUNDS = {torch.float64: 1e-11, torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
QUERIES, KEYS, HEADS, KEY_HEADS = 500, 600, 4, 2
# Head and value dims: of each instance of the kernels, at its end and below it, in whole 16 bytes and not, one longer than the other.
SIZES = ((16, 16), (33, 33), (33, 48), (48, 48), (80, 80), (112, 112), (160, 160), (200, 200), (256, 256), (64, 32), (40, 72), (128, 96), (72, 160))
CU_SEQLENS = (0, 20, 270, 270, 300)


def sizes_of(device, dtypes):
    """(dtype, head dim, value dim) of SIZES that the kernels take; the CPU has one kernel, and tries two."""
    if device == "cpu":
        return [(dtype, *dims) for dtype in dtypes for dims in ((33, 48), (64, 32))]
    return [(dtype, *dims) for dtype in dtypes for dims in SIZES if dtype != torch.float32 or max(dims) <= 128]


def tensors(dtype, gate="initial", dim=64, value_dim=None, batch=2, heads=HEADS, key_heads=KEY_HEADS, queries=QUERIES, keys=KEYS):
    """query, key, value, log f."""
    generator = torch.Generator().manual_seed(5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = ((queries, heads, dim), (keys, key_heads, dim), (keys, key_heads, value_dim or dim))
    inputs = [torch.randn(batch, *shape, generator=generator).to(DEVICE, dtype) for shape in shapes]
    shift = {"open": 9.0, "initial": 0.0, "cutting": 6.0, "mixed": torch.tensor([0.0, 9.0]).repeat((heads + 1) // 2)[:heads]}[gate]
    log_forget = torch.nn.functional.logsigmoid(torch.randn(batch, keys, heads, generator=generator) + shift)
    if gate == "cutting":
        log_forget[:, ::97, 1] = -float("inf")
    return [*inputs, log_forget.to(DEVICE, wide)]


def dense(query, key, value, log_forget, window, cu_seqlens=()):
    """Values, log normalizers and visible pairs by the definition."""
    query, key, value, gates = (x.double() for x in (query, key, value, log_forget))
    key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], 2) for x in (key, value))
    cut = gates == -float("inf")
    sums = gates.masked_fill(cut, 0).cumsum(1).transpose(1, 2)
    cuts = cut.cumsum(1).transpose(1, 2)
    row = torch.arange(key.shape[1] - query.shape[1], key.shape[1], device=query.device)
    column = torch.arange(key.shape[1], device=query.device)
    near = (column[None] <= row[:, None]) & (column[None] > row[:, None] - window)
    sequence = sum((column >= start).long() for start in (0, *cu_seqlens))
    near &= sequence[None] == sequence[row, None]
    logits = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[3] ** 0.5 + sums[:, :, row, None] - sums[:, :, None, :]
    seen = near & (cuts[:, :, row, None] == cuts[:, :, None, :])
    logits = logits.masked_fill(~seen, -float("inf"))
    return torch.einsum("bhij,bjhd->bihd", logits.softmax(-1), value), logits.logsumexp(-1).transpose(1, 2), near.sum()


class Window(unittest.TestCase):
    def check(self, dtype, gate, window, dim=64, *, cu_seqlens=(), tolerance=None, **sizes):
        inputs = [x.requires_grad_() for x in tensors(dtype, gate, dim, **sizes)]
        options = {"window": window, "cu_seqlens": torch.tensor(cu_seqlens) if cu_seqlens else None}
        expected_values, expected_normalizer, near = dense(*inputs, window, cu_seqlens)
        arriving = torch.randn(expected_values.shape, generator=torch.Generator().manual_seed(6)).to(DEVICE)
        values, log_normalizer, pairs = lethe.forgetting_attention_with_statistics(*inputs, log_pruning_tolerance=tolerance, **options)
        found = [values, log_normalizer, *torch.autograd.grad(values, inputs, arriving.to(values.dtype))]
        expected = [expected_values, expected_normalizer, *torch.autograd.grad(expected_values, inputs, arriving.double())]
        for name, one, other in zip(("values", "log_normalizer", "query", "key", "value", "log_forget"), found, expected):
            # At a window of 1 some are 0; the gate's gradient then is what the rounding of up to 500 rows sums to.
            error = (one.double() - other.double()).norm() / max(other.double().norm().item(), 50 if name == "log_forget" else 10)
            self.assertLessEqual(error.item(), BOUNDS[dtype] + (1e-4 if tolerance else 0), name)
        if gate == "open":  # all pairs of the window, and those of a block at its edge
            visited = pairs.sum(0) if cu_seqlens else pairs
            self.assertTrue((near <= visited).all())
            self.assertTrue((visited <= near + 256 * QUERIES).all())
        if tolerance:
            all_pairs = lethe.forgetting_attention_with_statistics(*inputs, **options)[2]
            self.assertEqual((pairs.sum(0) < all_pairs.sum(0)).tolist(), [True, False])  # of gates as initial, and of open ones

    def test_is_that_of_the_definition(self):
        windows = (1, 63, 64, 65, 200, KEYS, 10**15) if DEVICE == "cpu" else (1, 2, 63, 64, 65, 200, 511, KEYS - 1, KEYS, 10**15)
        for dtype in DTYPES:
            for gate in ("open", "initial", "cutting"):
                for window in windows:
                    with self.subTest(dtype=dtype, gate=gate, window=window):
                        self.check(dtype, gate, window)

    def test_is_that_of_the_definition_at_every_head_dim(self):
        for dtype in DTYPES[-1:]:
            for dim in (16, 32, 80, 96, 128, 256):
                with self.subTest(dim=dim):
                    self.check(dtype, "initial", 100, dim)

    def check_size(self, dtype, dim, value_dim, gate, window, **options):
        """Of two query heads of one key head, of 200 queries over 300 keys and of sequences of 300 tokens."""
        sizes = {"value_dim": value_dim, "batch": 1, "heads": 2, "key_heads": 1, "keys": 300}
        self.check(dtype, gate, window, dim, queries=200, **sizes, **options)
        self.check(dtype, gate, window, dim, queries=300, cu_seqlens=CU_SEQLENS, **sizes, **options)

    def test_is_that_of_the_definition_at_every_size(self):
        for dtype, dim, value_dim in sizes_of(DEVICE, DTYPES):
            for gate, window in (("mixed", 50), ("open", 150), ("cutting", 130)):
                with self.subTest(dtype=dtype, dim=dim, value_dim=value_dim, gate=gate, window=window):
                    self.check_size(dtype, dim, value_dim, gate, window)

    def test_prunes_within_itself_at_every_size(self):
        for dtype, dim, value_dim in sizes_of(DEVICE, DTYPES):
            with self.subTest(dtype=dtype, dim=dim, value_dim=value_dim):
                self.check_size(dtype, dim, value_dim, "mixed", 200, tolerance=-10.0)

    def test_is_that_of_the_definition_wherever_queries_begin_in_a_block(self):
        # The first query after 31, 63 and 127 keys is the last of a block of 32, 64 or 128, with others of its warp in the next one.
        for before in (1, 31, 63, 127):
            for dim in (64, 96, 128):
                for window in (64, 100, 200):
                    with self.subTest(before=before, dim=dim, window=window):
                        self.check(DTYPES[-1], "initial", window, dim, keys=QUERIES + before)

    def test_is_that_of_the_definition_over_sections_of_heads(self):
        # On a Hopper GPU what the backward's tiles of keys read fills the cache (gate/sections.hpp) with 16 key heads of 4 query heads each: two
        # sections, of 11 and 10, and after both of them the last tile of keys of every head.
        group = 4 if DEVICE == "cuda" else 1
        self.check(DTYPES[-1], "initial", 100, 128, batch=3, heads=7 * group, key_heads=7)

    def test_adds_up_the_gradient_of_queries_as_in_the_fixed_order(self):
        # Where the order is open, the tiles of keys that a query sees add to its dq as they end: here in several waves of tiles, more than 32 of them
        # a query, of gates near 1 and of others. In the fixed order they add one after the other.
        length, heads = (5000, 24) if DEVICE == "cuda" else (700, 2)
        for dim in (64, 128):
            for shift in (9.0, 0.0):
                generator = torch.Generator(DEVICE).manual_seed(7)
                normal = lambda *shape: torch.randn(1, length, heads, *shape, generator=generator, device=DEVICE)
                query, key, value, arriving = (normal(dim).to(DTYPES[-1]) for _ in range(4))
                inputs = [query, key, value, torch.nn.functional.logsigmoid(normal() + shift)]
                inputs = [x.requires_grad_() for x in inputs]
                values = lethe.forgetting_attention(*inputs, window=6 * length // 7)

                def gradients(fixed):
                    torch.use_deterministic_algorithms(fixed)
                    try:
                        return torch.autograd.grad(values, inputs, arriving, retain_graph=True)
                    finally:
                        torch.use_deterministic_algorithms(False)

                expected = gradients(True)
                for _ in range(3):
                    for one, other in zip(gradients(False), expected):
                        with self.subTest(dim=dim, shift=shift, shape=tuple(one.shape)):
                            self.assertLessEqual(((one.double() - other.double()).norm() / other.double().norm()).item(), 2e-3)

    def test_holds_logits_that_grow_towards_the_windows_edge(self):
        for dtype in DTYPES:
            # octaves a block of 128 keys: with 126 to 128 between a query and its window's edge, sums are within float and products with values
            # beyond it
            for step in (8, *range(36, 70, 2), 96) if DEVICE == "cuda" else (8, 63, 96):
                query, key, value, gate = tensors(dtype, "open")
                query, key = (torch.nn.functional.normalize(x.double(), dim=-1) for x in (query, key))
                direction = torch.nn.functional.normalize(torch.ones(64, dtype=torch.float64, device=DEVICE), dim=0)
                age = torch.arange(KEYS, device=DEVICE, dtype=torch.float64).flip(0) / 128
                query = query + 8 * direction
                key = key + step * 0.6931 * age[None, :, None, None] * direction
                inputs = [query.to(dtype), key.to(dtype), value.to(dtype), gate]
                for window in (150, 300, 450):
                    with self.subTest(dtype=dtype, step=step, window=window):
                        values = lethe.forgetting_attention(*inputs, window=window)
                        expected = dense(*inputs, window)[0]
                        self.assertLessEqual(((values.double() - expected).norm() / expected.norm()).item(), BOUNDS[dtype])

    def test_prunes_within_itself(self):
        inputs = tensors(DTYPES[-1])
        whole, _, all_pairs = lethe.forgetting_attention_with_statistics(*inputs, window=400)
        pruned, _, pairs = lethe.forgetting_attention_with_statistics(*inputs, log_pruning_tolerance=-10.0, window=400)
        self.assertLess((whole.double() - pruned.double()).abs().max(), 1e-2)
        self.assertTrue((pairs < all_pairs).all())

    def test_keys_outside_have_no_effect(self):
        inputs = tensors(DTYPES[-1], "open")
        before = lethe.forgetting_attention(*inputs, window=64)
        inputs[1][:, :300] = float("nan") if DEVICE == "cpu" else 7
        inputs[2][:, :300] = float("nan") if DEVICE == "cpu" else 7
        after = lethe.forgetting_attention(*inputs, window=64)
        first = 300 + 63 - (KEYS - QUERIES)  # the first query that sees none of them
        self.assertTrue(torch.equal(before[:, first:], after[:, first:]))
        self.assertFalse(torch.equal(before[:, first - 1], after[:, first - 1]))

    def test_restarts_in_packed_sequences(self):
        query, key, value, gate = (x[:1] for x in tensors(DTYPES[0]))
        query = query.repeat(1, 2, 1, 1)[:, :KEYS]
        cu_seqlens = torch.tensor([0, 210, 260, KEYS])
        found = lethe.forgetting_attention(query, key, value, gate, window=50, cu_seqlens=cu_seqlens)
        for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:]):
            expected = dense(query[:, a:b], key[:, a:b], value[:, a:b], gate[:, a:b], 50)[0]
            self.assertLess((found[:, a:b] - expected).abs().max().item(), BOUNDS[DTYPES[0]] * 10)

    def test_wrong_windows_are_refused_in_one_line(self):
        for window in (0, -3):
            with self.assertRaises(RuntimeError) as caught:
                lethe.forgetting_attention(*tensors(torch.float32), window=window)
            self.assertEqual(str(caught.exception).splitlines()[0], f"window: expected at least 1, the query's own token, found {window}")

    def test_compiled_calls_are_equal(self):
        inputs = tensors(torch.float32)
        call = torch.compile(lambda *x: lethe.forgetting_attention(*x, window=77), fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(call(*inputs), lethe.forgetting_attention(*inputs, window=77)))


if __name__ == "__main__":
    DEVICE, DTYPES = on_device.from_arguments()
    lethe = torch.ops.lethe
    unittest.main()

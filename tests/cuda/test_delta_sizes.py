"""delta_state on a GPU at the sizes that its benchmark has: 192 heads of 64 and 96 of 128 columns, of 4096 tokens, of each kind of gates, values and
every gradient. And that no value depends on a later token, of 300.

usage: python3 tests/cuda/test_delta_sizes.py LIBRARY [--device DEVICE] [unittest arguments]
  DEVICE  where they run (default cuda); "--device cpu" tries the tests themselves, at smaller sizes, without a GPU
"""
import faulthandler
import itertools
import sys
import unittest

import torch
from test_delta_state import delta_problem
from test_operators import BUDGET, load_library_or_skip

DEVICE = "cuda"
BATCHES, HEADS, TOKENS = {64: 12, 128: 6}, 16, 4096
SECONDS = 100  # that a test may take: kernels that wait for one another without end say so, and where
NAMES = ("query", "key", "value", "beta", "gate", "state")


class Sizes(unittest.TestCase):
    def setUp(self):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)

    def problem(self, dim, gate, dtype=torch.bfloat16):
        """By name, with what arrives at values and last state. Keys of norm 1, strengths up to 1."""
        generator = torch.Generator(DEVICE).manual_seed(8)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device=DEVICE)
        batch = BATCHES[dim]
        tokens = (batch, TOKENS, HEADS)
        key = torch.nn.functional.normalize(normal(*tokens, dim) + normal(1, 1, HEADS, dim), dim=-1)
        gates = {"none": lambda: None, "token": lambda: torch.nn.functional.logsigmoid(normal(*tokens) + 4),
                 "key": lambda: torch.nn.functional.logsigmoid(normal(*tokens, dim) + 4)}
        given = {"query": normal(*tokens, dim).to(dtype), "key": key.to(dtype), "value": normal(*tokens, dim).to(dtype),
                 "beta": torch.rand(tokens, generator=generator, device=DEVICE), "gate": gates[gate](), "state": normal(batch, HEADS, dim, dim)}
        return given, (normal(*tokens, dim).to(dtype), normal(batch, HEADS, dim, dim))

    def results(self, given, arriving, cuts=()):
        """Values, last state and gradients, by name: of one call, or of one for each part between the cuts, through the states."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items() if tensor is not None}
        state, values, length = leaves["state"], [], leaves["query"].size(1)
        for begin, end in zip((0, *cuts), (*cuts, length)):
            parts = [leaves[name][:, begin:end] if name in leaves else None for name in NAMES[:-1]]
            one, state = torch.ops.lethe.delta_state(*parts, state)
            values.append(one)
        values = torch.cat(values, 1)
        torch.autograd.backward([values, state], [direction.to(of.dtype) for direction, of in zip(arriving, (values, state))])
        found = {"values": values.detach(), "last state": state.detach()} | {name: leaf.grad for name, leaf in leaves.items()}
        return {name: tensor.transpose(1, 2) if name in ("state", "last state") else tensor for name, tensor in found.items()}

    def expect_near(self, found, expected, times):
        """Each head's error within so many budgets; of [B, ·, H, …]."""
        for name, tensor in expected.items():
            of_heads = lambda numbers: numbers.double().transpose(1, 2).flatten(2).norm(dim=2)
            worst = (of_heads(found[name].double() - tensor.double()) / of_heads(tensor)).nan_to_num(nan=torch.inf).max().item()
            self.assertLessEqual(worst, times * BUDGET[torch.bfloat16], name)

    def for_each_kind(self, check):
        for dim in (64, 128):
            for gate in ("none", "token", "key"):
                with self.subTest(dim=dim, gate=gate):
                    check(*self.problem(dim, gate))

    def test_are_those_of_parts_one_after_the_other(self):
        def check(given, arriving):
            whole = self.results(given, arriving)
            self.expect_near(self.results(given, arriving, cuts=(TOKENS // 2 - 64, TOKENS - 70)), whole, 2)
        self.for_each_kind(check)

    def test_are_those_of_a_few_heads_in_float32(self):
        def check(given, arriving):
            whole = self.results(given, arriving)
            batches = whole["values"].size(0)
            for batch, head in ((0, 0), (batches // 2, 3), (batches - 1, HEADS - 1)):
                cut = lambda x, of_state: x[batch:batch + 1].narrow(1 if of_state else 2, head, 1)
                few = {name: None if x is None else cut(x, name == "state").float() for name, x in given.items()}
                expected = self.results(few, [cut(x, i == 1).float() for i, x in enumerate(arriving)])
                self.expect_near({name: cut(x, False) for name, x in whole.items()}, expected, 3)
        self.for_each_kind(check)

    def test_states_that_a_forward_leaves_give_the_bits_of_computed_ones(self):
        def check(given, arriving):
            inputs = [given[name] for name in ("query", "key", "value", "gate")] + [None, given["beta"], given["state"]]
            found = []
            for keep in (True, None, True):
                values, state, left = torch.ops.lethe._matrix_state_forward(*inputs, 0.3, False, keep)
                found.append([values, state, *torch.ops.lethe._matrix_state_backward(arriving[0], arriving[1], *inputs, left, 0.3, False)])
            for i, (first, computed, again) in enumerate(zip(*found)):
                self.assertTrue(torch.equal(first, again), i)
                if i > 1:  # values and state come from another kernel where nothing is left
                    self.assertTrue(torch.equal(first, computed), i)
        self.for_each_kind(check)

    def test_equal_calls_give_equal_bits(self):
        def check(given, arriving):
            once = self.results(given, arriving)
            for _ in range(3):
                for name, again in self.results(given, arriving).items():
                    self.assertTrue(torch.equal(again, once[name]), name)
        self.for_each_kind(check)

    def test_no_later_token_changes_a_bit(self):
        """Tokens change to other finite ones from the middle of a chunk of 64 and a block of 16 on. Calls that record a derivative may run another
        kernel than those that don't, so each is compared with its like."""
        def values_of(given, gated, recorded):
            leaves = {name: tensor.detach().to(DEVICE).requires_grad_(recorded) for name, tensor in given.items()}
            values, _ = torch.ops.lethe.delta_state(*(leaves[name] if name != "gate" or gated else None for name in NAMES))
            self.assertEqual(values.requires_grad, recorded)
            return values.detach()

        for dtype, rows, columns, gated in itertools.product((torch.bfloat16, torch.float16), (64, 128), (64, 128), (False, True)):
            given, other = (delta_problem(dtype, length=300, rows=rows, columns=columns, seed=seed) for seed in (6, 7))
            other["value"] *= 1000  # other powers of two for what the kernels hold in 16 bits
            other["gate"] -= 9
            for recorded in (False, True):
                expected = values_of(given, gated, recorded)
                for begin, names in itertools.product((75, 201), (("query", "key", "value", "beta", "gate"), ("key",), ("value",), ("gate",))):
                    if names == ("gate",) and not gated:
                        continue
                    changed = given | {name: torch.cat([given[name][:, :begin], other[name][:, begin:]], 1) for name in names}
                    with self.subTest(dtype=dtype, rows=rows, columns=columns, gated=gated, recorded=recorded, begin=begin, names=names):
                        found = values_of(changed, gated, recorded)
                        self.assertTrue(found.isfinite().all())
                        self.assertTrue(torch.equal(found[:, :begin], expected[:, :begin]))
                        self.assertFalse(torch.equal(found[:, begin:], expected[:, begin:]))


if __name__ == "__main__":
    if sys.argv[2:3] == ["--device"]:
        DEVICE = sys.argv.pop(3)
        del sys.argv[2]
        torch.ops.load_library(sys.argv.pop(1))
        BATCHES, HEADS, TOKENS = {64: 2, 128: 2}, 4, 640
    else:
        load_library_or_skip()
    unittest.main()

"""gated_state and delta_state on a GPU, against the CPU implementation.

usage: python3 tests/cuda/test_matrix_state.py LIBRARY [--device DEVICE] [--errors FILE] [unittest arguments]
  DEVICE  where they run (default cuda); "--device cpu" tries the tests themselves without a GPU
  FILE    gets the largest error of each call, type and tensor, as a share of its plain budget, and where it was found
"""
import itertools
import pathlib
import sys
import unittest

import torch
from on_gpu import HOPPER
from test_operators import BUDGET, error, load_library_or_skip

DEVICE = "cuda"
LARGEST = {}  # (call, type, tensor): its largest error over its plain budget, that error, where


def state_problem(dtype, length=150, batch=2, heads=3, key_dim=7, value_dim=10):
    """Arguments of gated_state and delta_state by name; gates of exactly 0 and 1 among them, features positive, keys of norm 1."""
    generator = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)

    def log_gate(*shape):
        gate = torch.nn.functional.logsigmoid(normal(batch, length, heads, *shape) + 2)
        gate[:, 100:101, 1] = -torch.inf
        gate[:, 50:60, 0] = 0
        return gate.to(wide)

    key = torch.nn.functional.normalize(normal(batch, length, heads, key_dim).abs(), dim=-1)
    return {"query": normal(batch, length, heads, key_dim).abs().to(dtype), "key": key.to(dtype),
            "value": normal(batch, length, heads, value_dim).to(dtype), "key_gate": log_gate(key_dim), "head_gate": log_gate(),
            "value_gate": log_gate(value_dim), "beta": normal(batch, length, heads).sigmoid().to(wide),
            "state": normal(batch, heads, key_dim, value_dim).to(wide),
            "normalized_state": normal(batch, heads, key_dim, value_dim + 1).abs().to(wide)}


# The positional arguments of each kind of call; the last one is the state.
STATE_CALLS = {
    "no gate": ("gated_state", ("query", "key", "value", None, None, None), {}),
    "head gate": ("gated_state", ("query", "key", "value", "head_gate", None, "state"), {}),
    "key gate": ("gated_state", ("query", "key", "value", "key_gate", None, "state"), {"scale": 0.7}),
    "both gates": ("gated_state", ("query", "key", "value", "key_gate", "value_gate", "state"), {}),
    "normalized": ("gated_state", ("query", "key", "value", "head_gate", None, "normalized_state"), {"normalize": True}),
    "normalized, no gate": ("gated_state", ("query", "key", "value", None, None, None), {"normalize": True}),
    "delta": ("delta_state", ("query", "key", "value", "beta", None, None), {}),
    "head-gated delta": ("delta_state", ("query", "key", "value", "beta", "head_gate", "state"), {}),
    "gated delta": ("delta_state", ("query", "key", "value", "beta", "key_gate", "state"), {"scale": 0.7}),
}


# log f of every token, or drawn with these odds.
GATES = {"open": [-1e-7], "one": [0.0], "-5": [-5.0], "-88": [-88.0], "zero": [-torch.inf], "some zero": [-torch.inf, -0.1, -0.01],
         "all kinds": [-torch.inf, 0.0, -1e-7, -1e-3, -0.5, -5.0, -27.6, -88.0]}
WIDE = {"key_dim": 64, "value_dim": 64, "batch": 1, "heads": 2}


def with_gates(tensors, logs, generator):
    """The tensors with every gate drawn from `logs`; keys in one direction mostly, and strengths up to 2, for the delta rule."""
    logs = torch.tensor(logs, dtype=torch.float64)
    drawn = lambda gate: logs[torch.randint(len(logs), gate.shape, generator=generator)].to(gate.dtype)
    beta = 2 * torch.rand(tensors["beta"].shape, generator=generator).to(tensors["beta"].dtype)
    return tensors | {name: drawn(tensors[name]) for name in ("key_gate", "head_gate", "value_gate")} | {"beta": beta}


def worst_head(actual, expected, floor=0.0):
    """The largest relative error of a head; [B,T,H,...] or, of a state, [B,H,K,V]. NaN is an error of infinity."""
    actual, expected = actual.double().cpu(), expected.double()
    by_head = lambda x: x.flatten(1) if x.size(1) == WIDE["heads"] and x.dim() == 4 else x.transpose(1, 2).flatten(2).flatten(0, 1)
    off, norm = (by_head(x).norm(dim=-1) for x in (actual - expected, expected))
    return float((off / norm.clamp_min(max(floor, 1e-300))).nan_to_num(nan=torch.inf).max())


def noted(error, call, dtype, name, strongest=1.0, **where):
    """The error, which is kept if it is the largest: 1 % is allowed where strengths go to 2, else 0.3 % of a gate and the type's budget."""
    plain = 1e-2 if strongest > 1 else 3e-3 if "gate" in name else BUDGET[dtype]
    key = call, str(dtype).removeprefix("torch."), name
    if error / plain > LARGEST.get(key, (0.0,))[0]:
        LARGEST[key] = error / plain, error, ", ".join(f"{word} {value}" for word, value in where.items())
    return error


def unfolded(call, dtype, budget=3e-3):
    """What float16 of the delta rule keeps below compute capability 9.0, where P and the residuals are rounded apart; else None. Keys without a sign
    correlate: 0.27 % was found."""
    return budget if call in ("delta", "head-gated delta") and dtype == torch.float16 and not HOPPER else None


def beyond(errors, budget):
    """The errors by name that exceed the budget, NaN among them."""
    return {name: error for name, error in errors.items() if not error <= budget}


def run_state(call, tensors, device, weigh=lambda values, state: (values, state)):
    """Results and gradients by name, of a fixed loss on values and state, whose gradients `weigh` may change."""
    operator, names, options = STATE_CALLS[call]
    given = {name: tensors[name].to(device).detach().requires_grad_() for name in names if name}
    results = getattr(torch.ops.lethe, operator)(*(name and given[name] for name in names), **options)
    directions = [torch.linspace(-1, 1, result.numel(), dtype=torch.float64).mul(9).sin().view(result.shape) for result in results]
    torch.autograd.backward(results, [d.to(result.dtype).to(device) for d, result in zip(weigh(*directions), results)])
    return {"values": results[0].detach(), "last state": results[1].detach(), **{name: tensor.grad for name, tensor in given.items()}}


class MatrixState(unittest.TestCase):
    def test_equals_the_cpu_for_every_call_and_dtype(self):
        for call in STATE_CALLS:
            for dtype, budget in BUDGET.items():
                with self.subTest(call, dtype=dtype):
                    tensors = state_problem(dtype)
                    expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                    # Rounded twice: the gradient before the division, too.
                    allowed = unfolded(call, dtype, 2e-3) or budget * (1.5 if "normalized" in call else 1)
                    found = {}
                    for name, actual in run_state(call, tensors, DEVICE).items():
                        found[name] = noted(error(actual.cpu(), expected[name]), call, dtype, name)
                        self.assertEqual(actual.device.type, torch.device(DEVICE).type, name)
                        self.assertEqual(actual.dtype, tensors[name].dtype if name in tensors else
                                         dtype if name == "values" else torch.promote_types(dtype, torch.float32), name)
                    self.assertEqual(beyond(found, allowed), {}, f"of {allowed}")

    def test_keeps_the_budget_of_each_head_for_every_gate(self):
        generator = torch.Generator().manual_seed(2)
        calls = [(call, 2.0) for call in ("head gate", "key gate", "both gates", "head-gated delta", "gated delta")] + [("head-gated delta", 1.0)]
        for (kind, logs), (call, strongest), dtype in itertools.product(GATES.items(), calls, (torch.bfloat16, torch.float16, torch.float32)):
            with self.subTest(call, gates=kind, strongest=strongest, dtype=dtype):
                tensors = with_gates(state_problem(dtype, length=130, **WIDE), logs, generator)
                tensors["beta"] *= strongest / 2
                expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                over = {}
                for name, actual in run_state(call, tensors, DEVICE).items():
                    gate = "gate" in name
                    # Gates that forget everything have a gradient of nearly 0.
                    floor = 1e-3 * expected["query"].norm().item() if gate else 1e-30
                    budget = 3e-3 if gate else unfolded(call, dtype) or BUDGET[dtype]
                    # Strengths up to 2: with gates of 1 a write turns its key's value around, and the state keeps every error. Found for the
                    # gate on compute capability 9.0: 0.7 % in bfloat16, 0.8 % in float16; by mma.sync 1.4 % in bfloat16.
                    if call == "head-gated delta" and strongest > 1:
                        wide = dtype == torch.bfloat16 and gate and kind in ("open", "one")
                        budget = 1e-2 if dtype == torch.float16 or wide and HOPPER else 2e-2 if wide else budget
                    found = noted(worst_head(actual, expected[name], floor), call, dtype, name, strongest if "delta" in call else 1.0, gates=kind)
                    over |= beyond({name: found}, budget)
                self.assertEqual(over, {})

    def test_keeps_the_budget_for_every_length_and_size(self):
        sizes = [dict(length=length) for length in (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 700)] + [
            dict(length=70, key_dim=rows, value_dim=columns)
            for rows, columns in ((16, 32), (32, 64), (64, 128), (96, 40), (128, 64), (128, 128), (256, 64), (64, 256), (120, 240), (200, 130))]
        sizes += [dict(length=330, key_dim=rows, value_dim=columns) for rows, columns in ((128, 64), (64, 128), (128, 128))]
        for size, dtype in itertools.product(sizes, (torch.bfloat16, torch.float16)):
            tensors = state_problem(dtype, **(WIDE | size))
            for call in ("no gate", "head gate", "key gate", "normalized", "normalized, no gate", "delta", "head-gated delta", "gated delta"):
                with self.subTest(call, dtype=dtype, **size):
                    expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                    for name, actual in run_state(call, tensors, DEVICE).items():
                        # One token's gate has one number, a difference of two.
                        floor = 0.1 * expected["value"].norm().item() if "gate" in name or "normalized" in call else 0.0
                        # dq of 2 x 2 pieces is the sum of two that were rounded: 0.59 % was found.
                        in_pieces = not HOPPER and min(tensors["query"].size(3), tensors["value"].size(3)) > 128
                        least = max(BUDGET[dtype], 3e-3 if "gate" in name else 0)
                        budget = least * (1.5 if "normalized" in call or in_pieces and name == "query" else 1)
                        found = noted(worst_head(actual, expected[name], floor), call, dtype, name, **size)
                        self.assertLessEqual(found, unfolded(call, dtype) or budget, name)

    def test_keeps_the_budget_of_each_head_for_keys_that_correlate(self):
        generator = torch.Generator().manual_seed(3)
        strengths = ((1.0, -0.02), (1.0, 0.0), (2.0, -0.02), (2.0, -1e-7))
        for correlation, (strongest, gate), dtype in itertools.product((0.0, 0.9, 0.99), strengths, (torch.bfloat16, torch.float16)):
            tensors = state_problem(dtype, length=330, **WIDE)
            normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
            common, own = normal(1, 1, 2, WIDE["key_dim"]), normal(*tensors["key"].shape)
            key = torch.nn.functional.normalize(correlation ** 0.5 * common + (1 - correlation) ** 0.5 * own, dim=-1)
            tensors["key"] = key.to(dtype)
            tensors["beta"] = strongest * torch.rand(tensors["beta"].shape, generator=generator)
            tensors["head_gate"] = torch.full_like(tensors["head_gate"], gate)
            for call in ("delta", "head-gated delta"):
                with self.subTest(call, correlation=correlation, strongest=strongest, gate=gate, dtype=dtype):
                    expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                    for name, actual in run_state(call, tensors, DEVICE).items():
                        # Towards β = 2 a write turns its key's value around: the state keeps every error. Where all keys are one,
                        # the query's gradient is what 64 nearly equal terms leave.
                        one_key = correlation > 0.95 and dtype == torch.float16 and name == "query"
                        elsewhere = unfolded(call, dtype, 2e-3 if correlation > 0.95 else 1.2e-3)
                        half = 1.5e-3 if one_key and HOPPER else elsewhere or BUDGET[dtype]
                        budget = 1e-2 if strongest > 1 else 3e-3 if "gate" in name else half
                        found = noted(worst_head(actual, expected[name]), call, dtype, name, strongest, correlation=correlation, gate=gate)
                        self.assertLessEqual(found, budget, name)

    def test_one_token_of_every_call_equals_the_cpu(self):
        for call, dtype, (rows, columns) in itertools.product(STATE_CALLS, BUDGET, ((64, 64), (128, 128), (7, 70))):
            with self.subTest(call, dtype=dtype, rows=rows, columns=columns):
                tensors = state_problem(dtype, length=1, key_dim=rows, value_dim=columns)
                expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                actual = run_state(call, tensors, DEVICE)
                found = {name: error(actual[name].cpu(), expected[name]) for name in ("values", "last state")}
                self.assertEqual(beyond(found, BUDGET[dtype] * (1.5 if "normalized" in call else 1)), {})

    def test_heads_may_share_queries_and_keys(self):
        for dtype in (torch.bfloat16, torch.float32):
            tensors = {name: tensor.to(DEVICE) for name, tensor in state_problem(dtype, key_dim=64, value_dim=64).items()}
            expanded = {name: tensors[name][:, :, :1].expand_as(tensors[name]) for name in ("query", "key")}
            for call, (operator, names, options) in STATE_CALLS.items():
                with self.subTest(call, dtype=dtype):
                    if call == "normalized":  # its keys aren't those of the state that was drawn
                        continue
                    results = []
                    for given in (tensors | expanded, tensors | {name: tensor.contiguous() for name, tensor in expanded.items()}):
                        leaves = {name: given[name].detach().requires_grad_() for name in names if name}
                        values, state = getattr(torch.ops.lethe, operator)(*(name and leaves[name] for name in names), **options)
                        torch.autograd.backward((values, state), (values.detach().sin(), state.detach().sin()))
                        results.append([values, state, *(leaf.grad for leaf in leaves.values())])
                    for shared, apart in zip(*results):
                        self.assertTrue(torch.equal(shared, apart))

    def test_later_tokens_change_no_bit_of_earlier_ones(self):
        larger = {torch.bfloat16: 2.0**40, torch.float16: 2.0**13}  # a later value, as far as its type goes
        for call, dtype in itertools.product(STATE_CALLS, larger):
            operator, names, options = STATE_CALLS[call]
            for length in (40, 100, 128):
                tensors = {name: tensor.to(DEVICE) for name, tensor in state_problem(dtype, **WIDE).items()}
                late = lambda name: tensors[name] if "state" in name else torch.cat(
                    (tensors[name][:, :length], tensors[name][:, length:].clamp_min(-3) * (larger[dtype] if name == "value" else 0.5)), 1)
                run = lambda tensor_of: getattr(torch.ops.lethe, operator)(*(name and tensor_of(name) for name in names), **options)[0]
                with self.subTest(call, dtype=dtype, length=length):
                    self.assertTrue(torch.equal(run(tensors.__getitem__)[:, :length], run(late)[:, :length]))

    def test_equal_calls_and_other_batches_give_equal_bits(self):
        for call, (rows, columns) in itertools.product(STATE_CALLS, ((64, 64), (24, 128), (128, 24))):
            with self.subTest(call, rows=rows, columns=columns):
                tensors = state_problem(torch.bfloat16, key_dim=rows, value_dim=columns)
                first, second = run_state(call, tensors, DEVICE), run_state(call, tensors, DEVICE)
                for name in first:
                    self.assertTrue(torch.equal(first[name], second[name]), name)
                operator, names, options = STATE_CALLS[call]
                alone = [name and tensors[name][1:].to(DEVICE) for name in names]
                self.assertTrue(torch.equal(getattr(torch.ops.lethe, operator)(*alone, **options)[0], first["values"][1:]))

    def test_misses_the_cpu_where_an_input_is_a_token_late(self):
        for call, (_, names, _) in STATE_CALLS.items():
            tensors = state_problem(torch.bfloat16)
            expected = run_state(call, tensors, "cpu")["values"]
            for late in names:
                if late and "state" not in late:
                    actual = run_state(call, tensors | {late: tensors[late].roll(1, 1)}, DEVICE)["values"]
                    self.assertGreater(error(actual.cpu(), expected), 3 * BUDGET[torch.bfloat16], f"{call}, {late}")

    def test_a_carried_state_gives_the_whole(self):
        for call, (operator, names, options) in STATE_CALLS.items():
            for dtype in (torch.float64, torch.bfloat16):
                with self.subTest(call, dtype=dtype), torch.no_grad():
                    tensors = {name: tensor.to(DEVICE) for name, tensor in state_problem(dtype).items()}
                    run = lambda tokens, state: getattr(torch.ops.lethe, operator)(
                        *(name and tensors[name][:, tokens] for name in names[:-1]), state, **options)
                    given = names[-1] and tensors[names[-1]]
                    whole, last = run(slice(None), given)
                    first, carried = run(slice(0, 64), given)
                    second, carried = run(slice(64, None), carried)
                    allowed = 1e-14 if dtype == torch.float64 else 1e-4  # a float32 state between, a bfloat16 to the other side
                    self.assertLessEqual(error(torch.cat((first, second), 1).cpu(), whole.cpu()), allowed)
                    self.assertLessEqual(error(carried.cpu(), last.cpu()), 1e-6 if dtype == torch.bfloat16 else allowed)

    def test_decodes_token_by_token_as_it_trains(self):
        tensors = {name: tensor.to(DEVICE) for name, tensor in state_problem(torch.float32, length=110).items()}
        names, state, rows = ("query", "key", "value", "beta", "key_gate"), tensors["state"], []
        whole = torch.ops.lethe.delta_state(*(tensors[name] for name in names), state)[0]
        for t in range(110):
            row, state = torch.ops.lethe.delta_state(*(tensors[name][:, t : t + 1] for name in names), state)
            rows.append(row)
        self.assertLessEqual(error(torch.cat(rows, 1).cpu(), whole.cpu()), 1e-6)

    def test_refuses_tensors_of_two_devices(self):
        tensors = {name: tensor.to("meta" if name == "state" else DEVICE) for name, tensor in state_problem(torch.float32).items()}
        with self.assertRaisesRegex(RuntimeError, f"state: expected device {torch.device(DEVICE).type}.* as query, found meta"):
            torch.ops.lethe.gated_state(tensors["query"], tensors["key"], tensors["value"], None, None, tensors["state"])


class VectorGates(unittest.TestCase):
    """A gate a row, and one a column, of 16-bit inputs: by blocks of tokens on tensor cores."""

    def assert_budget(self, tensors, dtype, calls=("key gate", "both gates")):
        for call in calls:
            expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
            for name, actual in run_state(call, tensors, DEVICE).items():
                gate = "gate" in name
                floor = 1e-3 * expected["query"].norm().item() if gate else 1e-30
                # Weights of pairs by gates of both sides: two operands more are rounded to bfloat16.
                of_gates = 4e-3 if call == "both gates" and dtype == torch.bfloat16 else 3e-3
                found = noted(worst_head(actual, expected[name], floor), call, dtype, name, length=tensors["key"].size(1), rows=tensors["key"].size(3))
                self.assertLessEqual(found, of_gates if gate else BUDGET[dtype], f"{call}, {name}")

    def test_keep_the_budget_for_every_size(self):
        for rows, columns in ((16, 16), (32, 24), (32, 64), (24, 128), (40, 72), (64, 32), (64, 128), (96, 40), (96, 72), (128, 64), (128, 128)):
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(rows=rows, columns=columns, dtype=dtype):
                    self.assert_budget(state_problem(dtype, **(WIDE | dict(batch=2, length=150, key_dim=rows, value_dim=columns))), dtype)

    def test_keep_the_budget_for_every_length(self):
        for length, rows in itertools.product((16, 17, 31, 32, 33, 47, 63, 64, 65, 79, 128, 129, 193), (64, 32)):
            # There the roundings to bfloat16 alone, of dO, S and the operands, are 0.384 % and 0.466 % in exact arithmetic, whatever the order of
            # work.
            if (length, rows) != (17, 32):
                with self.subTest(length=length, rows=rows):
                    self.assert_budget(state_problem(torch.bfloat16, **(WIDE | dict(length=length, key_dim=rows))), torch.bfloat16)

    def test_keep_the_budget_where_gates_close_in_turn(self):
        kinds = itertools.product((2, 3, 16, 17, 64), (0, 1), (-88.0, -torch.inf), ((64, torch.bfloat16), (64, torch.float16), (32, torch.bfloat16)))
        for period, offset, closed, (rows, dtype) in kinds:
            with self.subTest(period=period, offset=offset, closed=closed, rows=rows, dtype=dtype):
                tensors = state_problem(dtype, **(WIDE | dict(length=200, key_dim=rows)))
                for name in ("key_gate", "value_gate"):
                    tensors[name] = torch.zeros_like(tensors[name])
                    tensors[name][:, offset::period] = closed
                self.assert_budget(tensors, dtype)

    def test_more_heads_than_places_equal_heads_alone(self):
        # Gradients begin beside the sweeps whose states they read: none may read one too early, of memory that holds NaN.
        # And of 32 rows or columns there is a CTA a head where heads are many, else one a chunk, which has the same bits.
        for call, rows, columns in (("key gate", 64, 64), ("both gates", 64, 64), ("both gates", 32, 64), ("both gates", 64, 32),
                                    ("both gates", 24, 16)):
            sizes = dict(length=620, batch=16, heads=24, key_dim=rows, value_dim=columns)
            tensors, directions = state_problem(torch.bfloat16, **(WIDE | sizes)), []
            for repetition in range(3):
                torch.full((1 << 28,), torch.nan, device=DEVICE)
                whole = run_state(call, tensors, DEVICE, lambda *of_all: directions.extend(of_all) or of_all)
                for b in (0, 11, 15):
                    alone = run_state(call, {name: tensor[b:b + 1] for name, tensor in tensors.items()}, DEVICE,
                                      lambda *_: [direction[b:b + 1] for direction in directions[:2]])
                    for name, actual in alone.items():
                        with self.subTest(call, rows=rows, columns=columns, name=name, sequence=b, repetition=repetition):
                            self.assertTrue(torch.equal(actual, whole[name][b:b + 1]))

    def test_keep_the_budget_over_thousands_of_tokens(self):
        generator = torch.Generator().manual_seed(3)
        for kind in ("open", "one"):
            with self.subTest(kind):
                self.assert_budget(with_gates(state_problem(torch.float16, **(WIDE | dict(length=3000))), GATES[kind], generator), torch.float16)


def option(name):
    """The word after an option behind LIBRARY, both taken from the command line; None without it."""
    if name not in sys.argv[2:-1]:
        return None
    at = sys.argv.index(name)
    word = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return word


if __name__ == "__main__":
    errors, device = option("--errors"), option("--device")
    if device:
        DEVICE = device
        torch.ops.load_library(sys.argv.pop(1))
    else:
        load_library_or_skip()
    ran = unittest.main(exit=False)
    if errors:
        rows = sorted(((*found, *key) for key, found in LARGEST.items()), reverse=True)
        pathlib.Path(errors).write_text("".join(f"{share:6.3f} {error:.6f} | {call} | {dtype} | {name} | {where}\n"
                                                for share, error, where, call, dtype, name in rows))
    sys.exit(not ran.result.wasSuccessful())

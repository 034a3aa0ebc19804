"""gated_state and delta_state on a GPU, against the CPU implementation.

usage: python3 tests/cuda/test_matrix_state.py LIBRARY [--device DEVICE] [unittest arguments]
  DEVICE  where they run (default cuda); "--device cpu" tries the tests themselves without a GPU
"""
import sys
import unittest

import torch
from test_operators import BUDGET, error, load_library_or_skip

DEVICE = "cuda"


def state_problem(dtype, length=150, batch=2, heads=3, key_dim=7, value_dim=10):
    """Arguments of gated_state and delta_state by name; gates of exactly 0 and 1 among them, features positive, keys of norm 1."""
    generator = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)

    def log_gate(*shape):
        gate = torch.nn.functional.logsigmoid(normal(batch, length, heads, *shape) + 2)
        gate[:, 100, 1] = -torch.inf
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
    "key gate": ("gated_state", ("query", "key", "value", "key_gate", None, "state"), {"scale": 0.7}),
    "both gates": ("gated_state", ("query", "key", "value", "key_gate", "value_gate", "state"), {}),
    "normalized": ("gated_state", ("query", "key", "value", "head_gate", None, "normalized_state"), {"normalize": True}),
    "delta": ("delta_state", ("query", "key", "value", "beta", None, None), {}),
    "gated delta": ("delta_state", ("query", "key", "value", "beta", "key_gate", "state"), {"scale": 0.7}),
}


def run_state(call, tensors, device):
    """Results and gradients by name, of a fixed loss on values and state."""
    operator, names, options = STATE_CALLS[call]
    given = {name: tensors[name].to(device).detach().requires_grad_() for name in names if name}
    results = getattr(torch.ops.lethe, operator)(*(name and given[name] for name in names), **options)
    directions = [torch.linspace(-1, 1, result.numel(), dtype=torch.float64).mul(9).sin().view(result.shape) for result in results]
    torch.autograd.backward(results, [d.to(result.dtype).to(device) for d, result in zip(directions, results)])
    return {"values": results[0].detach(), "last state": results[1].detach(), **{name: tensor.grad for name, tensor in given.items()}}


class MatrixState(unittest.TestCase):
    def test_equals_the_cpu_for_every_call_and_dtype(self):
        for call in STATE_CALLS:
            for dtype, budget in BUDGET.items():
                with self.subTest(call, dtype=dtype):
                    tensors = state_problem(dtype)
                    expected = run_state(call, {name: tensor.double() for name, tensor in tensors.items()}, "cpu")
                    for name, actual in run_state(call, tensors, DEVICE).items():
                        self.assertEqual(actual.device.type, torch.device(DEVICE).type, name)
                        self.assertEqual(actual.dtype, tensors[name].dtype if name in tensors else
                                         dtype if name == "values" else torch.promote_types(dtype, torch.float32), name)
                        self.assertLessEqual(error(actual.cpu(), expected[name]), budget, name)

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


if __name__ == "__main__":
    if sys.argv[2:3] == ["--device"]:
        DEVICE = sys.argv.pop(3)
        del sys.argv[2]
        torch.ops.load_library(sys.argv.pop(1))
    else:
        load_library_or_skip()
    unittest.main()

"""Every row of the table of mechanisms in optimized/README.md: its call, run verbatim, computes the paper's own equation.

usage: test_mechanisms.py <path of liblethe_torch.so> [--device DEVICE] [unittest arguments]
  DEVICE  of the operators, whose queries, keys and values are then float16, of 80 tokens and states of 64 × 64; on a GPU each row must run kernels
          of this library. "--device cpu" tries the test itself without one
"""

import functools
import re
import sys
import unittest
from pathlib import Path

import torch
from torch import outer

README = Path(__file__).parents[2] / "optimized" / "README.md"
BATCH, LENGTH, HEADS, KEY_DIM, VALUE_DIM = 2, 12, 3, 4, 5
BUDGET = 1e-12
DEVICE = None  # where queries, keys and values are float16


def features(x):
    return torch.nn.functional.elu(x) + 1


def recurrence(row, **shapes):
    """Declares the equation of a row: a function of one head's inputs [T,·] that yields o_t, and each input's shape after [B,T,H]."""
    def declare(equation):
        MECHANISMS[row] = (equation, shapes)
        return equation
    return declare


MECHANISMS = {}
QKV = {"q": "K", "k": "K", "v": "V"}


@recurrence("linear attention, the additive rule (T2FW, Eq. 3)", **QKV)
def additive(q, k, v):
    state = torch.zeros(VALUE_DIM, KEY_DIM)  # in the paper's layout: a row for each entry of the value
    for t in range(LENGTH):
        state = state + outer(v[t], k[t])
        yield state @ q[t]


@recurrence("the same with attention norm", **QKV)
def additive_normalized(q, k, v):
    state, normalizer = torch.zeros(VALUE_DIM, KEY_DIM), torch.zeros(KEY_DIM)
    for t in range(LENGTH):
        state, normalizer = state + outer(v[t], features(k[t])), normalizer + features(k[t])
        yield state @ features(q[t]) / (normalizer @ features(q[t]))


@recurrence("RetNet", **QKV, log_γ="head")
def retention(q, k, v, log_γ):
    state = torch.zeros(KEY_DIM, VALUE_DIM)
    for t in range(LENGTH):
        state = log_γ.exp() * state + outer(k[t], v[t])
        yield q[t] @ state


@recurrence('Mamba-2 (SSD), "simple GLA"', C="K", B="K", x="V", Δ="", A="head")
def state_space_dual(C, B, x, Δ, A):
    state = torch.zeros(KEY_DIM, VALUE_DIM)
    for t in range(LENGTH):
        state = torch.exp(Δ[t] * A) * state + outer(Δ[t] * B[t], x[t])
        yield C[t] @ state


@recurrence("linear attention with a forget gate (Forgetting Transformer, Eq. 7–10)", **QKV, log_f="")
def forgetting_linear_attention(q, k, v, log_f):
    state, normalizer = torch.zeros(VALUE_DIM, KEY_DIM), torch.zeros(KEY_DIM)
    for t in range(LENGTH):
        state = log_f[t].exp() * state + outer(v[t], features(k[t]))
        normalizer = log_f[t].exp() * normalizer + features(k[t])
        yield state @ features(q[t]) / (normalizer @ features(q[t]))


@recurrence("GLA", **QKV, log_f="K")
def gated_linear_attention(q, k, v, log_f):
    state = torch.zeros(KEY_DIM, VALUE_DIM)
    for t in range(LENGTH):
        state = outer(log_f[t].exp(), torch.ones(VALUE_DIM)) * state + outer(k[t], v[t])
        yield q[t] @ state


@recurrence("HGRN2", q="K", v="V", log_f="K")
def hierarchically_gated(q, v, log_f):
    state = torch.zeros(KEY_DIM, VALUE_DIM)
    for t in range(LENGTH):
        forget = log_f[t].exp()
        state = torch.diag(forget) @ state + outer(1 - forget, v[t])
        yield state.T @ q[t]


@recurrence("gated fast weights (RFA-Gate; T2FW, Eq. 5)", **QKV, log_g="")
def random_feature_gate(q, k, v, log_g):
    state = torch.zeros(VALUE_DIM, KEY_DIM)
    for t in range(LENGTH):
        gate = log_g[t].exp()
        state = gate * state + (1 - gate) * outer(v[t], k[t])
        yield state @ q[t]


@recurrence("gated fast weights with attention norm", **QKV, log_g="")
def random_feature_gate_normalized(q, k, v, log_g):
    state, normalizer = torch.zeros(VALUE_DIM, KEY_DIM), torch.zeros(KEY_DIM)
    for t in range(LENGTH):
        gate = log_g[t].exp()
        state = gate * state + (1 - gate) * outer(v[t], features(k[t]))
        normalizer = gate * normalizer + (1 - gate) * features(k[t])
        yield state @ features(q[t]) / (normalizer @ features(q[t]))


@recurrence("decay fast weights (T2FW, Eq. 7)", **QKV, f="K", z="V")
def decay(q, k, v, f, z):
    state = torch.zeros(VALUE_DIM, KEY_DIM)
    for t in range(LENGTH):
        state = outer(z[t].sigmoid(), f[t].sigmoid()) * state + outer(v[t], k[t])
        yield state @ q[t]


@recurrence("delta fast weights, DeltaNet (T2FW, Eq. 6)", **QKV, beta="")
def delta(q, k, v, beta):
    state = torch.zeros(VALUE_DIM, KEY_DIM)
    for t in range(LENGTH):
        state = state - beta[t] * outer(state @ k[t], k[t]) + beta[t] * outer(v[t], k[t])
        yield state @ q[t]


@recurrence("delta fast weights with attention norm", **QKV, beta="over K")  # φ(k)'s length is about K: the rule would diverge
def delta_normalized(q, k, v, beta):
    state, normalizer = torch.zeros(VALUE_DIM, KEY_DIM), torch.zeros(KEY_DIM)
    for t in range(LENGTH):
        key, query = features(k[t]), features(q[t])
        state, normalizer = state + beta[t] * outer(v[t] - state @ key, key), normalizer + key
        yield state @ query / (normalizer @ query)


@recurrence("Gated DeltaNet", **QKV, beta="", log_f="")
def gated_delta_net(q, k, v, beta, log_f):
    state = torch.zeros(VALUE_DIM, KEY_DIM)
    for t in range(LENGTH):
        state = state @ (log_f[t].exp() * (torch.eye(KEY_DIM) - beta[t] * outer(k[t], k[t]))) + beta[t] * outer(v[t], k[t])
        yield state @ q[t]


@recurrence("Kimi Delta Attention", **QKV, beta="", log_f="K")
def kimi_delta_attention(q, k, v, beta, log_f):
    state = torch.zeros(KEY_DIM, VALUE_DIM)
    for t in range(LENGTH):
        state = (torch.eye(KEY_DIM) - beta[t] * outer(k[t], k[t])) @ torch.diag(log_f[t].exp()) @ state + beta[t] * outer(k[t], v[t])
        yield state.T @ q[t]


def readme_calls():
    """The code of each row of the table, by the row's name."""
    section = README.read_text(encoding="utf-8").split("| mechanism | call |\n|---|---|\n")[1].split("\n\n")[0]
    return {name: re.search("`([^`]*)`", call)[1] for name, call in re.findall(r"^\| (.*?) \| (.*) \|$", section, re.M)}


def inputs_of(shapes):
    generator = torch.Generator().manual_seed(3)
    columns = {"K": (KEY_DIM,), "V": (VALUE_DIM,), "": (), "over K": ()}
    tensors = {}
    for name, shape in shapes.items():
        size = (HEADS,) if shape == "head" else (BATCH, LENGTH, HEADS, *columns[shape])
        tensor = torch.randn(size, generator=generator)
        if name.startswith("log_"):
            tensor = torch.nn.functional.logsigmoid(tensor)
        elif name == "A":
            tensor = -tensor.exp()
        elif name in ("beta", "Δ"):
            tensor = tensor.sigmoid() / (KEY_DIM if shape == "over K" else 1)
        elif name == "k":
            tensor = torch.nn.functional.normalize(tensor, dim=-1)
        if DEVICE is not None:
            tensor = tensor.half().double()
        tensors[name] = tensor.requires_grad_()
    return tensors


def operator(name):
    """The operator, of tensors of float64; on DEVICE with queries, keys and values in float16, all else in float32."""
    def call(*arguments, **options):
        narrow = [tensor.to(DEVICE, torch.float16) for tensor in arguments[:3]]
        wide = [tensor if tensor is None else tensor.to(DEVICE, torch.float32) for tensor in arguments[3:]]
        return [result.cpu().double() for result in getattr(torch.ops.lethe, name)(*narrow, *wide, **options)]
    return getattr(torch.ops.lethe, name) if DEVICE is None else call


def run_call(code, tensors):
    """Values of a call of the table; its names are those in `tensors`, the sizes, and Torch's functions."""
    functional = torch.nn.functional
    names = {"gated_state": operator("gated_state"), "delta_state": operator("delta_state"), "φ": features,
             "expm1": torch.expm1, "logsigmoid": functional.logsigmoid, "T": LENGTH, "B": BATCH, "H": HEADS,
             "ones": torch.ones(BATCH, LENGTH, HEADS, 1)}
    result = eval(code, names | tensors)
    return result if isinstance(result, torch.Tensor) else result[0]


def run_equation(equation, tensors):
    def of_head(tensor, batch, head):
        return tensor[head] if tensor.dim() == 1 else tensor[batch, :, head]

    heads = [torch.stack(list(equation(**{name: of_head(tensor, batch, head) for name, tensor in tensors.items()})))
             for batch in range(BATCH) for head in range(HEADS)]
    return torch.stack(heads).view(BATCH, HEADS, LENGTH, VALUE_DIM).transpose(1, 2)


def error(actual, expected):
    return float((actual - expected).detach().norm() / expected.detach().norm())


def for_every_row(test):
    """Expands a test of one row's call, equation and inputs into a test of each."""
    @functools.wraps(test)
    def run(self):
        calls = readme_calls()
        for row, (equation, shapes) in MECHANISMS.items():
            with self.subTest(row):
                test(self, calls[row], equation, inputs_of(shapes))
    return run


def own_kernels(call):
    """Of the kernels of a GPU that a call runs, those of this library, and all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages() if event.device_time_total]
    return [name for name in names if "lethe::matrix_state" in name], names


class Mechanisms(unittest.TestCase):
    def test_are_the_rows_of_the_readme(self):
        self.assertEqual(list(readme_calls()), list(MECHANISMS))

    @for_every_row
    def test_are_the_papers_equations_by_the_calls_of_the_readme(self, code, equation, tensors):
        actual, expected = run_call(code, tensors), run_equation(equation, tensors)
        self.assertLess(error(actual, expected), BUDGET)
        direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
        gradients = [torch.autograd.grad((values * direction).sum(), list(tensors.values())) for values in (actual, expected)]
        # Rounded before the division, too; where a row divides itself, what two calls give a query nearly cancels.
        allowed = BUDGET if DEVICE is None else 5e-2 if "/" in code else 2 * BUDGET if "normalize" in code else BUDGET
        for name, a, e in zip(tensors, *gradients):
            self.assertLess(error(a, e), allowed, name)
        if DEVICE == "cuda":
            own, names = own_kernels(lambda: run_call(code, tensors).sum().backward())
            self.assertGreaterEqual(len(own), 2, names)  # forward and backward; ATen's loop over the tokens has none

    @for_every_row
    def test_miss_the_equation_where_any_input_is_a_token_late(self, code, equation, tensors):
        expected = run_equation(equation, tensors)
        for name, tensor in tensors.items():
            late = tensor.roll(1, 0 if tensor.dim() == 1 else 1)  # one number a head: of another head
            self.assertGreater(error(run_call(code, tensors | {name: late}), expected), 1e-2 if DEVICE is None else 2 * BUDGET, name)

    @for_every_row
    def test_miss_the_equation_at_the_default_scale_unless_it_cancels(self, code, equation, tensors):
        missed = error(run_call(code.replace(", scale=1", ""), tensors), run_equation(equation, tensors))
        self.assertAlmostEqual(missed, 0 if "normalize=True" in code or "/" in code else 1 - KEY_DIM ** -0.5, delta=max(1e-7, BUDGET))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    if sys.argv[2:3] == ["--device"]:
        DEVICE, BATCH, LENGTH, HEADS, KEY_DIM, VALUE_DIM, BUDGET = sys.argv.pop(3), 1, 80, 2, 64, 64, 3e-3
        del sys.argv[2]
    torch.ops.load_library(sys.argv.pop(1))
    unittest.main()

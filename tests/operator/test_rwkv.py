"""Trained RWKV models compute their published logits where gated_state and delta_state keep the state of their time mixing.

usage: test_rwkv.py <path of liblethe_torch.so> [--device DEVICE] [unittest arguments]
  DEVICE  of the models (default cpu)

LETHE_RWKV_FILES is a folder with tiny-rwkv-*-FP32.bin and expected-logits-*.bin, which github.com/RWKV/rwkv.cpp has in tests/. All else of a
model is plain Torch. w: decay, u: bonus of the current token, as in the papers (RWKV-4: 2305.13048, 5: 2404.05892, 7: 2503.14456).

RWKV-4  o_t = (a_{t−1} + e^(u+k_t) v_t) / (b_{t−1} + e^(u+k_t)) for each channel; a and b are decaying sums of e^k v and e^k. Normalised gated_state,
        a channel a head: a token reads with its bonus in a second row, which a gate of 0 erases, and then writes into the first row.
RWKV-5  S_t = diag(w) S_{t−1} + k_t v_tᵀ, o_t = (S_{t−1} + diag(u) k_t v_tᵀ)ᵀ r_t. gated_state after an empty token, so that r_t reads what the
        tokens before t have written; u's term is added. 5.1 has one decay a head, 5.2 one a row.
RWKV-7  S_t = (diag(w_t) − (α_t∘κ_t) κ_tᵀ) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ r_t. delta_state on S with row i divided by d_i = c √(α_i w_i), which
        gives the removal one key on both sides, κ √(α/w), with β = 1; the scalar c keeps the largest gate w_t d_{t−1} / d_t at 1. A write that
        removes nothing is two reflections: β = 2, the unit key of k/d, the values 0 and |k/d| v / 2.
"""

import functools
import os
import struct
import sys
import unittest
from math import exp, prod
from pathlib import Path

import torch
from torch.nn import functional

FILES = os.environ.get("LETHE_RWKV_FILES")
PROMPT = b'"in'
TEXT = b'"in the beginning God created the heaven and the earth. And the earth was without form, and void"'
BUDGET, SUM_BUDGET = 1e-5, 1e-3  # of one logit; of the sum of 256 differences, all that rwkv.cpp's own test looks at


def floats(content):
    return torch.frombuffer(bytearray(content), dtype=torch.float32)


def read_model(path, dtype):
    """Tensors by name. After six integers each has: number of dimensions, length of its name, type (0: float32), sizes from the last, name, data."""
    content, tensors, at = path.read_bytes(), {}, 24
    assert struct.unpack_from("<i", content)[0] == 0x67676D66, f"{path}: expected the magic number ggmf"
    while at < len(content):
        dimensions, letters, kind, *sizes = struct.unpack_from("<6i", content, at)
        assert kind == 0, f"{path}: expected float32"
        sizes, name = sizes[:dimensions][::-1], at + 12 + 4 * dimensions
        data, at = name + letters, name + letters + 4 * prod(sizes)
        tensors[content[name:data].decode()] = floats(content[data:at]).reshape(sizes).to(torch.get_default_device(), dtype)
    return tensors


def in_turn(*tensors):
    """[T,…] each: the first of every tensor, the second of every tensor, …"""
    return torch.stack(tensors, 1).flatten(0, 1)


class Model:
    """What versions share. Each call continues after the tokens of the calls before."""

    def __init__(self, path, dtype, decay=1.0):
        self.weights, self.decay = read_model(path, dtype), decay  # log w is multiplied by `decay`
        self.carried = {}  # by layer: state, and last inputs of both mixings

    def logits(self, tokens):
        x = self.layer_norm("blocks.0.ln0", self.weights["emb.weight"][list(tokens)])
        for layer in range(sum(name.endswith(".ln1.weight") for name in self.weights)):
            self.block = f"blocks.{layer}."
            x = x + self.time_mixing(self.layer_norm(self.block + "ln1", x))
            x = x + self.channel_mixing(self.layer_norm(self.block + "ln2", x))
        return self.layer_norm("ln_out", x) @ self.weights["head.weight"].T

    def layer_norm(self, name, x):
        return functional.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"])

    def group_norm(self, x, eps):
        """Over each head of x [T,H,V]; its heads side by side."""
        return functional.group_norm(x.flatten(1), x.shape[1], self.of("att.ln_x.weight"), self.of("att.ln_x.bias"), eps)

    def of(self, name):
        return self.weights[self.block + name]

    def linear(self, name, x):
        return x @ self.of(name + ".weight").T

    def before(self, mixing, x):
        """Each token's predecessor in x, or in the call before."""
        name = self.block + mixing
        previous, self.carried[name] = torch.cat((self.carried.get(name, torch.zeros_like(x[:1])), x[:-1])), x[-1:]
        return previous

    def projected(self, mixing, names, x):
        previous = self.before(mixing, x)
        for name in names:
            yield self.linear(f"{mixing}.{name}", torch.lerp(previous, x, self.of(f"{mixing}.time_mix_{name[0]}")))

    def values(self, operator, *inputs, **options):
        """The operator's values for inputs [T,H,·] of one sequence; the layer's state goes in and is kept."""
        inputs = [tensor if tensor is None else tensor[None] for tensor in inputs]
        values, self.carried[self.block] = operator(*inputs, self.carried.get(self.block), **options)
        return values[0]

    def channel_mixing(self, x):
        key, receptance = self.projected("ffn", ("key", "receptance"), x)
        return receptance.sigmoid() * self.linear("ffn.value", key.relu().square())


class Rwkv4(Model):
    def time_mixing(self, x):
        key, value, receptance = self.projected("att", ("key", "value", "receptance"), x)
        nothing, log_decay = torch.zeros_like(key), (self.decay * self.of("att.time_decay")).expand_as(key)
        # Two tokens of the operator for one: it reads, then it writes.
        keys = in_turn(torch.stack((nothing, (self.of("att.time_first") + key).exp()), -1), torch.stack((key.exp(), nothing), -1))
        first_row = in_turn(nothing, log_decay)
        gates = torch.stack((first_row, torch.full_like(first_row, -torch.inf)), -1)
        means = self.values(torch.ops.lethe.gated_state, torch.ones_like(keys), keys, in_turn(value, value)[..., None], gates, None, normalize=True)
        return self.linear("att.output", receptance.sigmoid() * means[::2, :, 0])


class Rwkv5(Model):
    def time_mixing(self, x):
        heads = self.of("att.time_decay").shape[0]
        gated = self.block + "att.gate.weight" in self.weights  # 5.2
        names = ("key", "value", "receptance", *(["gate"] if gated else []))
        key, value, query, *gate = (y.unflatten(1, (heads, -1)) for y in self.projected("att", names, x))
        log_decay = self.decay * self.of("att.time_decay").log().squeeze(-1).squeeze(-1)  # [H,K], or [H]
        bonus = self.of("att.time_faaaa" if gated else "att.time_first")[..., 0]
        written = (torch.cat((torch.zeros_like(y[:1]), y)) for y in (key, value, log_decay.expand(len(x), *log_decay.shape)))
        past = self.values(torch.ops.lethe.gated_state, torch.cat((query, torch.zeros_like(query[:1]))), *written, None, scale=1)
        y = self.group_norm(past[:-1] + (query * bonus * key).sum(-1, keepdim=True) * value, eps=1e-5)
        return self.linear("att.output", y * functional.silu(gate[0].flatten(1)) if gated else y)


class Rwkv7(Model):
    def low_rank(self, name, x, between=lambda y: y):
        return between(x @ self.of(f"att.{name}1").T) @ self.of(f"att.{name}2").T

    def time_mixing(self, x):
        shift, heads = self.before("att", x) - x, self.of("att.r_k").shape[0]
        for_r, for_w, for_k, for_v, for_a, for_g = (x + shift * share for share in self.of("att.x_rwkvag"))
        query, key, value = self.linear("att.receptance", for_r), self.linear("att.key", for_k), self.linear("att.value", for_v)
        log_decay = -self.decay * exp(-0.5) * (self.of("att.w0")[0] + self.low_rank("w", for_w, torch.tanh)).sigmoid()
        rate = (self.of("att.a0")[0] + self.low_rank("a", for_a)).sigmoid()
        if self.block == "blocks.0.":
            self.first_value = value
        else:
            value = torch.lerp(value, self.first_value, (self.of("att.v0")[0] + self.low_rank("v", for_v)).sigmoid())
        removed = key * self.of("att.k_k")[0]
        key = key * (1 + (rate - 1) * self.of("att.k_a")[0])
        query, key, value, log_decay, rate, removed = (y.unflatten(1, (heads, -1)) for y in (query, key, value, log_decay, rate, removed))
        y = self.group_norm(self.read(query, key, value, log_decay, rate, functional.normalize(removed, dim=-1)), eps=64e-5)
        y = y + ((query * key * self.of("att.r_k")).sum(-1, keepdim=True) * value).flatten(1)
        return self.linear("att.output", y * self.low_rank("g", for_g, torch.sigmoid))

    def read(self, query, key, value, log_decay, rate, removed):
        log_divisor = (rate.log() + log_decay) / 2
        gate = log_decay + torch.cat((torch.zeros_like(key[:1]), log_divisor[:-1])) - log_divisor  # the state comes undivided
        largest = gate.amax(-1, keepdim=True)
        divisor, nothing = (log_divisor + largest.cumsum(0)).exp(), torch.zeros_like(value)
        key = key / divisor
        unit, length = functional.normalize(key, dim=-1), key.norm(dim=-1, keepdim=True)
        beta = torch.tensor([1, 2, 2], dtype=key.dtype).repeat(len(key))[:, None].expand(-1, key.shape[1])
        # Three tokens of the operator for one: removal, reflection, reflection that writes.
        values = self.values(torch.ops.lethe.delta_state, in_turn(nothing, nothing, query * divisor),
                             in_turn(removed * ((rate.log() - log_decay) / 2).exp(), unit, unit),
                             in_turn(nothing, nothing, value * length / 2), beta, in_turn(gate - largest, nothing, nothing), scale=1)
        self.carried[self.block] = self.carried[self.block] * divisor[-1, :, :, None]
        return values[2::3]

    def channel_mixing(self, x):
        key = self.linear("ffn.key", x + (self.before("ffn", x) - x) * self.of("ffn.x_k")[0])
        return self.linear("ffn.value", key.relu().square())


VERSIONS = {"4v0-660K": Rwkv4, "5v1-730K": Rwkv5, "5v2-730K": Rwkv5, "7v0-834K": Rwkv7}


def for_every_version(*dtypes):
    """Expands a test of one model and its published logits into a test of each version in each dtype."""
    def expand(test):
        @functools.wraps(test)
        def run(self):
            for version, model in VERSIONS.items():
                expected = floats((Path(FILES) / f"expected-logits-{version}.bin").read_bytes()).double().to(torch.get_default_device())
                for dtype in dtypes:
                    with self.subTest(version, dtype=dtype):
                        test(self, functools.partial(model, Path(FILES) / f"tiny-rwkv-{version}-FP32.bin", dtype), expected)
        return run
    return expand


@unittest.skipUnless(FILES, "LETHE_RWKV_FILES is not set: a folder with the tiny-rwkv-*-FP32.bin and expected-logits-*.bin of "
                            "github.com/RWKV/rwkv.cpp, tests/")
class Rwkv(unittest.TestCase):
    @for_every_version(torch.float64, torch.float32)
    def test_computes_the_published_logits(self, model, expected):
        by_token = model()
        for logits in (model().logits(PROMPT)[-1], [by_token.logits([token])[0] for token in PROMPT][-1]):
            difference = logits.double() - expected
            self.assertLess(difference.abs().max().item(), BUDGET)
            self.assertLess(difference.sum().abs().item(), SUM_BUDGET)

    @for_every_version(torch.float64)
    def test_misses_them_with_another_decay(self, model, expected):
        self.assertGreater((model(decay=2).logits(PROMPT)[-1] - expected).abs().max().item(), 100 * BUDGET)

    @for_every_version(torch.float64)
    def test_continues_from_the_state_that_a_call_returned(self, model, _):
        expected = model().logits(TEXT)
        for step in (1, 40):
            continued = model()
            logits = torch.cat([continued.logits(TEXT[i:i + step]) for i in range(0, len(TEXT), step)])
            torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--device"]:
        torch.set_default_device(sys.argv.pop(3))
        del sys.argv[2]
    torch.ops.load_library(sys.argv.pop(1))
    unittest.main()

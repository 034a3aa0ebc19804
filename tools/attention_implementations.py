"""What tools/compare_attention.py compares: ours and the others, as functions of one case's inputs. A package that is not installed is left out,
with its reason.
"""
import importlib
import math
from dataclasses import dataclass
from typing import Callable

import torch

LOG_TOLERANCE = -10.0
BLOCK = 128


@dataclass
class Implementation:
    name: str
    gated: bool          # computes with the gate, and not with log f = 0
    gate_gradient: bool  # differentiates it
    forward: Callable    # Inputs → values [B, T, H, D]
    prepare: Callable = lambda inputs: None  # the user's own preparation; not timed
    lengths: tuple = (4096, 16384, 65536)    # where it takes part unasked
    sums_in_16_bits: bool = False            # ours: the gate's gradient from dS rounded to 16 bits


def lethe(pruned=False, zero_gate=False, given_bound=False):
    def forward(inputs):
        options = {"log_pruning_tolerance": LOG_TOLERANCE, "prune_by_mass": False} if pruned else {}  # the paper's bound
        if given_bound:
            options["logit_bound"] = inputs.logit_bound
        gate = inputs.zero_gate if zero_gate else inputs.log_forget
        return torch.ops.lethe.forgetting_attention(inputs.query, inputs.key, inputs.value, gate, **options)

    return forward


def by_head(tensor):
    return tensor.transpose(1, 2)


def sdpa(backend):
    def forward(inputs):
        with torch.nn.attention.sdpa_kernel(backend):
            return by_head(torch.nn.functional.scaled_dot_product_attention(*map(by_head, inputs.leaves(False)), is_causal=True))

    return forward


def kept_blocks(inputs):
    """[B, H, M, N]: blocks that pruning leaves, from the same bound as the operators': D of the nearest pair against 2U + log T − log ε."""
    case = inputs.case
    norm = lambda tensor: tensor.detach().float().norm(dim=-1).amax(1)
    bound = case.dim**-0.5 * norm(inputs.query) * norm(inputs.key)
    threshold = -2 * bound - math.log(case.length) + LOG_TOLERANCE
    nearest = inputs.decay[:, :, ::BLOCK, None] - inputs.decay[:, :, None, BLOCK - 1 :: BLOCK]
    blocks = case.length // BLOCK
    below = torch.ones(blocks, blocks, dtype=torch.bool, device="cuda").tril(-1)
    return (nearest >= threshold[..., None, None]) & below | torch.eye(blocks, dtype=torch.bool, device="cuda")


def flex(pruned, backend):
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

    # All shapes and masks count together; beyond the limit flex_attention would run, and be timed, uncompiled.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled = torch.compile(flex_attention, dynamic=False)
    options = {"BACKEND": backend} if backend else None
    causal = lambda b, h, q, k: q >= k

    def indices(blocks):
        return blocks.sum(-1).int(), torch.sort(blocks.int(), dim=-1, descending=True, stable=True).indices.int()

    def prepare(inputs):
        if pruned:
            kept = kept_blocks(inputs)
            diagonal = torch.eye(kept.shape[-1], dtype=torch.bool, device="cuda").expand_as(kept)
            inputs.pruned_mask = BlockMask.from_kv_blocks(*indices(diagonal), *indices(kept & ~diagonal), BLOCK_SIZE=BLOCK, mask_mod=causal)
        else:
            inputs.block_mask = create_block_mask(causal, None, None, inputs.case.length, inputs.case.length, device="cuda")

    def forward(inputs):
        decay = inputs.decay
        return by_head(compiled(*map(by_head, inputs.leaves(False)), score_mod=lambda s, b, h, q, k: s + decay[b, h, q] - decay[b, h, k],
                                block_mask=inputs.pruned_mask if pruned else inputs.block_mask, kernel_options=options))

    return Implementation(f"flex{'_flash' if backend else ''}{'_pruned_mask' if pruned else ''}", True, False, forward, prepare, (4096, 16384))


def implementations(absent):
    """All that can be imported here; what can't goes to `absent` with its reason."""
    cudnn, flash = torch.nn.attention.SDPBackend.CUDNN_ATTENTION, torch.nn.attention.SDPBackend.FLASH_ATTENTION
    yield Implementation("lethe", True, True, lethe())
    yield Implementation("lethe_16_bit_sums", True, True, lethe(), sums_in_16_bits=True)
    yield Implementation("lethe_pruned", True, True, lethe(pruned=True))
    yield Implementation("lethe_pruned_given_bound", True, True, lethe(pruned=True, given_bound=True))
    yield Implementation("lethe_zero_gate", False, False, lethe(zero_gate=True))
    yield Implementation("cudnn", False, False, sdpa(cudnn))
    yield Implementation("flash_attention_2", False, False, sdpa(flash))

    def package(name, module):
        try:
            return importlib.import_module(module)
        except ImportError as error:
            absent[name] = str(error)

    cute = package("flash_attention_4", "flash_attn.cute")
    for backend in (None, "FLASH") if cute else (None,):
        for pruned in (False, True):
            yield flex(pruned, backend)
    if cute:
        def flash_attention_4(inputs):
            values = cute.flash_attn_func(*inputs.leaves(False), causal=True)
            return values[0] if isinstance(values, tuple) else values

        yield Implementation("flash_attention_4", False, False, flash_attention_4)
    if official := package("official", "forgetting_transformer.ops.forgetting_attention"):
        for name, threshold in (("official", None), ("official_pruned", "auto")):
            yield Implementation(name, True, True, lambda i, t=threshold: official.forgetting_attention(*i.leaves(True), adaptive_threshold=t))
    if fla := package("fla", "fla.ops.forgetting_attn"):
        # unasked at one length: it tunes itself for each, for half a minute
        yield Implementation("fla", True, True, lambda i: fla.parallel_forgetting_attn(*i.leaves(True)), lengths=(16384,))


def those_at(length, candidates, asked):
    """The implementations that run at a length: those that take long there only if asked."""
    return [candidate for candidate in candidates if asked or length in candidate.lengths]

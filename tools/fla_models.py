"""Flash Linear Attention (fla-org/flash-linear-attention) as a peer: its Mamba-2, HGRN2, GLA, DeltaNet and Gated DeltaNet in our sizes. A user's
checkout, not of this project.

FLA's Mamba-2 trains by the kernels of mamba_ssm and causal_conv1d where both import; else, or where `own_kernels`, by FLA's own: its convolution,
chunk_simple_gla and its gated norm. (FLA itself would fall back to plain PyTorch, whose chunks of 256 tokens don't fit a GPU at our sizes.)

On Hopper, FLA's chunked backward with a gate a token asks for Triton 3.7.1 (its issue 640): with an earlier one Gated DeltaNet has no time, and
Mamba-2 runs by fused_chunk_simple_gla.
"""
import importlib
import importlib.util
import itertools
import logging
import re
import sys
import types
import warnings
from pathlib import Path

from official_fox import expect

NEEDS = ("torch", "triton", "transformers", "einops")
COMMIT = "bc3b101"
HOW = f"git clone https://github.com/fla-org/flash-linear-attention and check out {COMMIT}; it needs {', '.join(NEEDS)}"
# Ours, and the beginning of FLA's classes.
ARCHITECTURES = {"mamba2": "Mamba2", "hgrn2": "HGRN2", "gla": "GLA", "deltanet": "DeltaNet", "gated-deltanet": "GatedDeltaNet"}


def import_fla(peer):
    """Its module of models, from the checkout `peer`. Read on, Triton's device must be there: a GPU, or the interpreter."""
    for name in NEEDS:
        expect(importlib.util.find_spec(name), f"the Python package {name}", "none")
    expect((Path(peer) / "fla/models").is_dir(), f"FLA in {peer}", f"none ({HOW})")
    sys.path.insert(0, str(peer))
    importlib.import_module("transformers").logging.set_verbosity_error()  # else advice to the authors of a model
    logging.getLogger("fla").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("fla.models")


def fla_model(models, name, vocabulary, layers, width, heads):
    """The model that `lethe bench --architecture NAME` has in this size, on the CPU, its weights drawn from PyTorch's seed."""
    own = {
        # Without MLPs, so twice the layers.
        "mamba2": {"num_hidden_layers": 2 * layers, "head_dim": width // heads, "state_size": 128, "expand": 2, "n_groups": 1, "norm_eps": 1e-6},
        "hgrn2": {"num_hidden_layers": layers, "num_heads": heads, "expand_ratio": width // heads, "use_lower_bound": False, "norm_eps": 1e-6},
        "gla": {"num_hidden_layers": layers, "num_heads": heads, "norm_eps": 1e-6},
        "deltanet": {"num_hidden_layers": layers, "num_heads": heads, "norm_eps": 1e-6},
        "gated-deltanet": {"num_hidden_layers": layers, "num_heads": heads, "head_dim": 3 * width // (4 * heads), "expand_v": 2, "norm_eps": 1e-6},
    }[name]
    config = getattr(models, f"{ARCHITECTURES[name]}Config")(
        vocab_size=vocabulary, hidden_size=width, use_cache=False, fuse_norm=True, fuse_swiglu=True, fuse_cross_entropy=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(models, f"{ARCHITECTURES[name]}ForCausalLM")(config)
    if name == "mamba2":  # FLA has one number for the norms of blocks and mixers
        for block in model.backbone.layers:
            block.mixer.norm.eps = 1e-5
    return model


def our_state(state):
    """Its state by our names and in our shapes: products of the same input are one matrix there or several here."""
    ours = {}
    for name, value in state.items():
        of_layer = re.sub(r"^backbone\.", "model.", name).replace(".mixer.", ".attn.").replace(".g_norm.", ".o_norm.")
        of_layer = of_layer.replace(".g_norm_swish_gate.", ".o_norm.").replace(".norm_f.", ".norm.")
        of_layer = re.sub(r"(layers\.\d+)\.norm\.", r"\1.attn_norm.", of_layer)
        if name.endswith("mixer.in_proj.weight"):
            convolved, heads = (state[name.replace("in_proj.weight", other)].shape[0] for other in ("conv1d.weight", "dt_bias"))
            pieces = value.split([value.shape[0] - convolved - heads, convolved, heads])
            ours |= {of_layer.replace("in_proj", f"in_proj.{piece}"): rows.clone() for piece, rows in zip(("z", "xBC", "dt"), pieces)}
        elif name.endswith("mlp.gate_proj.weight"):
            import torch

            ours[of_layer] = torch.cat((value, state[name.replace("gate_proj", "up_proj")]))
        elif not name.endswith("mlp.up_proj.weight"):
            ours[of_layer] = (value.squeeze(1) if name.endswith("conv1d.weight") else value).contiguous()
    return ours


def mamba2_by_fla(mixer, hidden_states, **_):
    """FLA's layer Mamba2 by FLA's kernels alone, in the place of its forward."""
    import torch
    from fla.modules.convolution import causal_conv1d
    from fla.ops.simple_gla import chunk_simple_gla, fused_chunk_simple_gla
    from fla.utils import IS_NVIDIA_HOPPER, TRITON_ABOVE_3_4_0, TRITON_ABOVE_3_7_1

    recurrence = fused_chunk_simple_gla if IS_NVIDIA_HOPPER and TRITON_ABOVE_3_4_0 and not TRITON_ABOVE_3_7_1 else chunk_simple_gla
    heads, inner, state_size = mixer.num_heads, mixer.intermediate_size, mixer.ssm_state_size
    gate, convolved, step = mixer.in_proj(hidden_states).split([inner, mixer.conv_dim, heads], dim=-1)
    convolved, _ = causal_conv1d(convolved, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, activation="silu")
    value, key, query = convolved.split([inner, state_size, state_size], dim=-1)
    size = torch.nn.functional.softplus(step.float() + mixer.dt_bias.float())
    value = value.unflatten(-1, (heads, -1))
    of_heads = lambda shared: shared.unsqueeze(2).expand(-1, -1, heads, -1)
    log_gate = -mixer.A_log.float().exp() * size
    o, _ = recurrence(of_heads(query), of_heads(key), (value * size.unsqueeze(-1)).to(value.dtype), log_gate, scale=1.0)
    o = o + value * mixer.D.to(value.dtype).unsqueeze(-1)
    return mixer.out_proj(mixer.norm(o.flatten(2), gate)), None, None


def kernels_of(model, own_kernels=False):
    """What its recurrence runs by; a Mamba-2 gets FLA's own kernels where it must."""
    if "Mamba2" not in type(model).__name__:
        return "fla"
    layer = importlib.import_module("fla.layers.mamba2")
    if layer.is_fast_path_available and layer.causal_conv1d_fn is not None and not own_kernels:
        return "mamba_ssm"
    for block in model.backbone.layers:
        block.mixer.forward = types.MethodType(mamba2_by_fla, block.mixer)
    return "fla"


def loss_of(model):
    """(tokens, labels) → the mean loss, as its forward computes that, of labels that it does not shift."""
    from fla.modules import FusedCrossEntropyLoss

    criterion, body = FusedCrossEntropyLoss(inplace_backward=True), getattr(model, model.base_model_prefix)
    return lambda tokens, labels: criterion(model.lm_head(body(tokens, use_cache=False)[0]).flatten(0, 1), labels.flatten())


def trained_in_bfloat16(model, loss):
    """A step as FLA's trainer takes it: bfloat16 copies of float32 weights, made once a step, and all else in bfloat16. Mamba-2's rates, steps and
    skips, which it marks, stay float32.

    returns  the float32 weights, and (tokens, labels) → the loss, which leaves their gradients in them
    """
    import torch

    rounded, exact = [], []
    for weight in model.parameters():
        (exact if getattr(weight, "_no_weight_decay", False) else rounded).append(weight)
    masters = [torch.nn.Parameter(weight.detach().clone()) for weight in rounded]
    for weight in rounded:
        weight.data = weight.data.bfloat16()
    gradients = [torch.zeros_like(master) for master in masters]

    def backward(tokens, labels):
        with torch.no_grad():
            torch._foreach_copy_(rounded, masters)
        found = loss(tokens, labels)
        found.backward()
        with torch.no_grad():
            torch._foreach_copy_(gradients, [weight.grad for weight in rounded])
        for master, weight, gradient in zip(masters, rounded, gradients):
            master.grad, weight.grad = gradient, None
        return found.detach()

    return torch.nn.ParameterList([*masters, *exact]), backward


def fla_step(model, own_kernels, compiled):
    """Of a model on its GPU: float32 weights, (tokens, labels) → the loss after a backward pass, and what a result has of the row."""
    import torch

    kernels, loss = kernels_of(model, own_kernels), loss_of(model)
    masters, backward = trained_in_bfloat16(model, torch.compile(loss) if compiled else loss)
    triton = importlib.import_module("triton").__version__
    return masters, backward, {"kernels": kernels, "parameters": sum(weight.numel() for weight in masters), "triton": triton}


def tell_what_triton_compiles():
    """From here on, a line on stderr for every kernel that Triton compiles: a first step tunes some hundred configurations unless its cache has
    them."""
    knobs = getattr(importlib.import_module("triton"), "knobs", None)
    if knobs is None:  # Triton before 3.4
        return
    counter = itertools.count(1)

    def listener(*, src, cache_hit, **_):
        if not cache_hit:
            print(f"kernels that Triton has compiled: {next(counter)}, the last {src.name}", file=sys.stderr, flush=True)

    knobs.compilation.listener = listener


def with_triton(results):
    """", with Triton 3.7.1", of results that name theirs; else nothing."""
    versions = sorted({result["triton"] for result in results if "triton" in result})
    return f", with Triton {', '.join(versions)}" if versions else ""

"""The official FoX code (zhixuan-lin/forgetting-transformer) as a peer: its models by our names for sizes. A user's checkout, not of this project.

On the CPU its Triton kernels run in Triton's interpreter, on float32. ON_THE_CPU says what of it is replaced there.
"""
import contextlib
import importlib
import importlib.util
import os
import sys
import warnings
from pathlib import Path

NEEDS = ("torch", "triton", "transformers", "einops", "pytest")  # pytest: its token_shift.py imports it
COMMIT = "883f260"
HOW = f"git clone https://github.com/zhixuan-lin/forgetting-transformer and check out {COMMIT}; it needs {', '.join(NEEDS)}"
PACKAGE = "forgetting_transformer.model.forgetting_transformer"
BLOCK = 32  # rows and columns of an attention tile in the interpreter; the official sizes are chosen by the GPU
ON_THE_CPU = (
    "SwiGLU is PyTorch's: the official one is CUDA that NVRTC compiles",
    "attention runs on float32, without the official check for 16-bit inputs, in tiles of 32 × 32",
    "cross entropy runs without the official check for tensors of CUDA",
    "kernels that would be tuned by their times take the last of their configurations",
)


class Missing(Exception):
    """One line: what was expected and what was found."""


def expect(found, what, have):
    if not found:
        raise Missing(f"expected {what}, found {have}")


def import_official(peer, device="cuda"):
    """Its module of the model, from the checkout `peer`, for tensors of `device`. A process has one of the two."""
    for name in NEEDS:
        expect(importlib.util.find_spec(name), f"the Python package {name}", "none")
    expect((Path(peer) / "src/forgetting_transformer").is_dir(), f"the official code in {peer}", f"none ({HOW})")
    sys.path.insert(0, str(Path(peer) / "src"))
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined
    try:
        with warnings.catch_warnings():
            if device == "cpu":
                warnings.filterwarnings("ignore", message="Triton is not supported on current platform")
            module = importlib.import_module(f"{PACKAGE}.modeling_forgetting_transformer")
    except ImportError as error:
        raise Missing(f"expected the official code to import, found {error}") from None
    importlib.import_module("transformers").logging.set_verbosity_error()  # else advice to the authors of a model
    if device == "cpu":
        run_on_the_cpu(module)
    return module


def run_on_the_cpu(module):
    """Replaces what asks for a GPU; ON_THE_CPU names what computes."""
    import torch

    attention = sys.modules["forgetting_transformer.ops.forgetting_attention"]
    part = {name: sys.modules[f"{PACKAGE}.{name}"] for name in ("fla_utils", "layernorm", "fuse_norm_gate", "fused_cross_entropy", "glu_linear")}
    torch.cuda.device = part["fla_utils"].custom_device_ctx = lambda device: contextlib.nullcontext()
    for name in ("layernorm", "fuse_norm_gate"):
        part[name].get_multiprocessor_count = lambda device: 1
    for name in ("get_fwd_config", "get_bwd_kv_config", "get_bwd_q_config"):
        setattr(attention, name, lambda *sizes: (BLOCK, BLOCK, 1, 4))  # rows, columns, stages, warps
    for tuned in tuned_kernels():
        tuned.configs = tuned.configs[-1:]

    def forgetting_attention(q, k, v, log_fgate, *, head_first, sm_scale, adaptive_threshold=None):
        assert head_first
        seq_start, causal, extras = None, True, (False, False, None, False, False)  # no second outputs, no times
        return attention.ForgettingAttention.apply(q, k, v, log_fgate, seq_start, causal, sm_scale, adaptive_threshold, *extras)

    def swiglu_gradients(gate, up, gradient):  # of both factors, and the product
        sigmoid = gate.sigmoid()
        return gradient * up * sigmoid * (1 + gate * (1 - sigmoid)), gradient * gate * sigmoid, gate * sigmoid * up

    def cross_entropy(self, logits, labels):
        return part["fused_cross_entropy"].cross_entropy_loss(logits, labels, inplace_backward=self.inplace_backward)[0]

    module.forgetting_attention = forgetting_attention
    part["glu_linear"].swiglu_fwd = lambda gate, up: torch.nn.functional.silu(gate) * up
    part["glu_linear"].swiglu_bwd_with_output = swiglu_gradients
    part["fused_cross_entropy"].FusedCrossEntropyLoss.forward = cross_entropy


def tuned_kernels():
    """Those of which Triton chooses a configuration by times that it takes; tuning needs a GPU's clock."""
    for kernels in [found for name, found in sys.modules.items() if name.startswith("forgetting_transformer.")]:
        for kernel in vars(kernels).values():
            while type(kernel).__module__.startswith("triton.runtime"):
                if hasattr(kernel, "configs"):
                    yield kernel
                kernel = getattr(kernel, "fn", None)


@contextlib.contextmanager
def last_configurations():
    """Of every tuned kernel the last one, whatever the times were: another rounding, as another process may have."""
    before = [(kernel, kernel.configs) for kernel in tuned_kernels()]
    try:
        for kernel, configs in before:
            kernel.configs = configs[-1:]
        yield
    finally:
        for kernel, configs in before:
            kernel.configs = configs


def official_model(module, pro, vocabulary, layers, width, heads, log_pruning_tolerance=None):
    """FoX (Pro) or FoX (LLaMA) of the papers, on the CPU; its state has the names of examples/fox.py."""
    config = module.ForgettingTransformerConfig(
        vocab_size=vocabulary, hidden_size=width, hidden_ratio=3.5 if pro else 4, num_hidden_layers=layers, num_heads=heads, use_cache=False,
        use_output_gate=pro, use_output_norm=pro, qk_norm=pro, qk_norm_share_param_across_head=pro, use_k_shift=pro, use_v_shift=pro,
        fgate_type="full", log_pruning_tolerance=log_pruning_tolerance, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return module.ForgettingTransformerForCausalLM(config)

"""The official FoX code (zhixuan-lin/forgetting-transformer) as a peer: its models by our names for sizes. Not part of this project; a user's checkout."""
import importlib
import importlib.util
import sys
from pathlib import Path

NEEDS = ("torch", "triton", "transformers", "einops", "pytest")  # pytest: its token_shift.py imports it
COMMIT = "883f260"
HOW = f"git clone https://github.com/zhixuan-lin/forgetting-transformer and check out {COMMIT}; it needs {', '.join(NEEDS)}"


class Missing(Exception):
    """One line: what was expected and what was found."""


def expect(found, what, have):
    if not found:
        raise Missing(f"expected {what}, found {have}")


def import_official(peer):
    """Its module of the model, from the checkout `peer`."""
    for name in NEEDS:
        expect(importlib.util.find_spec(name), f"the Python package {name}", "none")
    expect((Path(peer) / "src/forgetting_transformer").is_dir(), f"the official code in {peer}", f"none ({HOW})")
    sys.path.insert(0, str(Path(peer) / "src"))
    try:
        return importlib.import_module("forgetting_transformer.model.forgetting_transformer.modeling_forgetting_transformer")
    except ImportError as error:
        raise Missing(f"expected the official code to import, found {error}") from None


def official_model(module, pro, vocabulary, layers, width, heads, log_pruning_tolerance=None):
    """FoX (Pro) or FoX (LLaMA) of the papers, on the CPU; its state has the names of examples/fox.py."""
    config = module.ForgettingTransformerConfig(
        vocab_size=vocabulary, hidden_size=width, hidden_ratio=3.5 if pro else 4, num_hidden_layers=layers, num_heads=heads, use_cache=False,
        use_output_gate=pro, use_output_norm=pro, qk_norm=pro, qk_norm_share_param_across_head=pro, use_k_shift=pro, use_v_shift=pro, fgate_type="full",
        log_pruning_tolerance=log_pruning_tolerance, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return module.ForgettingTransformerForCausalLM(config)

"""FoX and the Transformer in PyTorch on the operator of Lethe: the models of the C++ suite, with the parameter names of the official checkpoints.

    import torch
    from fox import Config, LanguageModel
    torch.ops.load_library("build/cuda/lib/liblethe_torch.so")
    model = torch.compile(LanguageModel(Config(vocabulary=50257)).cuda())
    with torch.autocast("cuda", torch.bfloat16):
        losses = model.losses(tokens, labels)      # [B,T], nats
"""
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Config:
    """FoX (Pro) of 125M parameters; FoX (LLaMA) with pro=False; the Transformers with forgets=False."""
    vocabulary: int = 50257
    layers: int = 12
    width: int = 768
    heads: int = 12
    mlp_width: int = 1792          # 2048 without the output gate's parameters, pro=False
    pro: bool = True               # KV-shift, QK-norm, output norm and output gate
    forgets: bool = True           # forget gate instead of RoPE
    rope_base: float = 500000.0
    log_pruning_tolerance: float | None = None  # log ε of Adaptive Computation Pruning
    prune_by_mass: bool = True  # bounds the sum of the pruned weights; else each by the largest, as in the paper


def wide(x):
    """float32 of what is narrower."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x, weight, epsilon=1e-6):
    return F.rms_norm(wide(x), x.shape[-1:], eps=epsilon) * weight


class ShiftedProjection(nn.Module):
    """y_t = α_t u_{t−1} + (1 − α_t) u_t of u = W x, a gate α a head (FoX Eq. 17–20)."""

    def __init__(self, width, heads):
        super().__init__()
        self.linear, self.shift_proj = nn.Linear(width, width, bias=False), nn.Linear(width, heads, bias=False)

    def forward(self, x):
        u = self.linear(x).unflatten(-1, (self.shift_proj.out_features, -1))
        alpha = wide(self.shift_proj(x)).sigmoid().unsqueeze(-1)
        return torch.lerp(wide(u), wide(F.pad(u, (0, 0, 0, 0, 1, -1))), alpha).to(u.dtype)


class Weight(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    """q, k, v → Forgetting Attention → W_o (norm(o) ⊙ σ(gate)), FoX Eq. 16–24."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, width, heads = config, config.width, config.heads
        projection = (lambda: ShiftedProjection(width, heads)) if config.pro else (lambda: nn.Linear(width, width, bias=False))
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(width, width, bias=False), projection(), projection()
        self.o_proj = nn.Linear(width, width, bias=False)
        if config.pro:
            self.q_norm, self.k_norm = Weight(width // heads), Weight(width // heads)
            self.output_norm, self.ogate_proj = Weight(width), nn.Linear(width, width, bias=False)
        if config.forgets:
            self.fgate_proj = nn.Linear(width, heads)

    def forward(self, x, rotation):
        heads = self.config.heads
        q, k, v = (projected if projected.dim() == 4 else projected.unflatten(-1, (heads, -1))
                   for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        if self.config.pro:
            q, k = (rms_norm(u, norm.weight, 1e-5).to(u.dtype) for u, norm in ((q, self.q_norm), (k, self.k_norm)))
        if self.config.forgets:
            log_forget = F.logsigmoid(wide(self.fgate_proj(x)))
            tolerance, bound = self.config.log_pruning_tolerance, None
            if tolerance is not None and self.config.pro:  # |q·k|/√D ≤ max|γq| max|γk| √D: ACP, Appendix A
                largest = wide(self.q_norm.weight.detach()).abs().max() * wide(self.k_norm.weight.detach()).abs().max()
                bound = (largest * (q.shape[-1] ** 0.5 * (1 + 4 * torch.finfo(q.dtype).eps))).expand(heads)
            o = torch.ops.lethe.forgetting_attention(q, k, v, log_forget, log_pruning_tolerance=tolerance, logit_bound=bound,
                                                     prune_by_mass=self.config.prune_by_mass)
        else:
            q, k = (rotated(u, rotation) for u in (q, k))
            o = F.scaled_dot_product_attention(*(u.transpose(1, 2) for u in (q, k, v)), is_causal=True).transpose(1, 2)
        if self.config.pro:
            o = rms_norm(o, self.output_norm.weight.view(heads, -1)).flatten(-2)
            return self.o_proj((o * wide(self.ogate_proj(x)).sigmoid()).to(x.dtype))
        return self.o_proj(o.flatten(-2))


def rotated(x, rotation):
    """(x_i, x_{i+D/2}) by the angle t·base^(−2i/D): RoPE in the NeoX layout."""
    (a, b), (cosine, sine) = wide(x).chunk(2, -1), rotation
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm = Weight(config.width), Attention(config), Weight(config.width)
        self.mlp = nn.Module()
        self.mlp.gate_proj = nn.Linear(config.width, 2 * config.mlp_width, bias=False)
        self.mlp.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x, rotation, dtype):
        x = x + self.attn(rms_norm(x, self.attn_norm.weight).to(dtype), rotation)
        gate, up = wide(self.mlp.gate_proj(rms_norm(x, self.mlp_norm.weight).to(dtype))).chunk(2, -1)
        return x + self.mlp.down_proj((F.silu(gate) * up).to(dtype))


class LanguageModel(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config, self.model = config, nn.Module()
        self.model.embeddings = nn.Embedding(config.vocabulary, config.width)
        self.model.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.model.norm, self.lm_head = Weight(config.width), nn.Linear(config.width, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def hidden(self, tokens):
        dim = self.config.width // self.config.heads
        frequency = self.config.rope_base ** (-torch.arange(0, dim, 2, device=tokens.device, dtype=torch.float64) / dim)
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float64), frequency).unsqueeze(1)
        dtype = torch.get_autocast_dtype(tokens.device.type) if torch.is_autocast_enabled(tokens.device.type) else self.lm_head.weight.dtype
        x = self.model.embeddings(tokens)
        rotation = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, rotation, dtype)
        return rms_norm(x, self.model.norm.weight).to(dtype)

    def forward(self, tokens):
        return self.lm_head(self.hidden(tokens))

    def losses(self, tokens, labels):
        """Cross entropy of every position, nats; labels are already shifted."""
        return F.cross_entropy(wide(self(tokens)).flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)

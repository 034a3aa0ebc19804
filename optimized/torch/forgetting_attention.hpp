#pragma once
// The operators lethe::forgetting_attention and lethe::forgetting_attention_with_statistics, called from C++.
// Linking liblethe_torch.so registers them with Torch's dispatcher; from Python, torch.ops.load_library does.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lethe {

/// Forgetting Attention with Adaptive Computation Pruning, differentiable in query, key, value and log_forget: by backward(), torch.func.grad,
/// vjp and jacrev, under vmap and compiled autograd; not in forward mode, and once.
///
///   c_t = Σ_{l ≤ t} log f_l,   D_ij = c_i − c_j
///   o_i = Σ_{j ≤ i} softmax_j( scale · q_i·k_j + D_ij ) v_j,   j > i − window where one is given
///   a block of queries × keys is skipped where Σ_j exp(D_ij) over the keys up to its last is below exp(−2U + log ε) for every query (by mass),
///   or, by weight, where every D_ij < −2U − log T + log ε; and, with or without pruning, where every D_ij = −∞
///
/// source   Forgetting Transformer, Eq. 11–13; Adaptive Computation Pruning, Eq. 3 and Appendix A (by weight); reference/computation_pruning.hpp
///          (by mass)
/// reduces  log_forget = 0 → softmax attention; log_forget = −m_h → ALiBi with slope m_h
/// reads    query [B,Tq,Hq,D]; key [B,Tk,H,D]; value [B,Tk,H,Dv], Hq a multiple of H; all of one dtype of float64, float32,
///          bfloat16, float16. log_forget [B,Tk,Hq], natural log, ≤ 0, −inf allowed, float32, or float64 for float64 inputs.
///          Tq ≤ Tk: queries have the last Tq positions. Causal. Any strides; empty tensors work.
///          scale: of q·k, 1/√D unless given, finite in the dtype of the sums.
///          log_pruning_tolerance: log ε ≤ 0 switches pruning on, −inf prunes nothing.
///          logit_bound: U ≥ max |scale·q_i·k_j|, [Hq] or [B,Hq], ≥ 0; from the norms of query and key unless given, for which
///          both are read once more.
///          window ≥ 1: a query sees its own token and the window − 1 before it; j > i − window.
///          cu_seqlens: packed sequences, each with a softmax and gates of its own, as flash-attention's; int32 or int64 [N+1], the first token of
///          each, then Tk; Tq = Tk and B = 1. Its numbers are checked: those on a GPU by a wait for it, once for a tensor
///          that a thread gives again. While a CUDA graph is captured and in a compiled graph they aren't: those outside [0, Tk] count as the nearer end.
///          prune_by_mass: with a tolerance, whether a query's weights on all skipped keys are bounded by their sum, or each by the largest, as in
///          the paper. Either way they sum to less than ε; by mass never more blocks are visited. T is the tokens between the cuts around a
///          block's first query: those of its sequence.
///          Before the first visited block the CPU reads no key, value or gate.
///          Under autocast query, key and value become the autocast type, and all else float32; float64 stays.
/// returns  values [B,Tq,Hq,Dv], dtype of query
/// throws   c10::Error "name: expected …, found …" for a wrong rank, shape, dtype, device, layout or (on the CPU) value
/// cost     O(B·Hq·Tq·Tk·(D+Dv)) less the skipped blocks; O(T·block) extra memory, forward and backward
/// unseen   Keys that a query does not see (after it, before a cut, in a skipped block) have no effect on it; but with a tolerance and no logit_bound
///          U is of all queries and keys of a head, later ones and other sequences' too, and so is which blocks are skipped, within ε. On the CPU
///          that holds bit by bit where a key or value is NaN or ∞, and for weights that round to 0; a row whose ∂values are all 0 adds 0 to
///          every gradient, whatever it saw, and NaN or ∞ in a row's query or ∂values reaches only the gradients of the tokens that the row
///          sees. On other devices NaN or ∞ may reach every row of its block
/// numerics sums in float32 (float64 for float64); the gate's prefix sum in two levels: a float64 base a block, a local offset. A finite gate
///          is never taken for a cut, and gates next to a huge one keep their digits; the CUDA kernels take log f < kStrongGate
///          (optimized/gate.hpp) for −inf. On the CPU a weight below e^−88 (float64: e^−709) of the row's greatest is 0.
///          The environment's LETHE_KERNELS=portable leaves the kernels for one architecture out.
///          The Hopper kernels (bfloat16 and float16 at head dims up to 256) compute the gate's gradient from row and column sums of the
///          same float32 dS, of each row or, where the gate hardly decays, of 64 rows in one; or, at head dims up to 128 where
///          torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True) allows that when the backward runs, from sums of dS rounded to
///          16 bits, added in float32: faster where the gate decays and, unless logits decide against it, less exact. Torch's own
///          attention in its math backend obeys that switch, too
at::Tensor forgetting_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                const at::Tensor& log_forget, std::optional<double> scale = std::nullopt,
                                std::optional<double> log_pruning_tolerance = std::nullopt,
                                const std::optional<at::Tensor>& logit_bound = std::nullopt,
                                std::optional<int64_t> window = std::nullopt,
                                const std::optional<at::Tensor>& cu_seqlens = std::nullopt, bool prune_by_mass = true);

/// The same with statistics of the computation.
///
/// returns  values as above;
///          log_normalizer [B,Tq,Hq], log Σ_j exp(scale·q_i·k_j + D_ij) over the visited j, natural log, with D_ii = 0,
///          float32 or float64, not differentiable;
///          visited_pairs [B,Hq] int64, the causal pairs (i, j) inside the blocks that were computed: all of them where nothing is pruned or
///          cut off and there is no window; with cu_seqlens [N,Hq], those of each sequence, inside the blocks that its tiles of 128 queries visit
std::tuple<at::Tensor, at::Tensor, at::Tensor> forgetting_attention_with_statistics(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& log_forget,
    std::optional<double> scale = std::nullopt, std::optional<double> log_pruning_tolerance = std::nullopt,
    const std::optional<at::Tensor>& logit_bound = std::nullopt, std::optional<int64_t> window = std::nullopt,
    const std::optional<at::Tensor>& cu_seqlens = std::nullopt, bool prune_by_mass = true);

}  // namespace lethe

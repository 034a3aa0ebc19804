#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optimized/gate.hpp"
#include "optimized/operators/residual.hpp"
#include "optimized/portable/operators.hpp"

namespace lethe::portable {
namespace {

using at::Tensor;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// [B, T, H, D] → [B, Hq, T, D] in the dtype of the sums; a key head is repeated for the query heads that read it.
Tensor by_head(const Tensor& tensor, int64_t query_heads) {
  const Tensor heads_first = tensor.to(accumulation_dtype(tensor.scalar_type())).transpose(1, 2);
  return tensor.size(2) == query_heads ? heads_first : heads_first.repeat_interleave(query_heads / tensor.size(2), 1);
}

// [B, Hq, Tk] in float64.
Tensor gates_of(const Tensor& log_forget) { return log_forget.transpose(1, 2).to(at::kDouble); }

// One tile of queries against all keys up to its last position.
struct Tile {
  int64_t row, rows, keys;
  Tensor causal;    // [rows, keys]             j ≤ i
  Tensor seen;      // [rows, keys]             i − window < j ≤ i
  Tensor distance;  // [B, Hq, rows, keys]  D_ij, −∞ where i does not see j

  Tile(const Tensor& gates, int64_t tile, int64_t query_length, std::optional<int64_t> window) {
    const int64_t offset = gates.size(2) - query_length;
    row = tile * kQueryRows;
    rows = std::min(kQueryRows, query_length - row);
    keys = offset + row + rows;
    const Tensor positions = at::arange(keys, gates.options().dtype(at::kLong));
    const Tensor of_queries = positions.narrow(0, offset + row, rows).unsqueeze(-1);
    causal = positions.unsqueeze(0).le(of_queries);
    seen = window ? causal.logical_and(positions.unsqueeze(0).gt(of_queries.sub(*window))) : causal;
    // Σ log f_l over j < l ≤ i, added from i back: terms of one sign, so D keeps its relative accuracy whatever the gates.
    const Tensor later = gates.narrow(-1, 0, keys).unsqueeze(-2).masked_fill(causal.logical_not(), 0);
    distance = at::constant_pad_nd(later.narrow(-1, 1, keys - 1), {0, 1})
                   .flip({-1})
                   .cumsum(-1)
                   .flip({-1})
                   .masked_fill(seen.logical_not(), kMinusInfinity);
  }

  // How many blocks of keys to skip, [B, Hq]: D is largest for the tile's first query and the block's last key. By mass the threshold is that of
  // Σ exp(D_ij) over the keys up to it, else of D_ij.
  Tensor skipped_blocks(const Tensor& threshold, bool by_mass) const {
    const int64_t blocks = (keys - rows) / kGateBlock;  // those that end before the tile's first row
    if (blocks == 0) return at::zeros(threshold.sizes(), threshold.options().dtype(at::kInt));
    const Tensor last = at::arange(blocks, threshold.options().dtype(at::kLong)).mul(kGateBlock).add(kGateBlock - 1);
    const Tensor of_first_query = distance.select(-2, 0), nearest = of_first_query.index_select(-1, last);
    const Tensor bounded = by_mass ? of_first_query.logcumsumexp(-1).index_select(-1, last) : nearest;
    return bounded.lt(threshold.unsqueeze(-1)).logical_or(nearest.eq(kMinusInfinity)).sum(-1, false, at::kInt);
  }

  // The causal pairs of computed blocks [B, Hq, rows, keys]; those of the others are at distance −∞ afterwards.
  Tensor visit(const Tensor& skipped_blocks) {
    const Tensor first = skipped_blocks.to(at::kLong).mul(kGateBlock).unsqueeze(-1).unsqueeze(-1);
    const Tensor visited = at::arange(keys, first.options()).ge(first).logical_and(causal);
    distance = distance.masked_fill(visited.logical_not(), kMinusInfinity);
    return visited;
  }

  Tensor queries(const Tensor& tensor) const { return tensor.narrow(2, row, rows); }
  Tensor up_to_here(const Tensor& tensor) const { return tensor.narrow(2, 0, keys); }
};

// −2U + log ε, [B, Hq]; −∞ without a tolerance.
Tensor log_share_of(const Tensor& q, const Tensor& k, double scale, std::optional<double> log_pruning_tolerance,
                    const std::optional<Tensor>& logit_bound) {
  const at::TensorOptions wide = q.options().dtype(at::kDouble);
  if (!log_pruning_tolerance || std::isinf(*log_pruning_tolerance) || q.numel() == 0)
    return at::full({q.size(0), q.size(1)}, kMinusInfinity, wide);
  const auto largest_norm = [](const Tensor& tensor) { return tensor.norm(2, -1).amax(-1).to(at::kDouble); };
  const Tensor bound = logit_bound ? logit_bound->to(at::kDouble).expand({q.size(0), q.size(1)})
                                   : largest_norm(q).mul(largest_norm(k)).mul(std::fabs(scale) * kNormSlack);
  return bound.mul(-2).add(*log_pruning_tolerance);
}

// log T of the first query of every tile, [B, Hq, tiles]: T tokens between the cuts around it.
Tensor log_lengths(const Tensor& gates, int64_t query_length) {
  const int64_t length = gates.size(2);
  if (query_length == 0) return at::zeros({gates.size(0), gates.size(1), 0}, gates.options());
  const Tensor first = at::arange(length - query_length, length, kQueryRows, gates.options().dtype(at::kLong));
  const Tensor sequence = gates.eq(kMinusInfinity).cumsum(-1);  // of each token, counted by cuts
  const Tensor lengths = at::zeros({gates.size(0), gates.size(1), length + 1}, sequence.options())
                             .scatter_add(-1, sequence, at::ones_like(sequence));
  return lengths.gather(-1, sequence.index_select(-1, first)).to(at::kDouble).log();
}

// [B, Hq, T, D] → [B, T, H, D] of `dtype`, summed over the query heads that share a key head.
Tensor by_position(const Tensor& tensor, int64_t heads, at::ScalarType dtype) {
  const Tensor shared = tensor.size(1) == heads ? tensor : tensor.unflatten(1, {heads, tensor.size(1) / heads}).sum(2);
  return shared.transpose(1, 2).to(dtype).contiguous();
}

int64_t tiles_of(const Tensor& query) { return (query.size(1) + kQueryRows - 1) / kQueryRows; }

}  // namespace

AttentionOutputs forgetting_attention_forward(const AttentionInputs& in) {
  const int64_t heads = in.query.size(2);
  const Tensor q = by_head(in.query, heads), k = by_head(in.key, heads), v = by_head(in.value, heads);
  const Tensor gates = gates_of(in.log_forget);
  const Tensor log_share = log_share_of(q, k, in.scale, in.log_pruning_tolerance, in.logit_bound);
  const Tensor thresholds = in.prune_by_mass ? log_share.unsqueeze(-1).expand({-1, -1, tiles_of(in.query)})
                                             : log_share.unsqueeze(-1).sub(log_lengths(gates, q.size(2)));
  Tensor boundary = at::empty({q.size(0), heads, tiles_of(in.query)}, q.options().dtype(at::kInt));
  Tensor values = at::empty({q.size(0), heads, q.size(2), v.size(3)}, q.options());
  Tensor log_normalizer = at::empty({q.size(0), heads, q.size(2)}, q.options());
  Tensor visited_pairs = at::zeros({q.size(0), heads}, q.options().dtype(at::kLong));
  for (int64_t i = 0; i < tiles_of(in.query); ++i) {
    Tile tile(gates, i, q.size(2), in.window);
    boundary.select(-1, i).copy_(tile.skipped_blocks(thresholds.select(-1, i), in.prune_by_mass));
    visited_pairs.add_(tile.visit(boundary.select(-1, i)).sum({-2, -1}));
    const Tensor logits = tile.queries(q)
                              .matmul(tile.up_to_here(k).transpose(-1, -2))
                              .mul(in.scale)
                              .add(tile.distance.to(q.scalar_type()));
    const Tensor normalizer = logits.logsumexp({-1});
    tile.queries(values).copy_(logits.sub(normalizer.unsqueeze(-1)).exp().matmul(tile.up_to_here(v)));
    log_normalizer.narrow(2, tile.row, tile.rows).copy_(normalizer);
  }
  const auto [stored, residual] = values_and_residual(values.transpose(1, 2), in.query.scalar_type(), in.keep_residual);
  return {stored, log_normalizer.transpose(1, 2).contiguous(), visited_pairs, boundary, residual};
}

AttentionGradients forgetting_attention_backward(const Tensor& grad_values, const AttentionInputs& in,
                                                 const AttentionOutputs& out) {
  const Tensor &query = in.query, &key = in.key, &value = in.value, &boundary = out.boundary;
  const double scale = in.scale;
  const int64_t heads = query.size(2), offset = key.size(1) - query.size(1);
  const Tensor q = by_head(query, heads), k = by_head(key, heads), v = by_head(value, heads);
  const Tensor grad_o = by_head(grad_values, heads),
               delta = grad_o.mul(by_head(sums_of(out.values, out.residual), heads)).sum(-1, true);
  const Tensor normalizer = out.log_normalizer.transpose(1, 2).unsqueeze(-1);
  const Tensor gates = gates_of(in.log_forget);
  Tensor grad_q = at::zeros(q.sizes(), q.options()), grad_k = at::zeros(k.sizes(), k.options());
  Tensor grad_v = at::zeros(v.sizes(), v.options());
  Tensor grad_sum = at::zeros(gates.sizes(), gates.options());  // ∂loss/∂c
  for (int64_t i = 0; i < tiles_of(query); ++i) {
    Tile tile(gates, i, q.size(2), in.window);
    tile.visit(boundary.select(-1, i));
    const Tensor q_tile = tile.queries(q), k_tile = tile.up_to_here(k), grad_tile = tile.queries(grad_o);
    const Tensor weights = q_tile.matmul(k_tile.transpose(-1, -2))
                               .mul(scale)
                               .add(tile.distance.to(q.scalar_type()))
                               .sub(tile.queries(normalizer))
                               .exp();
    const Tensor grad_logits =
        grad_tile.matmul(tile.up_to_here(v).transpose(-1, -2)).sub(tile.queries(delta)).mul(weights);
    tile.up_to_here(grad_v).add_(weights.transpose(-1, -2).matmul(grad_tile));
    tile.queries(grad_q).copy_(grad_logits.matmul(k_tile).mul(scale));
    tile.up_to_here(grad_k).add_(grad_logits.transpose(-1, -2).matmul(q_tile).mul(scale));
    grad_sum.narrow(2, offset + tile.row, tile.rows).add_(grad_logits.sum(-1));
    tile.up_to_here(grad_sum).sub_(grad_logits.sum(-2));
  }
  // c_t holds every gate up to t; the first gate and a cut are in no visible difference.
  Tensor grad_gate = grad_sum.flip({-1}).cumsum(-1).flip({-1}).masked_fill(gates.eq(kMinusInfinity), 0);
  if (grad_gate.size(-1) > 0) grad_gate.select(-1, 0).zero_();
  return {by_position(grad_q, heads, query.scalar_type()), by_position(grad_k, key.size(2), key.scalar_type()),
          by_position(grad_v, value.size(2), value.scalar_type()),
          grad_gate.transpose(1, 2).to(in.log_forget.scalar_type()).contiguous()};
}

}  // namespace lethe::portable

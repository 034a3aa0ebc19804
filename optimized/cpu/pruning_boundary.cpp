#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "optimized/cpu/problem.hpp"

namespace lethe::cpu {
namespace {

// max ‖row‖ over the positions of [B, H, T, D], [B, H] in float64.
at::Tensor largest_norm(const at::Tensor& rows) {
  return at::amax(at::linalg_vector_norm(rows, 2.0, {3}, false, at::kDouble), {2});
}

// U [B, Hq] in float64, contiguous.
at::Tensor resolve_bound(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, double scale,
                         const std::optional<at::Tensor>& logit_bound) {
  if (!logit_bound) {
    // Rounded up by more than the float32 products that are compared with it can exceed it.
    const double margin = std::abs(scale) * (1.0 + 1e-5);
    return largest_norm(query).mul(largest_norm(key).repeat_interleave(sizes.group(), 1)).mul(margin).contiguous();
  }
  const at::Tensor bound = logit_bound->to(at::kDouble).expand({sizes.batch, sizes.query_heads}).contiguous();
  for (int64_t i = 0; i < bound.numel(); ++i) {
    const double found = bound.const_data_ptr<double>()[i];
    TORCH_CHECK(found >= 0.0, "logit_bound: expected numbers >= 0, found ", found);
  }
  return bound;
}

}  // namespace

at::Tensor pruning_boundary(const Sizes& sizes, const GatePrefix& prefix, const at::Tensor& query,
                            const at::Tensor& key, double scale, std::optional<double> log_pruning_tolerance,
                            const std::optional<at::Tensor>& logit_bound) {
  at::Tensor boundary = at::zeros({sizes.batch, sizes.query_heads, sizes.tiles()}, at::kInt);
  if (boundary.numel() == 0 || (!log_pruning_tolerance && !logit_bound)) return boundary;
  const at::Tensor bound = resolve_bound(sizes, query, key, scale, logit_bound);
  if (!log_pruning_tolerance) return boundary;
  const double slack = *log_pruning_tolerance - std::log(static_cast<double>(sizes.key_length));
  for (int64_t head = 0; head < sizes.all_heads(); ++head) {
    const double threshold = slack - 2.0 * bound.const_data_ptr<double>()[head];
    const double* sum = prefix.sum.data() + head * sizes.key_length;
    const int64_t* first = prefix.first.data() + head * sizes.key_length;
    for (int64_t tile = 0; tile < sizes.tiles(); ++tile) {
      const int64_t position = sizes.offset() + tile * kQueryRows;
      const auto prunable = [&](int64_t block) {
        const int64_t last = (block + 1) * kKeyBlock - 1;
        const double decay =
            last < first[position] ? -std::numeric_limits<double>::infinity() : sum[position] - sum[last];
        return decay < threshold;
      };
      // Among the blocks that end before the tile's first row, the prunable ones come first: D falls with the distance.
      int32_t low = 0, high = static_cast<int32_t>(position / kKeyBlock);
      while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (prunable(middle)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      boundary.mutable_data_ptr<int32_t>()[head * sizes.tiles() + tile] = low;
    }
  }
  return boundary;
}

}  // namespace lethe::cpu

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "optimized/cpu/pruning.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/gate.hpp"

namespace lethe::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// max ‖row‖² over the positions of [B, T, H, D], for every (batch, head).
template <typename Scalar>
std::vector<double> largest_squares(const at::Tensor& tensor) {
  // Few rows of one head, then those of the next: the heads' rows alternate in memory.
  constexpr int64_t kRows = 16;
  const HeadRows<const Scalar> rows(tensor);
  const int64_t heads = tensor.size(2), length = tensor.size(1), pieces = (length + kRows - 1) / kRows;
  std::vector<double> of_pieces(tensor.size(0) * pieces * heads), squares(tensor.size(0) * heads);
  at::parallel_for(0, tensor.size(0) * pieces, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t batch = piece / pieces, position = piece % pieces * kRows;
      for (int64_t head = 0; head < heads; ++head)
        of_pieces[piece * heads + head] = tile_kernels<Scalar>().largest_square(
            std::min(kRows, length - position), tensor.size(3), rows.at(batch * heads + head, position), rows.stride());
    }
  });
  for (size_t i = 0; i < of_pieces.size(); ++i) {
    double& square = squares[i / (pieces * heads) * heads + i % heads];
    square = std::max(square, of_pieces[i]);
  }
  return squares;
}

// U of every (batch, query head).
std::vector<double> resolve_bound(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, double scale,
                                  const std::optional<at::Tensor>& logit_bound) {
  std::vector<double> bound(sizes.all_heads());
  if (!logit_bound) {
    // Rounded up by more than the float32 products that are compared with it can exceed it.
    const double margin = std::abs(scale) * kNormSlack;
    const auto squares = query.scalar_type() == at::kDouble ? largest_squares<double> : largest_squares<float>;
    const std::vector<double> of_query = squares(query), of_key = squares(key);
    for (int64_t head = 0; head < sizes.all_heads(); ++head)
      bound[head] = margin * std::sqrt(of_query[head]) * std::sqrt(of_key[head / sizes.group()]);
    return bound;
  }
  const at::Tensor given = logit_bound->to(at::kDouble).expand({sizes.batch, sizes.query_heads}).contiguous();
  for (int64_t head = 0; head < sizes.all_heads(); ++head) {
    bound[head] = given.const_data_ptr<double>()[head];
    TORCH_CHECK(bound[head] >= 0.0, "logit_bound: expected numbers >= 0, found ", bound[head]);
  }
  return bound;
}

// The end of the blocks of which the query at `position` sees no pair, or only pairs below the threshold; of keys from `first` on.
template <typename Scalar>
int64_t end_of_unseen(const Scalar* gate, int64_t stride, int64_t position, int64_t first, double threshold) {
  double decay = 0.0;
  int64_t t = position;
  for (int64_t block = position / kKeyBlock; block > first / kKeyBlock; --block) {
    for (; t >= block * kKeyBlock; --t) decay += gate[t * stride];
    if (decay < threshold || decay == -kInfinity) return block * kKeyBlock;
  }
  return first / kKeyBlock * kKeyBlock;
}

}  // namespace

std::vector<double> pruning_thresholds(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, double scale,
                                       std::optional<double> log_pruning_tolerance,
                                       const std::optional<at::Tensor>& logit_bound) {
  const double tolerance = log_pruning_tolerance.value_or(-kInfinity);
  if (!logit_bound && std::isinf(tolerance)) return std::vector<double>(sizes.all_heads(), -kInfinity);
  std::vector<double> thresholds = resolve_bound(sizes, query, key, scale, logit_bound);
  for (double& bound : thresholds) bound = tolerance - std::log(static_cast<double>(sizes.key_length)) - 2.0 * bound;
  return thresholds;
}

std::vector<int64_t> first_visited(const Sizes& sizes, const at::Tensor& log_forget,
                                   const std::vector<double>& thresholds) {
  std::vector<int64_t> first(sizes.all_heads(), 0);
  if (sizes.tiles() == 0) return std::vector<int64_t>(sizes.all_heads(), sizes.key_length);
  at::parallel_for(0, sizes.all_heads(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t start =
          head / sizes.query_heads * log_forget.stride(0) + head % sizes.query_heads * log_forget.stride(2);
      const auto walk = [&](const auto* gates) {
        return end_of_unseen(gates + start, log_forget.stride(1), sizes.offset(), sizes.first_seen(sizes.offset()),
                             thresholds[head]);
      };
      first[head] = log_forget.scalar_type() == at::kDouble ? walk(log_forget.const_data_ptr<double>())
                                                            : walk(log_forget.const_data_ptr<float>());
    }
  });
  return first;
}

at::Tensor pruning_boundary(const Sizes& sizes, const GatePrefix& prefix, const std::vector<double>& thresholds) {
  at::Tensor boundary = at::empty({sizes.batch, sizes.query_heads, sizes.tiles()}, at::TensorOptions().dtype(at::kInt));
  int32_t* skipped = boundary.mutable_data_ptr<int32_t>();
  for (int64_t head = 0; head < sizes.all_heads(); ++head) {
    const HeadGates gates = prefix.head(head);
    int32_t low = static_cast<int32_t>(gates.begin / kKeyBlock);  // from one tile to the next the boundary never falls
    for (int64_t tile = 0; tile < sizes.tiles(); ++tile) {
      const int64_t position = sizes.offset() + tile * kQueryRows;
      low = std::max(low, static_cast<int32_t>(sizes.first_seen(position) / kKeyBlock));
      // Among the blocks that end before the tile's first row, those to skip come first.
      int32_t high = static_cast<int32_t>(position / kKeyBlock);
      while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (gates.is_below(position, (middle + 1) * kKeyBlock - 1, thresholds[head])) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      *skipped++ = low;
    }
  }
  return boundary;
}

}  // namespace lethe::cpu

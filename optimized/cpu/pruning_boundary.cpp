#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

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

// Calls run(gates, stride) for one head's log f, a pointer to position 0.
template <typename Run>
void with_gates(const Sizes& sizes, const at::Tensor& log_forget, int64_t head, const Run& run) {
  const int64_t start =
      head / sizes.query_heads * log_forget.stride(0) + head % sizes.query_heads * log_forget.stride(2);
  log_forget.scalar_type() == at::kDouble ? run(log_forget.const_data_ptr<double>() + start, log_forget.stride(1))
                                          : run(log_forget.const_data_ptr<float>() + start, log_forget.stride(1));
}

// A_n of the last key n of each block from position `begin` on.
template <typename Scalar>
std::vector<double> log_masses(const Scalar* gate, int64_t stride, int64_t begin, int64_t length) {
  std::vector<double> of_blocks;
  double mass = static_cast<double>(begin);
  for (int64_t t = begin; t < length; ++t) {
    mass = 1.0 + std::exp(static_cast<double>(gate[t * stride])) * mass;
    if ((t + 1) % kKeyBlock == 0) of_blocks.push_back(std::log(mass));
  }
  return of_blocks;
}

// The tokens between the cuts around `position`.
int64_t sequence_length(const HeadGates& gates, int64_t position, int64_t length) {
  const auto is_cut = [](const StrongGate& gate) { return std::isinf(gate.log_forget); };
  const auto after = gates.strong.begin() + gates.strong_up_to(position);
  const auto before = std::find_if(std::make_reverse_iterator(after), gates.strong.rend(), is_cut);
  const auto next = std::find_if(after, gates.strong.end(), is_cut);
  return (next == gates.strong.end() ? length : next->position) -
         (before == gates.strong.rend() ? 0 : before->position);
}

}  // namespace

Pruning pruning_of(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, const AttentionInputs& in) {
  const double tolerance = in.log_pruning_tolerance.value_or(-kInfinity);
  if (!in.logit_bound && std::isinf(tolerance))
    return {std::vector<double>(sizes.all_heads(), -kInfinity), in.prune_by_mass};
  std::vector<double> log_share = resolve_bound(sizes, query, key, in.scale, in.logit_bound);
  for (double& bound : log_share) bound = tolerance - 2.0 * bound;
  return {std::move(log_share), in.prune_by_mass};
}

std::vector<int64_t> first_visited(const Sizes& sizes, const at::Tensor& log_forget, const Pruning& pruning) {
  std::vector<int64_t> first(sizes.all_heads(), 0);
  if (sizes.tiles() == 0) return std::vector<int64_t>(sizes.all_heads(), sizes.key_length);
  const double log_length = std::log(static_cast<double>(sizes.key_length));
  at::parallel_for(0, sizes.all_heads(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      with_gates(sizes, log_forget, head, [&](const auto* gates, int64_t stride) {
        first[head] = end_of_unseen(gates, stride, sizes.offset(), sizes.first_seen(sizes.offset()),
                                    pruning.log_share[head] - log_length);
      });
  });
  return first;
}

at::Tensor pruning_boundary(const Sizes& sizes, const at::Tensor& log_forget, const GatePrefix& prefix,
                            const Pruning& pruning) {
  at::Tensor boundary = at::empty({sizes.batch, sizes.query_heads, sizes.tiles()}, at::TensorOptions().dtype(at::kInt));
  int32_t* skipped = boundary.mutable_data_ptr<int32_t>();
  at::parallel_for(0, sizes.all_heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const HeadGates gates = prefix.head(head);
      const double log_share = pruning.log_share[head];
      const bool prunes = !std::isinf(log_share);
      std::vector<double> mass;
      if (pruning.by_mass && prunes)
        with_gates(sizes, log_forget, head, [&](const auto* gate, int64_t stride) {
          mass = log_masses(gate, stride, gates.begin, sizes.offset() + sizes.query_length);
        });
      int32_t low =
          static_cast<int32_t>(gates.begin / kKeyBlock);  // from one tile to the next the boundary never falls
      for (int64_t tile = 0; tile < sizes.tiles(); ++tile) {
        const int64_t position = sizes.offset() + tile * kQueryRows;
        low = std::max(low, static_cast<int32_t>(sizes.first_seen(position) / kKeyBlock));
        double log_length = 0;
        if (prunes && !pruning.by_mass)
          log_length = std::log(static_cast<double>(sequence_length(gates, position, sizes.key_length)));
        const auto is_skipped = [&](int32_t block) {
          const double of_keys = mass.empty() ? log_length : mass[block - gates.begin / kKeyBlock];
          return gates.is_below(position, (block + 1) * kKeyBlock - 1, log_share - of_keys);
        };
        // Among the blocks that end before the tile's first row, those to skip come first.
        int32_t high = static_cast<int32_t>(position / kKeyBlock);
        while (low < high) {
          const int32_t middle = low + (high - low) / 2;
          if (is_skipped(middle)) {
            low = middle + 1;
          } else {
            high = middle;
          }
        }
        skipped[head * sizes.tiles() + tile] = low;
      }
    }
  });
  return boundary;
}

}  // namespace lethe::cpu

#pragma once
// The forward's main kernel. Internal to optimized/cuda.

#include "optimized/cuda/gate/sections.hpp"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/plan.hpp"

namespace lethe {

/// Queries of one tile of the forward kernel of an instance. A tile visits the key blocks of the query block that its first query is in.
constexpr int64_t forward_tile_rows(int64_t instance_dim) { return instance_dim == 64 ? 192 : 128; }

namespace hopper {

/// Heads of a section: of the forward's tiles, of the backward's tiles of 128 keys. One CTA a multiprocessor. Of windows no more than eight: at head dim
/// 128 more were slower; of several sequences four in the backward to that dim, where that was measured (log/2026-11-27-edges-of-warpgroups.md).
constexpr int kMostHeadsOfWindows = 8;
inline int section_of_query_tiles(const Shape& shape, int window) {
  return section_of_queries(shape, 2, window, multiprocessors() * forward_tile_rows(instance_dim(shape)),
                            kMostHeadsOfWindows);
}
inline int section_of_key_tiles(const Shape& shape, int window) {
  return section_of_keys(shape, query_bytes(shape), window, multiprocessors() * kGateBlock, kMostHeadsOfWindows,
                         instance_dim(shape) <= 128 ? 4 : 2);
}

}  // namespace hopper

/// Values, log normalizer and visited pairs of a forward whose plan has been launched on the same stream; throws std::runtime_error for a
/// CUDA error.
void launch_forward_tiles(const ForwardArguments& arguments, const Plan& plan);

}  // namespace lethe

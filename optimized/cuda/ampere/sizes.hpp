#pragma once
// Which kernels run a call, and their tiles: host code without CUDA, from which every build describes what the launches choose.

#include <algorithm>
#include <climits>
#include <cstdint>
#include <type_traits>

#include "optimized/coverage.hpp"
#include "optimized/gate.hpp"
#include "reference/problem.hpp"

namespace lethe::ampere {

/// The largest number of bytes of shared memory that a CTA of compute capability 8.6, 8.9 or 12.0 can have.
inline constexpr int kSmallSharedBytes = 1024 * shared_kilobytes(86);

/// Sizes of the forward at a head dim of up to kHeadDim. A row in shared memory has the bytes of kPitch 16-bit elements.
template <int kHeadDim>
struct ForwardSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 queries, a warp
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 32 ? 64 : 32;  // with more, scores leave too few registers
  static constexpr int kKeysAtOnce = kDim == 96 ? kKeys : 16, kStages = 2;
  // The first sixteen columns of queries that stay in registers, by what these hold beside output and scores.
  static constexpr int kHeldSteps = kDim <= 64 ? kDim / 16 : kDim == 96 ? 4 : 0;
  // K and V come from running addresses, as those of windows do: at 32 and 256 slower.
  static constexpr bool kRunning = kDim >= 64 && kDim <= 128;
};

/// The same of floats.
template <int kHeadDim>
struct FloatForwardSizes {
  static constexpr int kDim = kHeadDim, kPitch = 2 * kDim;
  static constexpr int kRowTiles = 2;
  static constexpr int kWarps = kDim <= 64 ? 4 : 2, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 64 ? 32 : 16;
  static constexpr int kKeysAtOnce = kKeys, kStages = 2;
  static constexpr int kHeldSteps = 0;
  static constexpr bool kRunning = false;  // for want of registers
};

template <typename Element, int kDim>
using ForwardSizesOf = std::conditional_t<std::is_same_v<Element, float>, FloatForwardSizes<kDim>, ForwardSizes<kDim>>;

/// Sizes of the backward at a head dim of up to kHeadDim, where keys and queries have a kernel each.
template <int kHeadDim>
struct SweepSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 64 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kColumns = kDim <= 128 ? 64 : 16, kStages = 2;  // of a stage
  static constexpr bool kFirstInShared = false, kSecondInRegisters = kDim <= 128;
};

/// The same of floats.
template <int kHeadDim>
struct FloatSweepSizes {
  static constexpr int kDim = kHeadDim, kPitch = 2 * kDim;
  static constexpr int kRowTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kWarps = kDim <= 64 ? 4 : 2, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kColumns = 16, kStages = 2;
  static constexpr bool kFirstInShared = true, kSecondInRegisters = false;
};

template <typename Element, int kDim>
using SweepSizesOf = std::conditional_t<std::is_same_v<Element, float>, FloatSweepSizes<kDim>, SweepSizes<kDim>>;

/// Sizes where the keys' kernel also adds to dQ: 128 keys a tile. A warp multiplies 16 columns of K with all dS of a stage.
template <int kHeadDim>
struct FusedSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kRows = kGateBlock, kWarps = kRows / (16 * kRowTiles), kThreads = 32 * kWarps;
  static constexpr int kColumns = 32, kBuffers = 2, kStages = 2;
  static constexpr bool kFirstInShared = true, kSecondInRegisters = kRowTiles == 1;
  static_assert(kDim % 16 == 0 && kDim / 16 <= kWarps);
};

/// Sizes of the wide backward. With one stage the next queries are loaded once all warps have read these, and a CTA wants less shared memory.
template <int kHeadDim, int kStageCount>
struct WideSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1, kRows = 64 * kRowTiles;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr bool kEveryOther = kDim % 64 != 0;  // sixteen columns are one half's, the next the other's
  static constexpr int kColumns = 64, kBuffers = 1, kQueryParts = kEveryOther ? 4 : kDim <= 128 ? 2 : 1;
  static constexpr int kStages = kStageCount;
  // dQ's sixteens of queries a warp, and how many of them come before the others' products, under which their sums leave.
  static constexpr int kQueryTiles = kColumns / 16 / kQueryParts, kEarlyTiles = kQueryTiles > 2 ? 2 : 0;
  static constexpr bool kFirstInShared = true, kSecondInRegisters = false;
};

/// Stages of the wide backward. Two are the faster ones. At 256 they find no place in 163 KB, and were not tried in 227; at 96 no GPU has place for one
/// alone.
struct WideStages {
  int fewest, most;
};
constexpr WideStages stages_of_wide(int64_t dim) { return {dim == 96 ? 2 : 1, dim == 256 ? 1 : 2}; }

/// The shared memory that a CTA of so many stages has: what backward_wide.cu counts.
struct WideBytes {
  int least, largest;
};
constexpr WideBytes bytes_of_wide(int64_t dim) {
  switch (dim) {
    case 64: return {85248, 102784};
    case 96: return {135552, 135552};
    case 128: return {134400, 168320};
    case 256: return {150272, 150272};
    default: return {INT_MAX, INT_MAX};
  }
}

/// The head dim of the instance that runs a shape: its tiles hold rows of both head dims, with zeros after them.
constexpr int64_t dim_of_instance(const Shape& shape, Dtype dtype = Dtype::kBFloat16) {
  const int64_t dim = std::max(shape.key_dim, shape.value_dim);
  if (dim <= 32) return 32;
  if (dim <= 64) return 64;
  if (dim <= 96 && dtype != Dtype::kFloat32) return 96;
  return dim <= 128 ? 128 : 256;
}

/// Calls `call.operator()<kDim>()` of an instance's head dim.
template <typename Call>
constexpr void for_dim(int64_t dim, Call call) {
  switch (dim) {
    case 32: return call.template operator()<32>();
    case 64: return call.template operator()<64>();
    case 96: return call.template operator()<96>();
    case 128: return call.template operator()<128>();
    default: return call.template operator()<256>();
  }
}

/// Whether there is an instance of floats.
constexpr bool has_floats(int dim) { return dim != 96 && dim <= 128; }

/// Whether one kernel may sum all gradients at an instance's head dim, unless dQ is wanted in a fixed order: where that is faster.
constexpr bool is_fused(int64_t dim) { return dim >= 64; }

enum class BackwardKernels { kKeysAndQueries, kFused, kWide };

/// The fastest that a CTA's `shared_bytes` have place for, of those that sum in one fixed order where that is asked for.
constexpr BackwardKernels backward_kernels(const Shape& shape, Dtype dtype, bool deterministic, int shared_bytes) {
  const int64_t dim = dim_of_instance(shape, dtype);
  if (deterministic || dtype == Dtype::kFloat32 || !is_fused(dim)) return BackwardKernels::kKeysAndQueries;
  if (bytes_of_wide(dim).least <= shared_bytes) return BackwardKernels::kWide;
  return dim == 96 ? BackwardKernels::kFused : BackwardKernels::kKeysAndQueries;
}

/// Stages of a wide backward.
constexpr int wide_stages(int64_t dim, int shared_bytes) {
  return bytes_of_wide(dim).largest <= shared_bytes ? stages_of_wide(dim).most : stages_of_wide(dim).fewest;
}

}  // namespace lethe::ampere

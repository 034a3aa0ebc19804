#pragma once
// Products of tiles of 64 × 64 by a warpgroup, whose sums are fragments: number 4n + 2h + e of a lane is row 16·warp + g + 8h, column 8n + 2t + e of the
// 64, with g = lane / 4 and t = lane % 4.

#include <type_traits>

#include "optimized/cuda/hopper/handover.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_steps.cuh"
#include "optimized/cuda/matrix_state/fragments.cuh"

namespace lethe::matrix_state {

/// A warp's place, which ptxas does not compute again from the thread's number: to read that takes 40 cycles.
__device__ __forceinline__ Place held(Place at) {
  return {ptx::in_uniform_register(at.block), __shfl_sync(kAllLanes, at.lane, at.lane)};
}

/// One thread: load_panels of head_of(from, h).
template <int kPanels>
__device__ __forceinline__ void load_tile_of(char* to, const CUtensorMap& map, const Operand& from, uint64_t* barrier,
                                             int column, int64_t first, int64_t b, int64_t h) {
  load_panels<kPanels>(to, map, barrier, column, first, b, head_of(from, h));
}

/// Bytes between two steps of 16 along the products' sum, in a tile: of rows along M or N, or along the sum.
template <ptx::Major kMajor>
inline constexpr int kStepBytes = kMajor == ptx::Major::kK ? 32 : 2048;

/// sum = (accumulate ? sum : 0) + left · right of two tiles in shared memory, by a warpgroup, issued and not waited for.
template <typename Element, ptx::Major kLeft, ptx::Major kRight>
__device__ __forceinline__ void issue_product(float (&sum)[32], const char* left, const char* right, bool accumulate) {
  const uint64_t a = ptx::operand_descriptor(left, kPanel), b = ptx::operand_descriptor(right, kPanel);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<kLeft, kRight>(Element{}, sum, ptx::advance<kStepBytes<kLeft>>(a, k),
                              ptx::advance<kStepBytes<kRight>>(b, k), accumulate || k > 0);
}

/// The same by fewer instructions, where all that a kernel's warps run should have room in the instruction cache.
template <typename Element, ptx::Major kLeft, ptx::Major kRight>
__device__ __forceinline__ void issue_short_product(float (&sum)[32], const char* left, const char* right,
                                                    bool accumulate) {
  ptx::wgmma_steps<kLeft, kRight, kStepBytes<kLeft> / 16, kStepBytes<kRight> / 16>(
      Element{}, sum, ptx::operand_descriptor(left, kPanel), ptx::operand_descriptor(right, kPanel), accumulate);
}

/// The same where registers hold the left operand: sums packed in pairs, in their order.
template <typename Element, ptx::Major kRight>
__device__ __forceinline__ void issue_product(float (&sum)[32], const uint32_t (&left)[16], const char* right,
                                              bool accumulate) {
  const uint64_t b = ptx::operand_descriptor(right, kPanel);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<kRight>(Element{}, sum, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                       ptx::advance<kStepBytes<kRight>>(b, k), accumulate || k > 0);
}

/// What each token is multiplied by where it enters a state: nothing, one scale, or its gates and the scale.
enum class Weights { kNone, kScale, kGates };

/// Where add_to_state has nothing to multiply but the state's own columns. ColumnProduct of normalizer.cuh is the other.
struct NoColumn {
  __device__ void fence() {}
  __device__ void issue(const uint32_t (&)[4], int) {}
  __device__ void issue(const char*) {}
};

/// sum += (b ∘ weights)ᵀ c of tiles of tokens; waited for. With weights in batches of 16 · kSteps tokens, whose left operand is in registers. `column`
/// issues its product with the same left operand.
template <typename Element, Weights kWeights, int kSteps = 4, typename Column = NoColumn>
__device__ __forceinline__ void add_to_state(float (&sum)[32], const char* b, const char* c, const float* write,
                                             float scale, Place at, Column&& column = {}) {
  if constexpr (kWeights != Weights::kNone) {
    const uint64_t right = ptx::operand_descriptor(c, kPanel);
#pragma unroll
    for (int first = 0; first < 4; first += kSteps) {
      uint32_t keys[kSteps][4];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        load_left_transposed(keys[k], ptx::shared_address(b), first + k, at);
        weigh_keys<Element, kWeights == Weights::kGates>(keys[k], write, scale, first + k, at.lane);
        ptx::fence_registers(keys[k]);
      }
      ptx::fence_registers(sum);
      column.fence();
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        ptx::wgmma<ptx::Major::kMN>(Element{}, sum, keys[k][0], keys[k][1], keys[k][2], keys[k][3],
                                    ptx::advance<kStepBytes<ptx::Major::kMN>>(right, first + k), true);
        column.issue(keys[k], first + k);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(sum);
      column.fence();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) ptx::fence_registers(keys[k]);
    }
  } else {
    ptx::fence_registers(sum);
    column.fence();
    ptx::wgmma_fence();
    issue_product<Element, ptx::Major::kMN, ptx::Major::kMN>(sum, b, c, true);
    column.issue(b);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(sum);
    column.fence();
  }
}

/// add_to_state with gates, of all 64 tokens: the first half's products run under the second half's weights, and `column` comes last.
template <typename Element, typename Column = NoColumn>
__device__ __forceinline__ void add_to_state_by_halves(float (&sum)[32], const char* b, const char* c,
                                                       const float* write, Place at, Column&& column = {}) {
  const uint64_t right = ptx::operand_descriptor(c, kPanel);
  uint32_t keys[4][4];
  const uint32_t own = ptx::shared_address(b) + transposed_piece(at);
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::load_matrices_transposed(keys[k], own + 2048 * k);
#pragma unroll
  for (int first = 0; first < 4; first += 2) {
#pragma unroll
    for (int k = first; k < first + 2; ++k) weigh_keys<Element, true>(keys[k], write, 1.0f, k, at.lane);
#pragma unroll
    for (int k = first; k < first + 2; ++k) ptx::fence_registers(keys[k]);
    if (first == 0) ptx::fence_registers(sum);
    else column.fence();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = first; k < first + 2; ++k)
      ptx::wgmma<ptx::Major::kMN>(Element{}, sum, keys[k][0], keys[k][1], keys[k][2], keys[k][3],
                                  ptx::advance<kStepBytes<ptx::Major::kMN>>(right, k), true);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) column.issue(keys[k], k);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(sum);
  column.fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::fence_registers(keys[k]);
}

/// Sums times `scale` in 16 bits: a left operand, or what store_packed stores.
template <typename Element>
__device__ __forceinline__ void pack_sums(uint32_t (&packed)[16], const float (&sum)[32], float scale) {
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i] = pack<Element>(sum[2 * i] * scale, sum[2 * i + 1] * scale);
}

/// A warp's 16 rows to a tile.
__device__ __forceinline__ void store_packed(uint32_t tile, const uint32_t (&packed)[16], Place at) {
#pragma unroll
  for (int c = 0; c < 4; ++c)
    ptx::store_matrices(tile + tile_piece(16 * at.block + at.lane % 16, 2 * c + at.lane / 16), packed[4 * c],
                        packed[4 * c + 1], packed[4 * c + 2], packed[4 * c + 3]);
}
/// The same by fewer instructions: of a lane's pieces 2c + i the place differs in bits 5 and 6 alone.
__device__ __forceinline__ void store_packed_from(uint32_t tile, const uint32_t (&packed)[16], Place at) {
  const uint32_t own = tile_piece(16 * at.block + at.lane % 16, at.lane / 16);
#pragma unroll
  for (int c = 0; c < 4; ++c)
    ptx::store_matrices(tile + (own ^ 32 * c), packed[4 * c], packed[4 * c + 1], packed[4 * c + 2], packed[4 * c + 3]);
}

/// A warp's 16 rows of a tile that begins at token `first`, by way of its part of a tile in shared memory whose last store has been read; `adds`: to
/// what is there.
__device__ __forceinline__ void store_rows_by_map(char* tile, const uint32_t (&packed)[16], const CUtensorMap& map,
                                                  int column, int64_t first, int64_t b, int64_t h, Place at,
                                                  bool adds = false) {
  store_packed(ptx::shared_address(tile), packed, at);
  ptx::fence_async_shared();
  __syncwarp();
  if (at.lane == 0) {
    const char* const rows = tile + 16 * at.block * 128;
    const int token = static_cast<int>(first) + 16 * at.block;
    if (adds) ptx::reduce_add_tile(&map, rows, column, static_cast<int>(h), token, static_cast<int>(b));
    else ptx::store_tile(&map, rows, column, static_cast<int>(h), token, static_cast<int>(b));
    ptx::bulk_commit();
  }
}

/// Row g's sums times `near`, row g + 8's times `far`.
__device__ __forceinline__ void scale_rows(float (&sum)[32], float near, float far) {
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i] *= i % 4 < 2 ? near : far;
}

__device__ __forceinline__ float largest_of(const float (&x)[32]) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 32; ++i) most = fmaxf(most, fabsf(x[i]));
  return most;
}

/// Of a warp's lanes, each at least 0.
__device__ __forceinline__ float largest_of_warp(float x) {
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(x)));
}

/// A warpgroup's threads have kTo registers from here on, instead of kFrom.
template <int kFrom, int kTo>
__device__ __forceinline__ void change_registers() {
  if constexpr (kTo > kFrom) ptx::registers_grow<kTo>();
  else if constexpr (kTo < kFrom) ptx::registers_shrink<kTo>();
}

/// A warp's arrivals at an mbarrier, and which lanes arrive: lane 0, but in the build for racecheck all (hopper/handover.cuh).
using hopper::kArrivalsOfAWarp;
__device__ __forceinline__ bool arrives(int lane) { return kArrivalsOfAWarp > 1 || lane == 0; }

/// An arrival of a warp, after all its lanes.
__device__ __forceinline__ void arrive_warp(uint64_t* barrier, int lane) {
  __syncwarp();
  if (arrives(lane)) ptx::mbarrier_arrive(barrier);
}
/// At two barriers.
__device__ __forceinline__ void arrive_warp(uint64_t* barrier, uint64_t* other, int lane) {
  __syncwarp();
  if (!arrives(lane)) return;
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_arrive(other);
}

}  // namespace lethe::matrix_state

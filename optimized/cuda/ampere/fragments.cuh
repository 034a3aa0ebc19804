#pragma once
// A warp's operands and products: 16 rows a row tile, from swizzled tiles in shared memory (ptx/address.cuh) and from registers.

#include "optimized/cuda/ampere/sizes.hpp"
#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/ptx/address.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"
#include "optimized/cuda/ptx/mma.cuh"

namespace lethe::ampere {

/// Where a lane reads fragments of a tile of kDim columns: byte offsets in its first 16 rows and 16 columns.
template <int kDim>
struct LaneOffsets {
  uint32_t left;   // of a left operand, or of a right one that is transposed: by rows of the tile
  uint32_t right;  // of a right operand whose columns are the tile's rows

  __device__ LaneOffsets() {
    const int lane = threadIdx.x % 32;
    left = ptx::swizzled_chunk<kDim>(lane % 16, lane / 16);
    right = ptx::swizzled_chunk<kDim>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
};

/// The lane's address 16·step columns further.
template <int kDim>
__device__ __forceinline__ uint32_t at_step(uint32_t address, int step) {
  if constexpr (kDim % 64 == 0) return (address ^ (step % 4 << 5)) + step / 4 * 128;
  else return (address ^ (step % 2 << 5)) + step / 2 * 64;
}

/// Bytes of `rows` rows of a tile.
template <int kDim>
__host__ __device__ constexpr uint32_t tile_bytes(int rows) {
  return rows * kDim * 2;
}

/// A left operand's fragments of 16·kRowTiles rows.
template <int kDim, int kRowTiles>
using LeftFragments = uint32_t[kRowTiles][kDim / 16][4];

/// The first kHeldSteps sixteen columns of them, from a tile of kDim columns.
template <int kDim, int kRowTiles, int kHeldSteps>
__device__ __forceinline__ void load_lefts(uint32_t (&fragments)[kRowTiles][kHeldSteps][4], uint32_t lane_address) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
    for (int step = 0; step < kHeldSteps; ++step)
      ptx::load_matrices(fragments[tile][step], at_step<kDim>(lane_address + tile_bytes<kDim>(16 * tile), step));
}

/// The k-th sixteen columns' part of sums = initial + left · rightᵀ, of kColumns · 8 rows of the tile at `right` (a lane's address, as `left`). Left
/// fragments of the first kHeldSteps k come from registers, others from the tile at `left`. initial(row tile, column tile) is read at k = 0.
template <typename Element, int kDim, int kHeldSteps, int kRowTiles, int kColumns, typename Fragments, typename Initial>
__device__ __forceinline__ void multiply_rows(float (&sums)[kRowTiles][kColumns][4], const Fragments& fragments,
                                              uint32_t left, uint32_t right, int k, Initial initial) {
  uint32_t of_left[kRowTiles][4];
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    if (k < kHeldSteps) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of_left[tile][i] = fragments[tile][k][i];
    } else {
      ptx::load_matrices(of_left[tile], at_step<kDim>(left + tile_bytes<kDim>(16 * tile), k));
    }
  }
#pragma unroll
  for (int column = 0; column < kColumns; column += 2) {
    uint32_t of_right[4];
    ptx::load_matrices(of_right, at_step<kDim>(right + tile_bytes<kDim>(8 * column), k));
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
      for (int c = column; c < column + 2; ++c) {
        const uint32_t low = of_right[2 * (c - column)], high = of_right[2 * (c - column) + 1];
        if (k == 0) ptx::multiply_add<Element>(sums[tile][c], of_left[tile], low, high, initial(tile, c));
        else ptx::multiply_add<Element>(sums[tile][c], of_left[tile], low, high);
      }
  }
}

/// sums += left · the 16 rows of kDim columns at `right`, a lane's address.
template <typename Element, int kDim, int kRowTiles>
__device__ __forceinline__ void multiply_columns(float (&sums)[kRowTiles][kDim / 8][4],
                                                 const uint32_t (&left)[kRowTiles][4], uint32_t right) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t of_right[4];
    ptx::load_matrices_transposed(of_right, at_step<kDim>(right, step));
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      ptx::multiply_add<Element>(sums[tile][2 * step], left[tile], of_right[0], of_right[1]);
      ptx::multiply_add<Element>(sums[tile][2 * step + 1], left[tile], of_right[2], of_right[3]);
    }
  }
}

/// A thread's part of the copies of one head's rows to tiles in shared memory: zeros past `length` rows and `dim` columns, a multiple of 8. The
/// operand is in halves.
template <int kDim, int kThreads>
struct RowCopies {
  static constexpr int kLanes = kDim % 64 == 0 ? 8 : 4, kRowsAtOnce = kThreads / kLanes;
  const char* data;  // of the thread's row and chunk
  const int64_t& token_stride;
  int length;  // less the thread's row
  int chunks;  // less the thread's chunk

  __device__ __forceinline__ RowCopies(const Operand& operand, int batch, int head, int length, int dim)
      : token_stride(operand.token_stride), length(length - int(threadIdx.x) / kLanes),
        chunks(dim / 8 - int(threadIdx.x) % kLanes) {
    data = static_cast<const char*>(operand.data) + threadIdx.x % kLanes * 16 +
           (batch * operand.batch_stride + head * operand.head_stride + threadIdx.x / kLanes * token_stride) * 2;
  }

  /// Rows first … first + kRows − 1 to the tile at `shared`.
  template <int kRows>
  __device__ __forceinline__ void copy(uint32_t shared, int first) const {
    const int row = threadIdx.x / kLanes;
    shared += ptx::swizzled_chunk<kDim>(row, threadIdx.x % kLanes);
    const char* source = data + first * token_stride * 2;
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kRowsAtOnce) {
      if (kRows % kRowsAtOnce != 0 && begin + row >= kRows) break;
#pragma unroll
      for (int i = 0; i < kDim / 8 / kLanes; ++i) {
        // No other address where nothing is read: a copy that chooses one waits until the copy before has read its own.
        ptx::copy_chunk(shared + tile_bytes<kDim>(begin) + i * kLanes * 16, source + i * kLanes * 16,
                        first + begin < length && i * kLanes < chunks);
      }
      source += kRowsAtOnce * token_stride * 2;
    }
  }
};

}  // namespace lethe::ampere

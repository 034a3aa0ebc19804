#pragma once
// Tiles of 64 tokens in shared memory, and how they get there.

#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/matrix_state/sweep.hpp"
#include "optimized/cuda/ptx/copy_async.cuh"

namespace lethe::matrix_state {

/// Bytes of a panel: 64 rows of 64 16-bit elements, as the copy engine leaves them with its 128-byte swizzle. A tile is one or more of them.
constexpr int kPanel = kChunk * 128;
template <int kColumns>
inline constexpr int kPanelsOf = (kColumns + 63) / 64;

/// Byte offset of 16-byte piece `piece` of a tile's row.
__device__ inline uint32_t tile_piece(uint32_t row, uint32_t piece) {
  return piece / 8 * kPanel + ptx::swizzled_chunk<64>(row, piece % 8);
}

/// Head h of an operand; of one whose heads are one, a stride of 0, that one.
__device__ __forceinline__ int head_of(const Operand& operand, int64_t h) {
  return operand.head_stride ? static_cast<int>(h) : 0;
}

/// One thread: the tile of 64 tokens from `first` and kPanels · 64 columns from `column`; `barrier` counts its bytes.
template <int kPanels>
__device__ __forceinline__ void load_panels(char* to, const CUtensorMap& map, uint64_t* barrier, int column,
                                            int64_t first, int64_t b, int head) {
#pragma unroll
  for (int i = 0; i < kPanels; ++i)
    ptx::load_tile(to + i * kPanel, &map, barrier, column + 64 * i, head, static_cast<int>(first), static_cast<int>(b));
}

/// The CTA: the same tile of head_of(from, h); tokens past the end and columns past `columns` are zeros. By thread 0 where the copy engine brings it.
template <int kPanels>
__device__ void copy_tile(char* to, const CUtensorMap& map, const Operand& from, uint64_t* barrier, int column,
                          int columns, int64_t first, int64_t length, int64_t b, int64_t h) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x > 0) return;
  load_panels<kPanels>(to, map, barrier, column, first, b, head_of(from, h));
#else
  const int64_t token_bytes = from.token_stride * 2;
  const char* start = static_cast<const char*>(from.data) +
                      (b * from.batch_stride + h * from.head_stride + column) * 2 + first * token_bytes;
  for (int piece = threadIdx.x % 8; piece < 8 * kPanels; piece += 8)
#pragma unroll
    for (int row = threadIdx.x / 8; row < kChunk; row += kComputing / 8) {
      const bool valid = column + piece * 8 < columns && first + row < length;
      ptx::copy_chunk(ptx::shared_address(to) + tile_piece(row, piece),
                      valid ? start + row * token_bytes + piece * 16 : start, valid);
    }
#endif
}

}  // namespace lethe::matrix_state

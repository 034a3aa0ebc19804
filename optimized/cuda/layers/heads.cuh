#pragma once
// Rows of heads: a warp goes down the rows of one head, some of them at a time. Internal to optimized/cuda/layers.

#include <algorithm>

#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {

constexpr int kHeadWarps = 8, kHeadThreads = 32 * kHeadWarps;
constexpr int kHeadRows = 4;  // whose loads are in flight

/// The head of this warp, and its rows: first, first + step, …, kHeadRows of them beside each other.
struct HeadPlace {
  int64_t head, first, step;
};
__device__ inline HeadPlace head_place(int64_t heads) {
  const unsigned of_heads = static_cast<unsigned>((heads + kHeadWarps - 1) / kHeadWarps);
  const unsigned part = blockIdx.x / of_heads, parts = gridDim.x / of_heads;
  return {int64_t{blockIdx.x - part * of_heads} * kHeadWarps + threadIdx.x / 32, int64_t{part} * kHeadRows,
          int64_t{parts} * kHeadRows};
}

/// Blocks that fill the GPU: `parts` of the rows, each with a block for every kHeadWarps heads.
struct HeadBlocks {
  unsigned parts, blocks;
};
inline HeadBlocks head_blocks(int64_t rows, int64_t heads) {
  const int64_t of_heads = (heads + kHeadWarps - 1) / kHeadWarps, of_rows = (rows + kHeadRows - 1) / kHeadRows;
  constexpr int64_t kBlocks = 8;  // of a multiprocessor
  const int64_t most = std::max<int64_t>(1, kBlocks * multiprocessors() / of_heads);
  const int64_t parts = std::max<int64_t>(1, std::min(most, of_rows));
  return {static_cast<unsigned>(parts), static_cast<unsigned>(parts * of_heads)};
}

/// work.operator()<V>(): the elements of a lane that one load brings. fits(V): whether the arrays hold such pieces.
template <typename Work, typename Fits>
void with_head_piece(int64_t head_dim, const Fits& fits, const Work& work) {
  if (head_dim % 128 == 0 && fits(std::integral_constant<int, 4>())) return work.template operator()<4>();
  if (head_dim % 64 == 0 && fits(std::integral_constant<int, 2>())) return work.template operator()<2>();
  work.template operator()<1>();
}

}  // namespace lethe::layers

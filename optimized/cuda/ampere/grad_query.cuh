#pragma once
// dQ += dS K and the row sums of dS, where a CTA owns keys: its warps store dSᵀ of a stage of queries, and after a barrier each multiplies its own
// columns of K with all of it. What results is added to float sums in global memory, in any order.

#include "optimized/cuda/ampere/backward_warp.cuh"

namespace lethe::ampere {

template <typename Sizes>
struct FusedShared : BackwardShared<Sizes> {
  static constexpr int kColumns = Sizes::kColumns;
  static constexpr int kParts = Sizes::kRows / (16 * Sizes::kRowTiles);                // of the keys, one a warp
  alignas(128) char grad_scores[Sizes::kBuffers][tile_bytes<kColumns>(Sizes::kRows)];  // dSᵀ of a stage: keys × queries
  float row_sums[Sizes::kBuffers][kParts][kColumns];  // Σ_j dS_ij over a part of the keys
};

/// The part of the keys that a warp has.
template <typename Sizes>
__device__ __forceinline__ int own_part() {
  return threadIdx.x / 32 % FusedShared<Sizes>::kParts;
}

/// Adds a lane's part of a 16×8 sum of dQ, `sums` in mma's order, to the 128 floats at `tile`: by one instruction from compute capability 9.0 on.
__device__ __forceinline__ void add_to_tile(float* tile, const float (&sums)[4]) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(tile + 4 * lane), "f"(sums[0]),
               "f"(sums[1]), "f"(sums[2]), "f"(sums[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) atomicAdd(tile + 32 * e + lane, sums[e]);
#endif
}

/// What all lanes have added there.
__device__ __forceinline__ void load_tile(float (&sums)[4], const float* tile) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  const float4 four = reinterpret_cast<const float4*>(tile)[lane];
  sums[0] = four.x, sums[1] = four.y, sums[2] = four.z, sums[3] = four.w;
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) sums[e] = tile[32 * e + lane];
#endif
}

/// The tile of dQ's sums of sixteen queries from `query` on and eight columns.
template <int kDim>
__device__ __forceinline__ float* grad_query_tile(const BackwardWorkspace& workspace, int64_t padded_row, int query) {
  return workspace.grad_query + (padded_row + query) * kDim;
}

/// Sixteen columns, from `column` on, of a warp's rows of Pᵀ or dSᵀ, packed in mma's order.
template <int kColumns, int kRowTiles>
__device__ __forceinline__ void store_scores(char* rows, int column, const uint32_t (&packed)[kRowTiles][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint32_t*>(rows + ptx::swizzled_chunk<kColumns>(16 * i + 8 * h + lane / 4, column / 8 + c) +
                                     lane % 4 * 4) = packed[i][2 * c + h];
}

template <int kColumns, int kRowTiles>
__device__ __forceinline__ void clear_scores(char* rows) {
  for (int i = threadIdx.x % 32 * 16; i < int(tile_bytes<kColumns>(16 * kRowTiles)); i += 32 * 16)
    *reinterpret_cast<uint4*>(rows + i) = uint4{0, 0, 0, 0};
}

/// By each warp: Σ_j dS_ij over its keys j, of sixteen queries i of a stage.
template <typename Sizes, int kRowTiles>
__device__ __forceinline__ void keep_row_sums(FusedShared<Sizes>& shared, int buffer, int column,
                                              const float (&grad)[kRowTiles][2][4]) {
  const int lane = threadIdx.x % 32, part = own_part<Sizes>();
  float sums[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[2 * c] += grad[i][c][2 * h];
        sums[2 * c + 1] += grad[i][c][2 * h + 1];
      }
  const float sum = tile::sum_of_sixteen_rows(sums, lane);
  if ((lane & 4) == 0) shared.row_sums[buffer][part][column + tile::row_of_sixteen(lane)] = sum;
}

/// By each warp: dS of its keys and sixteen queries of a stage, and the same sums.
template <typename Sizes, int kRowTiles>
__device__ __forceinline__ void keep_grad_scores(FusedShared<Sizes>& shared, int buffer, int column,
                                                 const float (&grad)[kRowTiles][2][4],
                                                 const uint32_t (&rounded)[kRowTiles][4]) {
  const int lane = threadIdx.x % 32, part = own_part<Sizes>();
  store_scores<Sizes::kColumns, kRowTiles>(
      shared.grad_scores[buffer] + tile_bytes<Sizes::kColumns>(part * 16 * kRowTiles), column, rounded);
  keep_row_sums(shared, buffer, column, grad);
}

/// The same where the warp's keys see none of the stage's queries.
template <typename Sizes>
__device__ __forceinline__ void keep_no_grad_scores(FusedShared<Sizes>& shared, int buffer) {
  const int lane = threadIdx.x % 32, part = own_part<Sizes>();
  clear_scores<Sizes::kColumns, Sizes::kRowTiles>(shared.grad_scores[buffer] +
                                                  tile_bytes<Sizes::kColumns>(part * 16 * Sizes::kRowTiles));
  for (int i = lane; i < Sizes::kColumns; i += 32) shared.row_sums[buffer][part][i] = 0;
}

/// By all warps, after a barrier: the keys' parts of a stage's row sums.
template <typename Sizes>
__device__ __forceinline__ void add_row_sums(FusedShared<Sizes>& shared, int buffer, float* row_sums) {
  if (threadIdx.x >= Sizes::kColumns) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < shared.kParts; ++i) sum += shared.row_sums[buffer][i][threadIdx.x];
  atomicAdd(row_sums + threadIdx.x, sum);
}

/// By all warps, after a barrier: what a stage adds to dQ and the row sums.
template <typename Element, typename Sizes>
__device__ __forceinline__ void add_grad_query(FusedShared<Sizes>& shared, const BackwardParameters& p, int row,
                                               int step) {
  // A warp has some groups of sixteen columns of K.
  constexpr int kDim = Sizes::kDim, kColumns = Sizes::kColumns, kWarps = Sizes::kWarps;
  constexpr int kRowTiles = kColumns / 16, kGroups = (kDim / 16 + kWarps - 1) / kWarps;
  const int warp = threadIdx.x / 32, query = step * kColumns, buffer = step % Sizes::kBuffers;
  const int64_t padded_row = int64_t{row} * p.padded_queries;
  if (kDim / 16 == kGroups * kWarps || warp < kDim / 16) {
    float sums[kGroups][kRowTiles][2][4] = {};
    const LaneOffsets<kDim> keys;
    const LaneOffsets<kColumns> scores;
    const uint32_t right = ptx::shared_address(shared.first_left()) + keys.left,
                   left = ptx::shared_address(shared.grad_scores[buffer]) + scores.right;
#pragma unroll
    for (int key = 0; key < Sizes::kRows; key += 16) {
      uint32_t of_right[kGroups][4];
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        ptx::load_matrices_transposed(of_right[g], at_step<kDim>(right, kGroups * warp + g) + tile_bytes<kDim>(key));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        uint32_t of_left[4];
        ptx::load_matrices_transposed(of_left, at_step<kColumns>(left + tile_bytes<kColumns>(key), i));
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          ptx::multiply_add<Element>(sums[g][i][0], of_left, of_right[g][0], of_right[g][1]);
          ptx::multiply_add<Element>(sums[g][i][1], of_left, of_right[g][2], of_right[g][3]);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          add_to_tile(
              grad_query_tile<kDim>(p.workspace, padded_row, query + 16 * i) + 128 * (2 * (kGroups * warp + g) + c),
              sums[g][i][c]);
  }
  add_row_sums(shared, buffer, p.workspace.row_sums + padded_row + query);
}

}  // namespace lethe::ampere

#pragma once
// dQ += dS K and the row sums of dS, where a CTA owns keys: its warps store dSᵀ of a stage of queries, and after a barrier each multiplies its own
// columns of K with all of it. What results is added to float sums in global memory, in any order.

#include "optimized/cuda/ampere/backward_warp.cuh"

namespace lethe::ampere {

template <typename Sizes>
struct FusedShared : BackwardShared<Sizes> {
  static constexpr int kColumns = Sizes::kColumns;
  alignas(128) char grad_scores[2][tile_bytes<kColumns>(Sizes::kRows)];  // dSᵀ of a stage: keys × queries
  float row_sums[2][Sizes::kWarps][kColumns];                            // Σ_j dS_ij over a warp's keys
};

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

/// By each warp: dS of its keys and sixteen queries of a stage.
template <typename Sizes, int kRowTiles>
__device__ __forceinline__ void keep_grad_scores(FusedShared<Sizes>& shared, int buffer, int column,
                                                 const float (&grad)[kRowTiles][2][4],
                                                 const uint32_t (&rounded)[kRowTiles][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  char* scores = shared.grad_scores[buffer] + tile_bytes<Sizes::kColumns>(warp * 16 * kRowTiles);
  float sums[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(
            scores + ptx::swizzled_chunk<Sizes::kColumns>(16 * i + 8 * h + lane / 4, column / 8 + c) + lane % 4 * 4) =
            rounded[i][2 * c + h];
        sums[2 * c] += grad[i][c][2 * h];
        sums[2 * c + 1] += grad[i][c][2 * h + 1];
      }
  const float sum = tile::sum_of_sixteen_rows(sums, lane);
  if ((lane & 4) == 0) shared.row_sums[buffer][warp][column + tile::row_of_sixteen(lane)] = sum;
}

/// The same where the warp's keys see none of the stage's queries.
template <typename Sizes>
__device__ __forceinline__ void keep_no_grad_scores(FusedShared<Sizes>& shared, int buffer) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kBytes = tile_bytes<Sizes::kColumns>(16 * Sizes::kRowTiles);
  for (int i = lane * 16; i < kBytes; i += 32 * 16)
    *reinterpret_cast<uint4*>(shared.grad_scores[buffer] + warp * kBytes + i) = uint4{0, 0, 0, 0};
  for (int i = lane; i < Sizes::kColumns; i += 32) shared.row_sums[buffer][warp][i] = 0;
}

/// By all warps, after a barrier: what a stage adds to dQ and the row sums.
template <typename Element, typename Sizes>
__device__ __forceinline__ void add_grad_query(FusedShared<Sizes>& shared, const BackwardParameters& p, int row,
                                               int step) {
  constexpr int kDim = Sizes::kDim, kColumns = Sizes::kColumns, kRowTiles = kColumns / 16;
  const int warp = threadIdx.x / 32, query = step * kColumns;
  const int64_t padded_row = int64_t{row} * p.padded_queries;
  if (kDim / 16 == Sizes::kWarps || warp < kDim / 16) {
    float sums[kRowTiles][2][4] = {};
    const LaneOffsets<kDim> keys;
    const LaneOffsets<kColumns> scores;
    const uint32_t right = at_step<kDim>(ptx::shared_address(shared.first_left()) + keys.left, warp),
                   left = ptx::shared_address(shared.grad_scores[step & 1]) + scores.right;
#pragma unroll
    for (int key = 0; key < Sizes::kRows; key += 16) {
      uint32_t of_right[4];
      ptx::load_matrices_transposed(of_right, right + tile_bytes<kDim>(key));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        uint32_t of_left[4];
        ptx::load_matrices_transposed(of_left, at_step<kColumns>(left + tile_bytes<kColumns>(key), i));
        ptx::multiply_add<Element>(sums[i][0], of_left, of_right[0], of_right[1]);
        ptx::multiply_add<Element>(sums[i][1], of_left, of_right[2], of_right[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        add_to_tile(grad_query_tile<kDim>(p.workspace, padded_row, query + 16 * i) + 128 * (2 * warp + c), sums[i][c]);
  }
  if (threadIdx.x < kColumns) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Sizes::kWarps; ++i) sum += shared.row_sums[step & 1][i][threadIdx.x];
    atomicAdd(p.workspace.row_sums + padded_row + query + threadIdx.x, sum);
  }
}

}  // namespace lethe::ampere

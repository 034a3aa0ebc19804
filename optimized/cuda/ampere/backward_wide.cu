// All gradients in one kernel: a CTA owns keys and walks over the queries that see them. Two warps share the rows of Sᵀ: each has half of a stage's
// queries of S and dP, and after a barrier half of the columns of dK and dV.

#include <climits>

#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/grad_query.cuh"
#include "optimized/cuda/ampere/key_tile.cuh"

namespace lethe::ampere {
namespace {

template <int kHeadDim>
struct WideSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1, kRows = 64 * kRowTiles;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kColumns = kDim <= 128 ? 64 : 32, kBuffers = 1, kQueryParts = kDim <= 128 ? 2 : 1;
  static constexpr bool kFirstInShared = true, kSecondInRegisters = false;
};

template <typename Sizes>
struct WideShared : FusedShared<Sizes> {
  alignas(128) char weights[tile_bytes<Sizes::kColumns>(Sizes::kRows)];  // Pᵀ of a stage
  float column_sums[Sizes::kRows];                                       // of dS, over the second half of the queries
};

template <typename Element, typename WarpSizes>
struct WideWarp {
  using Sizes = WarpSizes;
  using Shared = WideShared<Sizes>;
  using Stage = BackwardStage<Sizes>;
  static constexpr bool kFloat = false;
  static constexpr int kDim = Sizes::kDim, kRowTiles = Sizes::kRowTiles, kColumns = Sizes::kColumns;
  static constexpr int kOwnColumns = kColumns / 2, kScoreTiles = kOwnColumns / 8, kOwnDims = kDim / 2;

  struct Registers {
    float key[kRowTiles][kOwnDims / 8][4], value[kRowTiles][kOwnDims / 8][4];  // dK and dV
    float sum[kRowTiles][2];                                                   // of a row of dSᵀ
    float offset[kRowTiles][2];  // of a row's logits in this stage, in log₂
  };
  using Scores = float[kRowTiles][kScoreTiles][4];

  Shared& shared;
  const int lane, half, warp_row;
  const float scale_log2;
  const LaneOffsets<kDim> offsets;
  const LaneOffsets<kColumns> score_offsets;

  __device__ __forceinline__ WideWarp(Shared& shared, float scale_log2)
      : shared(shared), lane(threadIdx.x % 32), half(threadIdx.x / 128),
        warp_row(threadIdx.x / 32 % 4 * 16 * kRowTiles), scale_log2(scale_log2) {}

  __device__ __forceinline__ int row_of(int row_tile, int h) const {
    return warp_row + 16 * row_tile + 8 * h + lane / 4;
  }
  __device__ __forceinline__ int first_column() const { return half * kOwnColumns; }

  __device__ __forceinline__ void clear(Registers& r) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int d = 0; d < kOwnDims / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) r.key[i][d][e] = r.value[i][d][e] = 0;
  }

  /// P and dS of the warp's queries of a stage, to shared memory. As BackwardWarp::add_columns.
  template <bool kDeltaOfColumns, typename Mask, typename Keep>
  __device__ __forceinline__ void add_columns(Registers& r, const Stage& stage, uint32_t, int column, Mask mask,
                                              Keep keep) const {
    const uint32_t own = tile_bytes<kDim>(warp_row) + offsets.left, right = tile_bytes<kDim>(column) + offsets.right;
    const uint32_t keys = ptx::shared_address(shared.first_kept) + own,
                   values = ptx::shared_address(shared.second_kept) + own,
                   queries = ptx::shared_address(stage.first) + right,
                   grads = ptx::shared_address(stage.second) + right;
    Scores score, grad;
    const float4 *bias = stage.bias + column / 2 + lane % 4, *delta = stage.negative_delta + column / 2 + lane % 4;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      multiply_rows<Element, kDim, false>(score, 0, keys, queries, k, [&](int, int c) { return bias[4 * c]; });
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      multiply_rows<Element, kDim, false>(grad, 0, values, grads, k, [&](int, int c) { return delta[4 * c]; });
    mask(score);
#pragma unroll
    for (int pair = 0; pair < kScoreTiles; pair += 2) {
      float x[kRowTiles][2][4];
      uint32_t weights[kRowTiles][4], rounded[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            x[i][c][e] = exp2_approximate(fmaf(score[i][pair + c][e], scale_log2, r.offset[i][e / 2]));
#pragma unroll
          for (int h = 0; h < 2; ++h) weights[i][2 * c + h] = pack<Element>(x[i][c][2 * h], x[i][c][2 * h + 1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            x[i][c][e] *= grad[i][pair + c][e];
            r.sum[i][e / 2] += x[i][c][e];
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) rounded[i][2 * c + h] = pack<Element>(x[i][c][2 * h], x[i][c][2 * h + 1]);
        }
      store_scores<kColumns, kRowTiles>(shared.weights + tile_bytes<kColumns>(warp_row), column + 8 * pair, weights);
      keep(8 * pair, x, rounded);
    }
  }

  /// dV and dK of a stage's P and dS.
  __device__ __forceinline__ void accumulate(Registers& r, const Stage& stage) const {
    add_product(r.value, shared.weights, stage.second);
    add_product(r.key, shared.grad_scores[0], stage.first);
  }

  /// The warp's columns of a sum of products of its keys' rows of `left` with all of `right`.
  __device__ __forceinline__ void add_product(float (&sums)[kRowTiles][kOwnDims / 8][4], const char* left,
                                              const char* right) const {
    const uint32_t lefts = ptx::shared_address(left) + tile_bytes<kColumns>(warp_row) + score_offsets.left,
                   rights = ptx::shared_address(right) + offsets.left;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t of_left[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        ptx::load_matrices(of_left[i], at_step<kColumns>(lefts + tile_bytes<kColumns>(16 * i), k));
#pragma unroll
      for (int d = 0; d < kOwnDims / 16; ++d) {
        uint32_t of_right[4];
        ptx::load_matrices_transposed(of_right,
                                      at_step<kDim>(rights + tile_bytes<kDim>(16 * k), half * (kOwnDims / 16) + d));
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          ptx::multiply_add<Element>(sums[i][2 * d], of_left[i], of_right[0], of_right[1]);
          ptx::multiply_add<Element>(sums[i][2 * d + 1], of_left[i], of_right[2], of_right[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void store(const float (&sums)[kRowTiles][kOwnDims / 8][4], float scale, Element* gradient,
                                        int64_t first_row, int rows, int64_t row_elements, int dim) const {
    store_rows<Element, kOwnDims, kRowTiles>(
        sums, scale, shared.left + threadIdx.x / 32 * tile_bytes<kOwnDims>(16 * kRowTiles), gradient + half * kOwnDims,
        first_row + warp_row, rows - warp_row, row_elements, dim - half * kOwnDims);
  }
};

template <typename Element, typename Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 1) backward_wide(const __grid_constant__ BackwardParameters p) {
  using Warp = WideWarp<Element, Sizes>;
  constexpr int kPitch = Sizes::kPitch, kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<WideShared<Sizes>*>(memory);
  wait_for_previous_kernel();

  const KeyPlace place = key_place<Sizes::kRows>(p);
  const int group = p.query_heads / p.heads, first_key = place.first_key, batch = place.batch, head = place.head;
  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  RowCopies<kPitch, Sizes::kThreads>(p.key, batch, head, p.key_length, p.key_dim)
      .template copy<Sizes::kRows>(ptx::shared_address(shared.first_kept), first_key);
  RowCopies<kPitch, Sizes::kThreads>(p.value, batch, head, p.key_length, p.value_dim)
      .template copy<Sizes::kRows>(ptx::shared_address(shared.second_kept), first_key);
  warp.clear(r);
  KeyTile<Warp> tile{p, warp, first_key};
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    tile.enter_head(batch * p.query_heads + query_head);
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i) r.sum[i][0] = r.sum[i][1] = 0;
    const StageCopies<Sizes> copies(p, batch, query_head, tile.row);
    const auto [first, past] = tile.steps();
    const auto load = [&, past = past](int step) {
      if (step < past) copies.load(shared.stage[step & 1], step * kColumns, tile.is_near(step * kColumns));
      ptx::copies_commit();
    };
    load(first);
    const auto advance = [&](int step) {
      ptx::copies_wait<0>();
      __syncthreads();
      load(step + 1);
    };
    const auto keep = [&](int column, const auto& grad, const auto& rounded) {
      keep_grad_scores(shared, 0, column, grad, rounded);
    };
    const auto finish = [&](int step) {
      __syncthreads();
      warp.accumulate(r, shared.stage[step & 1]);
      add_grad_query<Element>(shared, p, tile.row, step);
    };
    for (int step = first; step < past;) {
#pragma unroll 1
      for (; step < past && tile.is_special(step * kColumns); ++step) {
        advance(step);
        if (!tile.is_unseen(step * kColumns)) {
          tile.visit(r, shared.stage[step & 1], step * kColumns, keep);
        } else {
          keep_no_grad_scores(shared, 0);
          clear_scores<kColumns, Sizes::kRowTiles>(shared.weights + tile_bytes<kColumns>(warp.warp_row));
        }
        finish(step);
      }
#pragma unroll 1
      for (; step < past && !tile.is_special(step * kColumns); ++step) {
        advance(step);
        tile.visit_clean(r, shared.stage[step & 1], keep);
        finish(step);
      }
    }
    float sums[Sizes::kRowTiles][2];
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[i][h] = tile::sum_of_column(r.sum[i][h]);
        if (warp.half == 1 && warp.lane % 4 == 0) shared.column_sums[warp.row_of(i, h)] = sums[i][h];
      }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (warp.half == 0 && warp.lane % 4 == 0)
          p.workspace.column_sums[int64_t{tile.row} * p.key_blocks * kBlock + tile.key_of(i, h)] =
              sums[i][h] + shared.column_sums[warp.row_of(i, h)];
    __syncthreads();
  }
  ptx::copies_wait<0>();
  const int left = p.key_length - first_key;
  warp.store(r.key, p.scale, rows_of<Element>(p.grad_key, batch, head), first_key, left, p.grad_key.token_stride,
             p.key_dim);
  warp.store(r.value, 1, rows_of<Element>(p.grad_value, batch, head), first_key, left, p.grad_value.token_stride,
             p.value_dim);
}

template <int kDim>
inline constexpr int kWideBytes = sizeof(WideShared<WideSizes<kDim>>);

}  // namespace

int bytes_of_wide(int64_t dim) { return dim == 128 ? kWideBytes<128> : dim == 256 ? kWideBytes<256> : INT_MAX; }

void launch_backward_wide(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& s = arguments.shape;
  BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, s, [&]<typename Element, int kDim> {
    if constexpr (sizeof(Element) == 2 && kDim >= 128) {
      using Sizes = WideSizes<kDim>;
      p.query_tiles = int((s.key_length + Sizes::kRows - 1) / Sizes::kRows);
      p.tiles = int(s.batch * s.heads) * p.query_tiles;
      p.section = section_of_key_tiles(s, sizeof(Element), p.prefix.window);
      const auto kernel = backward_wide<Element, Sizes>;
      cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWideBytes<kDim>),
                 "backward");
      launch_overlapping(kernel, p.tiles, Sizes::kThreads, kWideBytes<kDim>, arguments.stream, p);
    }
  });
}

}  // namespace lethe::ampere

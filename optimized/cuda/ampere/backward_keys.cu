// dK, dV and the column sums of dS: one CTA a tile of keys, which walks over the queries that see it.

#include <numbers>

#include "optimized/cuda/ampere/backward_warp.cuh"
#include "optimized/cuda/ampere/dimensions.hpp"

namespace lethe::ampere {
namespace {

template <typename Element, int kDim, bool kKeys, bool kValues>
struct KeyTile {
  using Warp = BackwardWarp<Element, kDim, kKeys, kValues>;
  using Sizes = BackwardSizes<kDim>;
  using Registers = typename Warp::Registers;
  static constexpr int kRowTiles = Sizes::kRowTiles, kColumns = Sizes::kColumns, kBlock = kGateBlock;

  const BackwardParameters& p;
  const Warp& warp;
  const int first_key;
  int row;                       // b·Hq + h
  int cut;                       // the first query that doesn't see the tile's first key
  float key_bias[kRowTiles][2];  // log₂e (c at the keys' block's end − c_j)
  TwoFloats end;                 // log₂e·c there

  __device__ __forceinline__ int key_of(int row_tile, int h) const { return first_key + warp.row_of(row_tile, h); }

  /// Whether the keys have positions of these queries or later ones. There c_i and c_j may be large and their difference small: it is added to each
  /// logit, and no bias enters the product.
  __device__ __forceinline__ bool is_near(int query) const { return first_key / kBlock >= block_of(p, query); }

  __device__ __forceinline__ float bias_of(int key) const {
    const float4* bias = p.scratch.key_bias + int64_t{row} * p.key_blocks * (kBlock / 2);
    return reinterpret_cast<const float*>(bias + key / 2)[key % 2];
  }

  __device__ __forceinline__ void enter_head(int of_row) {
    row = of_row;
    end = p.scratch.base_log2[int64_t{row} * (p.key_blocks + 1) + first_key / kBlock + 1];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) key_bias[i][h] = bias_of(key_of(i, h)) * p.scale_log2;
    cut = visibility_of_keys(p.prefix, row, p.key_blocks, first_key / kBlock).end_query(first_key);
  }

  /// S += (c_i − log_normalizer_i − c_j) / scale of sixteen near queries; near strong gates from more than floats.
  __device__ __forceinline__ void add_decay(typename Warp::Scores& score, int query) const {
    const int64_t at = int64_t{row} * p.padded_queries + query + 2 * (warp.lane % 4);
    const bool strong = near_strong(p, row, block_of(p, query));
    const float of_blocks = decay_of_blocks(p, row, block_of(p, query), first_key / kBlock);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = min(key_of(i, h), p.key_length - 1);
        const double exact = prefix_at(p.prefix, row, p.key_blocks, key);
        const float of_key = bias_of(key);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float4 of_queries = p.workspace.row_bias[at / 2 + 4 * c];
#pragma unroll
          for (int e = 0; e < 2; ++e)
            score[i][c][2 * h + e] +=
                strong ? static_cast<float>((p.workspace.row_number[at + 8 * c + e] - exact) * p.inverse_scale)
                       : ((e ? of_queries.y : of_queries.x) + of_blocks) + of_key;
        }
      }
  }

  __device__ __forceinline__ void mask(typename Warp::Scores& score, int query) const {
    const float masked = p.scale_log2 > 0 ? -INFINITY : INFINITY;
    const auto visibility = visibility_of_keys(p.prefix, row, p.key_blocks, first_key / kBlock);
    const int position = query + p.query_offset + 2 * (warp.lane % 4);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = key_of(i, h), first = visibility.first_query(key) - position,
                  past = visibility.end_query(key) - position;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * c + e < first || 8 * c + e >= past) score[i][c][2 * h + e] = masked;
      }
  }

  /// Whether some of a stage's pairs may be masked.
  __device__ __forceinline__ bool is_special(int query) const {
    return is_near(query) || query + p.query_offset + kColumns > cut;
  }

  __device__ __forceinline__ void find_offset(Registers& r, const typename Warp::Stage& stage, bool near) const {
    const float decay = (stage.base.high - end.high) + (stage.base.low - end.low);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) r.offset[i][h] = near ? 0 : decay + key_bias[i][h];
  }

  __device__ __forceinline__ void visit(Registers& r, const typename Warp::Stage& stage, int query) const {
    if (query + p.query_offset + kColumns <= first_key + warp.warp_row) return;  // all before the warp's keys
    const bool near = is_near(query);
    find_offset(r, stage, near);
#pragma unroll 1
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<true>(r, stage, ptx::shared_address(&stage), column, [&](typename Warp::Scores& score) {
        if (near) add_decay(score, query + column);
        mask(score, query + column);
      });
  }

  __device__ __forceinline__ void visit_clean(Registers& r, const typename Warp::Stage& stage) const {
    find_offset(r, stage, false);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<true>(r, stage, ptx::shared_address(&stage), column, [](typename Warp::Scores&) {});
  }
};

template <typename Element, int kDim, bool kKeys, bool kValues>
__global__ void __launch_bounds__(BackwardSizes<kDim>::kThreads, 2)
    backward_keys(const __grid_constant__ BackwardParameters p) {
  using Sizes = BackwardSizes<kDim>;
  using Warp = BackwardWarp<Element, kDim, kKeys, kValues>;
  constexpr int kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<kDim>*>(memory);
  wait_for_previous_kernel();

  // Longest first: sections of heads, those with most blocks first; inside a section from the first keys on, heads innermost.
  const int group = p.query_heads / p.heads, rows = p.tiles / p.query_tiles;
  const int per_section = p.section * p.query_tiles, section = blockIdx.x / per_section,
            within = blockIdx.x % per_section, width = min(p.section, rows - section * p.section);
  const int key_row = p.order.key_head_order[section * p.section + within % width],
            first_key = within / width * Sizes::kRows;
  const int batch = key_row / p.heads, head = key_row % p.heads;

  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  warp.load(r, {p.key, batch, head, p.key_length, p.key_dim}, {p.value, batch, head, p.key_length, p.value_dim},
            first_key);
  KeyTile<Element, kDim, kKeys, kValues> tile{p, warp, first_key};
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    tile.enter_head(batch * p.query_heads + query_head);
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i) r.sum[i][0] = r.sum[i][1] = 0;
    const RowCopies<kDim, Sizes::kThreads> queries(p.query, batch, query_head, p.query_length, p.key_dim),
        grads(p.grad_values, batch, query_head, p.query_length, p.value_dim);
    const int64_t of_row = int64_t{tile.row} * p.padded_queries / 2;
    const auto load = [&](int step) {
      BackwardStage<kDim>& stage = shared.stage[step & 1];
      const int query = step * kColumns;
      queries.template copy<kColumns>(ptx::shared_address(stage.first), query);
      grads.template copy<kColumns>(ptx::shared_address(stage.second), query);
      if (threadIdx.x < kColumns / 2)
        ptx::copy_chunk(ptx::shared_address(&stage.bias[threadIdx.x]),
                        p.workspace.row_bias + of_row + query / 2 + threadIdx.x, !tile.is_near(query));
      else if (threadIdx.x < kColumns)
        ptx::copy_chunk(ptx::shared_address(&stage.negative_delta[threadIdx.x - kColumns / 2]),
                        p.workspace.negative_delta + of_row + query / 2 + threadIdx.x - kColumns / 2);
      else if (threadIdx.x == kColumns)
        ptx::copy_chunk(ptx::shared_address(&stage.base),
                        p.scratch.base_log2 + int64_t{tile.row} * (p.key_blocks + 1) + block_of(p, query));
    };
    const int last_block = p.boundary.last_query_block[int64_t{tile.row} * p.key_blocks + first_key / kBlock];
    const int first = max(0, first_key - p.query_offset) / kColumns,
              past = (min((last_block + 1) * kBlock, p.query_length) + kColumns - 1) / kColumns;
    if (first < past) load(first);
    ptx::copies_commit();
    const auto advance = [&](int step) {
      ptx::copies_wait<0>();
      __syncthreads();
      if (step + 1 < past) load(step + 1);
      ptx::copies_commit();
    };
    for (int step = first; step < past;) {
#pragma unroll 1
      for (; step < past && tile.is_special(step * kColumns); ++step) {
        advance(step);
        tile.visit(r, shared.stage[step & 1], step * kColumns);
      }
#pragma unroll 1
      for (; step < past && !tile.is_special(step * kColumns); ++step) {
        advance(step);
        tile.visit_clean(r, shared.stage[step & 1]);
      }
    }
    if constexpr (kKeys) {
#pragma unroll
      for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float sum = tile::sum_of_column(r.sum[i][h]);
          if (warp.lane % 4 == 0)
            p.workspace.column_sums[int64_t{tile.row} * p.key_blocks * kBlock + tile.key_of(i, h)] = sum;
        }
    }
    __syncthreads();
  }
  const int64_t first_row = int64_t{batch} * p.key_length + first_key;
  const int left = p.key_length - first_key;
  if constexpr (kKeys)
    warp.store(r.first, p.scale, static_cast<Element*>(p.grad_key) + head * p.key_dim, first_row, left,
               int64_t{p.heads} * p.key_dim, p.key_dim);
  if constexpr (kValues)
    warp.store(r.second, 1, static_cast<Element*>(p.grad_value) + head * p.value_dim, first_row, left,
               int64_t{p.heads} * p.value_dim, p.value_dim);
}

}  // namespace

BackwardParameters backward_parameters(const BackwardArguments& a, const BackwardWorkspace& workspace,
                                       const Plan& plan) {
  const Shape& s = a.shape;
  BackwardParameters p;
  p.prefix = plan.prefix;
  p.boundary = plan.boundary;
  p.order = plan.order;
  p.query_length = int(s.query_length);
  p.key_length = int(s.key_length);
  p.heads = int(s.heads);
  p.query_heads = int(s.query_heads);
  p.query_blocks = int(gate_blocks(s.query_length));
  p.key_blocks = int(gate_blocks(s.key_length));
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.grad_values = a.grad_values;
  p.scratch = plan.scratch;
  p.workspace = workspace;
  p.grad_query = a.grad_query;
  p.grad_key = a.grad_key;
  p.grad_value = a.grad_value;
  p.key_dim = int(s.key_dim);
  p.value_dim = int(s.value_dim);
  p.padded_queries = int(whole_blocks(s.query_length));
  p.query_offset = int(s.key_length - s.query_length);
  p.scale = float(a.scale);
  p.scale_log2 = float(divisor_scale(a.scale) * std::numbers::log2e);
  p.inverse_scale = 1 / divisor_scale(a.scale);
  return p;
}

void launch_backward_keys(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& s = arguments.shape;
  BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, s, [&]<typename Element, int kDim> {
    using Sizes = BackwardSizes<kDim>;
    const int rows = int(s.batch * s.heads);
    p.query_tiles = int((s.key_length + Sizes::kRows - 1) / Sizes::kRows);
    p.tiles = rows * p.query_tiles;
    p.section = heads_in_cache(s.query_length * (s.key_dim + s.value_dim) * 2 * (s.query_heads / s.heads), rows);
    constexpr int kBytes = sizeof(BackwardShared<kDim>);
    static_assert(kBytes <= kSmallSharedBytes);
    const auto launch = [&]<bool kKeys, bool kValues> {
      const auto kernel = backward_keys<Element, kDim, kKeys, kValues>;
      cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "backward");
      launch_overlapping(kernel, p.tiles, Sizes::kThreads, kBytes, arguments.stream, p);
    };
    if constexpr (kDim <= 128) {
      launch.template operator()<true, true>();
    } else {  // registers for one of the two sums
      launch.template operator()<true, false>();
      launch.template operator()<false, true>();
    }
  });
}

}  // namespace lethe::ampere

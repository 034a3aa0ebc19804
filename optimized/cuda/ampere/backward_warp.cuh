#pragma once
// What the backward's kernels do: a warp owns rows (keys, or queries), and columns (queries, or keys) pass by in stages.
//
//   S = first_left · first_rightᵀ + bias         P = exp2(a·S + offset of the row)       second += P · second_right
//   dP = second_left · second_rightᵀ − Δ         dS = P dP                               first += dS · first_right
//
//             first_left  second_left  first_right  second_right  first  second
//   keys      K           V            Q            dO            dK     dV
//   queries   Q           dO           K            V             dQ     –
//
// P and dS go from the accumulators of one product to the left operand of the next in registers: nothing passes between warps.

#include <algorithm>
#include <type_traits>

#include "optimized/cuda/ampere/backward.hpp"
#include "optimized/cuda/ampere/float_products.cuh"
#include "optimized/cuda/ampere/fragments.cuh"
#include "optimized/cuda/ampere/sizes.hpp"
#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/tile/order.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe::ampere {

struct BackwardParameters : tile::ForwardShape {
  Operand query, key, value, grad_values;
  Scratch scratch;
  BackwardWorkspace workspace;
  MutableOperand grad_query, grad_key, grad_value;
  int key_dim, value_dim, padded_queries, query_offset;
  float scale, scale_log2;
  double inverse_scale;
};

template <typename Sizes>
struct BackwardStage {
  static constexpr int kPitch = Sizes::kPitch, kColumns = Sizes::kColumns;
  alignas(128) char first[tile_bytes<kPitch>(kColumns)];
  alignas(128) char second[tile_bytes<kPitch>(kColumns)];
  float4 bias[kColumns / 2], negative_delta[kColumns / 2];  // of the columns; Δ where these are queries
  TwoFloats base;
};

template <typename Sizes>
struct BackwardShared {
  static constexpr int kLeftBytes = tile_bytes<Sizes::kPitch>(Sizes::kRows);
  static constexpr bool kFirstKept = Sizes::kFirstInShared, kSecondKept = !Sizes::kSecondInRegisters;
  static constexpr int kPassing = (kFirstKept ? 0 : 1) + (kSecondKept ? 0 : 1);
  // Left operands that are read from here throughout. Others are before the first stage is loaded where they are.
  alignas(128) char first_kept[kFirstKept ? kLeftBytes : 128];
  alignas(128) char second_kept[kSecondKept ? kLeftBytes : 128];
  union {
    BackwardStage<Sizes> stage[Sizes::kStages];
    alignas(128) char left[Sizes::kPitch == Sizes::kDim ? std::max(1, kPassing) * kLeftBytes : 128];
  };
  tile::Tile<Sizes::kRows> tile;
  union {
    int row_first[Sizes::kRows];  // where rows are queries: the first key that one sees
    int row_end[Sizes::kRows];    // where rows are keys: the first query that doesn't see one any more
  };

  __device__ __forceinline__ char* first_left() { return kFirstKept ? first_kept : left; }
  __device__ __forceinline__ char* second_left() {
    return kSecondKept ? second_kept : kFirstKept ? left : left + kLeftBytes;
  }
};

template <typename Sizes>
struct FloatBackwardShared : BackwardShared<Sizes> {
  FloatWeights<Sizes::kRowTiles> weights[Sizes::kWarps], grads[Sizes::kWarps];  // P and dS of sixteen columns
};

template <typename Element, typename Sizes>
using BackwardSharedOf =
    std::conditional_t<std::is_same_v<Element, float>, FloatBackwardShared<Sizes>, BackwardShared<Sizes>>;

/// The first row of a sequence's head.
template <typename Element>
__device__ __forceinline__ Element* rows_of(const MutableOperand& gradient, int64_t batch, int64_t head) {
  return static_cast<Element*>(gradient.data) + batch * gradient.batch_stride + head * gradient.head_stride;
}

/// A warp's 16·kRowTiles rows of a head's gradient, from first_row on, of which `rows` are left, row_elements apart. By way of `own`, shared memory
/// of the warp. kEveryOther: these are every other sixteen of the gradient's columns, the first of them at `gradient`.
template <typename Element, int kDim, int kRowTiles, bool kEveryOther = false>
__device__ __forceinline__ void store_rows(const float (&sums)[kRowTiles][kDim / 8][4], float scale, char* own,
                                           void* gradient, int64_t first_row, int rows, int64_t row_elements, int dim) {
  const int lane = threadIdx.x % 32;
  const auto place = [](uint32_t row, uint32_t chunk) {
    if constexpr (kDim % 32 == 0) return ptx::swizzled_chunk<kDim>(row, chunk);
    else return row * (kDim * 2) + chunk * 16;
  };
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
        *reinterpret_cast<uint32_t*>(own + place(16 * i + 8 * h + lane / 4, d) + lane % 4 * 4) =
            pack<Element>(sums[i][d][2 * h] * scale, sums[i][d][2 * h + 1] * scale);
  __syncwarp();
  constexpr int kChunks = kDim / 8;
  for (int i = lane; i < 16 * kRowTiles * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks, to = kEveryOther ? chunk / 2 * 4 + chunk % 2 : chunk;
    if (row >= rows || to * 8 >= dim) continue;
    Element* out = static_cast<Element*>(gradient) + (first_row + row) * row_elements;
    reinterpret_cast<uint4*>(out)[to] = *reinterpret_cast<const uint4*>(own + place(row, chunk));
  }
  __syncwarp();
}

/// A warp's work on its rows. kFirst, kSecond: which sums it forms.
template <typename WarpElement, typename WarpSizes, bool kFirst, bool kSecond>
struct BackwardWarp {
  using Element = WarpElement;
  using Sizes = WarpSizes;
  using Shared = BackwardSharedOf<Element, Sizes>;
  using Stage = BackwardStage<Sizes>;
  static constexpr bool kFloat = std::is_same_v<Element, float>;
  static constexpr int kDim = Sizes::kDim, kPitch = Sizes::kPitch, kRowTiles = Sizes::kRowTiles,
                       kColumns = Sizes::kColumns;
  static constexpr bool kSecondInRegisters = Sizes::kSecondInRegisters;

  // A thread's rows are 16·tile + 8·h + lane / 4 of its warp's; its columns 8·c + 2·(lane mod 4) + e of sixteen.
  struct Registers {
    LeftFragments<kFloat ? 16 : kDim, kRowTiles> first_left;
    LeftFragments<kSecondInRegisters ? kDim : 16, kRowTiles> second_left;
    float first[kFirst ? kRowTiles : 1][kDim / 8][4], second[kSecond ? kRowTiles : 1][kDim / 8][4];
    float sum[kRowTiles][2];             // of a row of dS
    float offset[kRowTiles][2];          // of a row's logits in this stage, in log₂
    float negative_delta[kRowTiles][2];  // of a row, where rows are queries
  };
  using Scores = float[kRowTiles][2][4];
  static constexpr int kScoreTiles = 2, kOwnColumns = kColumns;  // of eight queries at once; of a stage

  Shared& shared;
  const int lane, warp_row;
  const float scale_log2;
  const LaneOffsets<kPitch> offsets;

  __device__ __forceinline__ BackwardWarp(Shared& shared, float scale_log2)
      : shared(shared), lane(threadIdx.x % 32), warp_row(threadIdx.x / 32 * 16 * kRowTiles), scale_log2(scale_log2) {}

  __device__ __forceinline__ int row_of(int row_tile, int h) const {
    return warp_row + 16 * row_tile + 8 * h + lane / 4;
  }
  __device__ __forceinline__ int first_column() const { return 0; }  // of its own

  /// By all threads: the CTA's rows of both left operands, and cleared sums.
  __device__ __forceinline__ void load(Registers& r, const RowCopies<kPitch, Sizes::kThreads>& first,
                                       const RowCopies<kPitch, Sizes::kThreads>& second, int first_row) const {
    const uint32_t of_first = ptx::shared_address(shared.first_left()),
                   of_second = ptx::shared_address(shared.second_left());
    first.template copy<Sizes::kRows>(of_first, first_row);
    if constexpr (kFirst) second.template copy<Sizes::kRows>(of_second, first_row);
    ptx::copies_commit();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if constexpr (kFirst) r.first[i][d][e] = 0;
          if constexpr (kSecond) r.second[i][d][e] = 0;
        }
    ptx::copies_wait<0>();
    __syncthreads();
    if constexpr (!kFloat) {
      const uint32_t own = tile_bytes<kDim>(warp_row) + offsets.left;
      load_lefts<kDim, kRowTiles>(r.first_left, of_first + own);
      if constexpr (kFirst && kSecondInRegisters) load_lefts<kDim, kRowTiles>(r.second_left, of_second + own);
      __syncthreads();
    }
  }

  /// Sixteen columns of a stage, from `column` on. `mask(score)` hides pairs; `keep(0, dS, dS in 16 bits)` has what other warps' sums
  /// need.
  template <bool kDeltaOfColumns, typename Mask, typename Keep>
  __device__ __forceinline__ void add_columns(Registers& r, const Stage& stage, uint32_t stage_address, int column,
                                              Mask mask, Keep keep) const {
    const uint32_t first_right = stage_address + tile_bytes<kPitch>(column),
                   second_right = first_right + sizeof(Stage::first);
    Scores score, grad;
    float4 bias[2], delta[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      bias[c] = stage.bias[column / 2 + 4 * c + lane % 4];
      if constexpr (kDeltaOfColumns) delta[c] = stage.negative_delta[column / 2 + 4 * c + lane % 4];
    }
    const auto delta_of = [&](int i, int c) {
      if constexpr (kDeltaOfColumns) return delta[c];
      else
        return make_float4(r.negative_delta[i][0], r.negative_delta[i][0], r.negative_delta[i][1],
                           r.negative_delta[i][1]);
    };
    if constexpr (kFloat) {
      // Bias and Δ may be large: they come last.
      const uint32_t own = tile_bytes<kPitch>(warp_row), right = tile_bytes<kPitch>(column);
      multiply_float_rows<kDim>(score, shared.first_kept + own, stage.first + right);
      add_to_columns(score, [&](int, int c) { return bias[c]; });
      if constexpr (kFirst) {
        multiply_float_rows<kDim>(grad, shared.second_kept + own, stage.second + right);
        add_to_columns(grad, delta_of);
      }
    } else {
      const uint32_t second_left = ptx::shared_address(shared.second_kept) + tile_bytes<kDim>(warp_row) + offsets.left;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        multiply_rows<Element, kDim, kDim / 16>(score, r.first_left, 0, first_right + offsets.right, k,
                                                [&](int, int c) { return bias[c]; });
        if constexpr (kFirst)
          multiply_rows<Element, kDim, kSecondInRegisters ? kDim / 16 : 0>(grad, r.second_left, second_left,
                                                                           second_right + offsets.right, k, delta_of);
      }
    }
    mask(score);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          score[i][c][e] = exp2_approximate(fmaf(score[i][c][e], scale_log2, r.offset[i][e / 2]));
    uint32_t weights[kRowTiles][4], grads[kRowTiles][4];
    if constexpr (kSecond) hold<false>(weights, score);
    if constexpr (kFirst) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            score[i][c][e] *= grad[i][c][e];
            r.sum[i][e / 2] += score[i][c][e];
          }
      hold<true>(grads, score);
      keep(0, score, grads);
    }
    if constexpr (kFloat) {
      const uint32_t right = tile_bytes<kPitch>(column);
      if constexpr (kSecond)
        multiply_float_columns<kDim>(r.second, shared.weights[threadIdx.x / 32], stage.second + right);
      if constexpr (kFirst) multiply_float_columns<kDim>(r.first, shared.grads[threadIdx.x / 32], stage.first + right);
    } else {
      if constexpr (kSecond) multiply_columns<Element, kDim, kRowTiles>(r.second, weights, second_right + offsets.left);
      if constexpr (kFirst) multiply_columns<Element, kDim, kRowTiles>(r.first, grads, first_right + offsets.left);
    }
  }

  /// A left operand of sixteen columns, P or dS: packed to registers; floats to the warp's shared memory.
  template <bool kOfGrads>
  __device__ __forceinline__ void hold(uint32_t (&packed)[kRowTiles][4], const Scores& numbers) const {
    if constexpr (kFloat) {
      if constexpr (kOfGrads) shared.grads[threadIdx.x / 32].store(numbers, 0);
      else shared.weights[threadIdx.x / 32].store(numbers, 0);
    } else {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            packed[i][2 * c + h] = pack<Element>(numbers[i][c][2 * h], numbers[i][c][2 * h + 1]);
    }
  }

  template <typename Of>
  __device__ __forceinline__ void add_to_columns(Scores& numbers, Of of) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float4 four = of(i, c);
        numbers[i][c][0] += four.x, numbers[i][c][1] += four.y, numbers[i][c][2] += four.z, numbers[i][c][3] += four.w;
      }
  }

  /// The warp's rows of a gradient, by way of shared memory that no other warp reads any more. `rows` are left from the CTA's first on.
  __device__ __forceinline__ void store(const float (&sums)[kRowTiles][kDim / 8][4], float scale, void* gradient,
                                        int64_t first_row, int rows, int64_t row_elements, int dim) const {
    if constexpr (kFloat)
      store_float_rows<kDim>(sums, scale, static_cast<float*>(gradient), first_row + warp_row, rows - warp_row,
                             row_elements, dim);
    else
      store_rows<Element, kDim, kRowTiles>(sums, scale, shared.left + tile_bytes<kDim>(warp_row), gradient,
                                           first_row + warp_row, rows - warp_row, row_elements, dim);
  }
};

/// The block of positions that the first of a query's 128 is in: from there its number counts.
__device__ inline int block_of(const BackwardParameters& p, int query) {
  constexpr int kBlock = kGateBlock;
  return (query / kBlock * kBlock + p.query_offset) / kBlock;
}

/// Whether a block or the next is strong. row = b·Hq + h
__device__ inline bool near_strong(const BackwardParameters& p, int64_t row, int block) {
  const double* base = p.prefix.base + row * (p.key_blocks + 1);
  return base[block + 1] - base[block] < kStrongSum ||
         (block + 1 < p.key_blocks && base[block + 2] - base[block + 1] < kStrongSum);
}

/// (c before a query's block − c at the end of a key's) / scale.
__device__ inline float decay_of_blocks(const BackwardParameters& p, int64_t row, int query_block, int key_block) {
  const double* base = p.prefix.base + row * (p.key_blocks + 1);
  return static_cast<float>((base[query_block] - base[key_block + 1]) * p.inverse_scale);
}

/// What the kernels are launched with.
BackwardParameters backward_parameters(const BackwardArguments& arguments, const BackwardWorkspace& workspace,
                                       const Plan& plan);

}  // namespace lethe::ampere

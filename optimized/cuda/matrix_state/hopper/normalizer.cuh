#pragma once
// A column of the state that is kept apart from the values' columns, in float: with a normaliser the last one, z, whose value is 1 at every token; of
// the gradient R the last one, whose dO is the gradient of z·q. Products with it have eight columns, of which two are its two parts of 16 bits:
// together they have 16 bits of each number's mantissa at least, of float16 also 24 bits of the largest.

#include "optimized/cuda/hopper/ptx/wgmma_eight_columns.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_with_sums.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// What a call does about a normaliser: there is none; values are divided by it; it is read for the gradients, in place of values; or values are
/// divided, and what the backward divides by is left.
enum class Normalizer { kNone, kDivides, kGradients, kLeaves };

/// 64 numbers x in two parts: element i of part s at [i / 8][s][i % 8]. As a right operand without a swizzle its columns are the two parts and six of
/// which nothing is read.
struct alignas(16) SplitVector {
  uint16_t parts[8][2][8];
};
/// Bytes after one: a product's last step reads 96 of them, and memcheck counts 256 bytes a step.
constexpr int kBeyondSplitVector = 192;

template <typename Element>
__device__ __forceinline__ void store_parts(SplitVector& to, int i, float x) {
  const uint32_t near = pack<Element>(x, 0.0f), rest = pack<Element>(x - unpack<Element>(near).x, 0.0f);
  to.parts[i / 8][0][i % 8] = static_cast<uint16_t>(near);
  to.parts[i / 8][1][i % 8] = static_cast<uint16_t>(rest);
}

/// A warp: a chunk's numbers of a column, times 1 / unit where the type is float16; all 1 of a null pointer.
template <typename Element>
__device__ __forceinline__ void prepare_column(SplitVector& to, float& unit, float2 x, int lane) {
  unit = 1.0f;
  if constexpr (std::is_same_v<Element, __half>)
    unit = power_of_two_below(largest_of_warp(fmaxf(fabsf(x.x), fabsf(x.y))));
  const float inverse = reciprocal_of_power(unit);
  store_parts<Element>(to, 2 * lane, x.x * inverse);
  store_parts<Element>(to, 2 * lane + 1, x.y * inverse);
}

/// Numbers 2l and 2l + 1 of a column [B·H, chunks · 64] in the chunk that begins at `first`; 1 of a null pointer.
__device__ __forceinline__ float2 load_column(const float* column, int64_t head, int64_t chunks, int64_t first,
                                              int lane) {
  if (!column) return {1.0f, 1.0f};
  return *reinterpret_cast<const float2*>(column + head * chunks * kChunk + first + 2 * lane);
}

/// sum = (accumulate ? sum : 0) + left · right, issued: what lanes with t = 0 have in sum[2h] + sum[2h + 1] is row g + 8h.
template <typename Element, ptx::Major kLeft>
__device__ __forceinline__ void issue_column(float (&sum)[4], const char* left, const SplitVector& right,
                                             bool accumulate) {
  const uint64_t a = ptx::operand_descriptor(left, kPanel), b = ptx::unswizzled_descriptor(&right, 32, 0);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<kLeft, ptx::Major::kK>(Element{}, sum, ptx::advance<kStepBytes<kLeft>>(a, k), ptx::advance<64>(b, k),
                                      accumulate || k > 0);
}

template <typename Element>
__device__ __forceinline__ void issue_column(float (&sum)[4], const uint32_t (&left)[16], const SplitVector& right) {
  const uint64_t b = ptx::unswizzled_descriptor(&right, 32, 0);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<ptx::Major::kK>(Element{}, sum, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                               ptx::advance<64>(b, k), true);
}

/// A row's sum of issue_column, in all four lanes that share the row.
__device__ __forceinline__ float row_of_column(const float (&sum)[4], int half, int lane) {
  return __shfl_sync(kAllLanes, sum[2 * half] + sum[2 * half + 1], lane & ~3);
}

/// 1 / x on the special-function unit, whose relative error is about 2⁻²³: of a division's instructions one chain less, and no branch. 0 gives inf.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A column beside a tile's 64, of a product with 72: 16 rows of 128 bytes, eight swizzled pieces of 16 bytes each. Of row i of the tile the column's
/// two parts begin piece `first + i / 16` of row i % 16, of which the product reads six numbers more that are in no sum; or all pieces are alike.
constexpr int kColumnPanel = 2048;

template <typename Element>
__device__ __forceinline__ void store_parts(char* panel, int first, int i, float x) {
  const uint32_t near = pack<Element>(x, 0.0f), rest = pack<Element>(x - unpack<Element>(near).x, 0.0f);
  const int row = i % 16, piece = first + i / 16;
  *reinterpret_cast<uint32_t*>(panel + row * 128 + ((piece ^ row % 8) << 4)) = rest << 16 | (near & 0xffffu);
}

/// A warpgroup: a column of ones.
template <typename Element>
__device__ __forceinline__ void store_ones(char* panel, int thread) {
  static_assert(kColumnPanel == 16 * kComputing);
  reinterpret_cast<uint4*>(panel)[thread] = {pack<Element>(1.0f, 0.0f), 0, 0, 0};
}

/// Descriptor of a tile and the column in a panel that follows it, of which step k of 16 is in piece k · kPieces after the first.
__device__ __forceinline__ uint64_t with_column(const char* tile, const char* panel, int first) {
  return ptx::operand_descriptor(tile, static_cast<uint32_t>(panel - tile) + 16 * first);
}
template <int kPieces>
__device__ __forceinline__ uint64_t advance_with_column(uint64_t descriptor, int k) {
  constexpr int kStep = kStepBytes<ptx::Major::kMN> / 16;  // of the tile, by which the panel is nearer
  return ptx::advance<16>(descriptor, static_cast<uint32_t>(k * (kStep + (kPieces - kStep) * 65536)));
}

/// 64 numbers by which a product of 64 columns gets, of each row an x, x times all of them besides: in a step of 16 of its sum, as parts of 16 bits,
/// near twice and the rest. Their x has near, the rest and near again; what the rests' product would be is less than 2^-16 of the number.
struct alignas(16) OuterVector {
  uint4 rows[64];
};

template <typename Element>
__device__ __forceinline__ void store_outer(OuterVector& to, int i, float x) {
  const uint32_t near = pack<Element>(x, 0.0f), rest = pack<Element>(x - unpack<Element>(near).x, 0.0f);
  to.rows[i] = {near << 16 | near, rest, 0, 0};
}

/// A row's x: near, and the rest in the upper half.
template <typename Element>
__device__ __forceinline__ uint32_t outer_parts(float x) {
  const uint32_t near = pack<Element>(x, 0.0f), rest = pack<Element>(x - unpack<Element>(near).x, 0.0f);
  return rest << 16 | near;
}

/// The left operand of a lane's rows g and g + 8.
__device__ __forceinline__ void outer_left(uint32_t (&left)[4], uint32_t near, uint32_t far, int lane) {
  const uint32_t of_lane = lane % 4 == 0 ? ~0u : lane % 4 == 1 ? 0xffffu : 0u;
  left[0] = near & of_lane;
  left[1] = far & of_lane;
  left[2] = left[3] = 0;
  ptx::fence_registers(left);
}

/// sum += x · vectorᵀ, issued. The step's other eight numbers are the first ones again, times 0.
template <typename Element>
__device__ __forceinline__ void issue_outer(float (&sum)[32], const uint32_t (&left)[4], const OuterVector& vector) {
  ptx::wgmma<ptx::Major::kK>(Element{}, sum, left[0], left[1], left[2], left[3],
                             ptx::unswizzled_descriptor(&vector, 0, 128), true);
}

/// What add_to_state adds beside the state: the same keys' product with a column.
template <typename Element>
struct ColumnProduct {
  const SplitVector& right;
  float sum[4];

  __device__ __forceinline__ explicit ColumnProduct(const SplitVector& values) : right(values) { ptx::undefined(sum); }
  __device__ __forceinline__ void fence() { ptx::fence_registers(sum); }
  __device__ __forceinline__ void issue(const uint32_t (&keys)[4], int k) {
    ptx::wgmma<ptx::Major::kK>(Element{}, sum, keys[0], keys[1], keys[2], keys[3],
                               ptx::advance<64>(ptx::unswizzled_descriptor(&right, 32, 0), k), k > 0);
  }
  __device__ __forceinline__ void issue(const char* keys) {
    issue_column<Element, ptx::Major::kMN>(sum, keys, right, false);
  }
  __device__ __forceinline__ float of_row(int half) const { return sum[2 * half] + sum[2 * half + 1]; }
};

/// A lane's rows g and g + 8 of the column, right in lanes with t = 0; before the segment and of it apart, as State has its numbers.
struct StateColumn {
  float before[2] = {}, sum[2] = {};

  __device__ __forceinline__ void forget(float total) {
    sum[0] *= total;
    sum[1] *= total;
  }
  template <typename Element>
  __device__ __forceinline__ void add(const ColumnProduct<Element>& product, float unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = fmaf(unit, product.of_row(half), sum[half]);
  }
  template <typename State>
  __device__ __forceinline__ float value(const State& state, int half) const {
    return State::joined(before[half], state.decay, sum[half], state.scale);
  }
  /// Where a segment ends: before the state itself is joined.
  template <typename State>
  __device__ __forceinline__ void join(const State& state) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      before[half] = value(state, half);
      sum[half] = 0.0f;
    }
  }
};

/// visit(half, place in 64 rows) of a lane's rows where it has them.
template <typename Visit>
__device__ __forceinline__ void each_of_column(Place at, Visit&& visit) {
  if (at.lane % 4 > 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) visit(half, 16 * at.block + at.lane / 4 + 8 * half);
}

/// The last column of a head's state [rows, columns + 1] contiguous: zeros beyond, or of a null pointer.
__device__ __forceinline__ void load_last_column(float (&to)[2], const float* from, int64_t head, int block, int rows,
                                                 int columns, Place at) {
  each_of_column(at, [&](int half, int row) {
    const int64_t r = 64 * block + row;
    to[half] = from && r < rows ? from[(head * rows + r) * (columns + 1) + columns] : 0.0f;
  });
}

template <typename Value>
__device__ __forceinline__ void store_last_column(float* to, int64_t head, int block, int rows, int columns, Place at,
                                                  Value&& value) {
  each_of_column(at, [&](int half, int row) {
    const int64_t r = 64 * block + row;
    if (r < rows) to[(head * rows + r) * (columns + 1) + columns] = value(half);
  });
}

/// The same of a segment's columns [segment, blocks, 64].
__device__ __forceinline__ void load_column_of_segment(float (&to)[2], const float* from, int64_t segment, int block,
                                                       int blocks, Place at) {
  each_of_column(at, [&](int half, int row) { to[half] = load_global(from + (segment * blocks + block) * 64 + row); });
}

}  // namespace lethe::matrix_state

#pragma once
// What a warp of the forward writes of its 16 rows of a chunk: values, or of a normalised call dO over z·q and the gradient of z·q.

#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/normalizer.cuh"

namespace lethe::matrix_state {

/// Values in float, where a call wants those.
template <typename Call>
__device__ __forceinline__ void write_floats(const Call& call, const float (&out)[32], int64_t first) {
  const auto& p = call.p;
  const int own = ptx::opaque(call.lane),
            first_column = 64 * ptx::opaque(call.tile);  // so that addresses occupy no registers elsewhere
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int64_t token = first + 16 * call.warp + own / 4 + 8 * (i % 2);
    const int column = first_column + 8 * (i / 2) + own % 4 * 2;
    if (token < p.length && column < p.columns)
      *reinterpret_cast<float2*>(static_cast<float*>(p.out) +
                                 ((call.b * p.length + token) * p.heads + call.h) * p.columns +
                                 column) = {out[2 * i], out[2 * i + 1]};
  }
}

/// dO, to where the result leaves from.
template <typename Call>
__device__ __forceinline__ void load_grad_values(const Call& call, int64_t first) {
  if (call.lane > 0) return;
  constexpr int kRows = kChunk / kWarps;
  uint64_t* const full = &call.small().grad_full[call.warp];
  ptx::bulk_wait_read<0>();  // the previous chunk's rows have left
  ptx::mbarrier_arrive_expect(full, kRows * 128);
  ptx::load_tile(call.out_tile() + kRows * 128 * call.warp, &call.p.maps[4], full, 0,
                 call.p.grad_values.head_stride ? call.h : 0, static_cast<int>(first) + kRows * call.warp, call.b);
}

/// dO / z·q in 16 bits, times division_unit; and what it gives to z·q, of those 16 bits, since pairs add up the difference of both. `divisor` is z·q in
/// out's unit, that of a row; chunk n of the sweep.
template <typename Call>
__device__ __forceinline__ void finish_gradients(const Call& call, uint32_t (&packed)[16], const float (&out)[32],
                                                 const float (&divisor)[2], const float (&row_unit)[2], int n,
                                                 Place place) {
  using Element = typename Call::Element;
  const auto& p = call.p;
  const int64_t first = call.first_of(n);
  char* const tile = call.out_tile();
  const float inverse[2] = {1.0f / divisor[0], 1.0f / divisor[1]};
  const float unit = std::is_same_v<Element, __half> ? p.division_unit : 1.0f,
              true_inverse[2] = {unit * (inverse[0] * reciprocal_of_power(row_unit[0])),
                                 unit * (inverse[1] * reciprocal_of_power(row_unit[1]))};
  float dot[2] = {0.0f, 0.0f};
  ptx::mbarrier_wait(&call.small().grad_full[call.warp], n & 1);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t a[4];
    load_left(a, ptx::shared_address(tile), c, place);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(a[i]);
      packed[4 * c + i] = pack<Element>(x.x * true_inverse[i % 2], x.y * true_inverse[i % 2]);
      const float2 y = unpack<Element>(packed[4 * c + i]);
      dot[i % 2] += out[8 * c + 2 * i] * y.x + out[8 * c + 2 * i + 1] * y.y;
    }
  }
  float* const to = p.grad_normalizer + int64_t{1} * call.head * call.order.chunks * kChunk + first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(dot[half]);
    const int row = 16 * call.warp + call.lane / 4 + 8 * half;
    if (call.lane % 4 == 0) to[row] = first + row < p.length ? -sum * inverse[half] : 0.0f;
  }
}

/// What a lane's rows are divided by, in `out`'s unit; 1 over it where values are.
template <typename Call>
__device__ __forceinline__ void take_divisors(const Call& call, float (&to)[2], const float (&sums)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    to[half] = row_of_column(sums, half, call.lane);
    if constexpr (Call::kDividesRows) to[half] = reciprocal_approximate(to[half]);
  }
}

/// Chunk n's rows, from `out` in row_unit where the type is float16, to where they leave from: values, which a normaliser divides, or gradients. `divisor`: of
/// take_divisors.
template <typename Call>
__device__ __forceinline__ void place_rows(const Call& call, float (&out)[32], const float (&divisor)[2],
                                           const float (&row_unit)[2], int n, Place place) {
  constexpr bool kGradients = Call::kNormalizer == Normalizer::kGradients;
  uint32_t packed[16];
  if constexpr (Call::kNormalized) {
    if constexpr (kGradients) finish_gradients(call, packed, out, divisor, row_unit, n, place);
    else scale_rows(out, divisor[0], divisor[1]);  // both are in the same unit
  } else {
    scale_rows(out, row_unit[0], row_unit[1]);
  }
  if constexpr (!kGradients) {
    if (call.p.float_out) return write_floats(call, out, call.first_of(n));
    pack_sums<typename Call::Element>(packed, out, 1.0f);
    // The previous chunk's rows have left.
    if constexpr (Call::kLoaderSends) ptx::mbarrier_wait(&call.small().rows_empty, n & 1 ^ 1);
    else if (call.lane == 0) ptx::bulk_wait_read<0>();
  }
  __syncwarp();  // of gradients, all lanes have read dO
  store_packed(ptx::shared_address(call.out_tile()), packed, place);
}

/// These rows leave, or are handed to the warp that sends them.
template <typename Call>
__device__ __forceinline__ void send_rows(const Call& call, int n) {
  if (call.p.float_out) return;
  ptx::fence_async_shared();
  if constexpr (Call::kLoaderSends) return arrive_warp(&call.small().rows_full, call.lane);
  __syncwarp();
  if (call.lane > 0) return;
  constexpr int kRows = kChunk / kWarps;
  ptx::store_tile(&call.p.maps[3], call.out_tile() + kRows * 128 * call.warp, 64 * call.tile, call.h,
                  static_cast<int>(call.first_of(n)) + kRows * call.warp, call.b);
  ptx::bulk_commit();
}

/// Both, without gates and a normaliser.
template <typename Call>
__device__ __forceinline__ void write_rows(const Call& call, float (&out)[32], const float (&row_unit)[2], int n,
                                           Place place) {
  const auto& p = call.p;
  const int64_t first = call.first_of(n);
  scale_rows(out, row_unit[0] * p.scale, row_unit[1] * p.scale);
  if (p.float_out) return write_floats(call, out, first);
  uint32_t packed[16];
  pack_sums<typename Call::Element>(packed, out, 1.0f);
  if (call.lane == 0) ptx::bulk_wait_read<0>();  // the previous chunk's rows have left
  __syncwarp();
  store_rows_by_map(call.out_tile(), packed, p.maps[3], 64 * call.tile, first, call.b, call.h, place);
}

}  // namespace lethe::matrix_state

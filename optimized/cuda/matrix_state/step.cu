// One token of a matrix state: the state is read, decayed, written and read out while it lies in registers. A CTA has 64 columns of a head, a thread four
// of them in every kStepGroups-th row.

#include "optimized/cuda/matrix_state/scan_parts.cuh"

#include "optimized/cuda/check.hpp"

namespace lethe::matrix_state {
namespace {

constexpr int kStepColumns = 64, kStepPieces = kStepColumns / 4, kStepGroups = 16,
              kStepThreads = kStepPieces * kStepGroups;

// Element `at` of a token's row, as float.
__device__ inline float element_of(const Operand& from, int64_t b, int64_t h, int64_t at, Dtype dtype) {
  const int64_t index = b * from.batch_stride + h * from.head_stride + at;
  if (dtype == Dtype::kFloat32) return static_cast<const float*>(from.data)[index];
  if (dtype == Dtype::kBFloat16) return __bfloat162float(static_cast<const __nv_bfloat16*>(from.data)[index]);
  return __half2float(static_cast<const __half*>(from.data)[index]);
}

// Sums of four columns over all rows, from each thread's own rows; the same bits in every thread of a column.
__device__ inline void over_all_rows(float (&sums)[4], float (&partials)[kStepThreads / 32][kStepColumns]) {
  const int warp = threadIdx.x / 32, piece = threadIdx.x % kStepPieces;
#pragma unroll
  for (float& sum : sums) sum += __shfl_xor_sync(~0u, sum, kStepPieces);
  if (threadIdx.x % 32 < kStepPieces)
    *reinterpret_cast<float4*>(&partials[warp][4 * piece]) = {sums[0], sums[1], sums[2], sums[3]};
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sums[j] = 0.0f;
#pragma unroll
    for (int w = 0; w < kStepThreads / 32; ++w) sums[j] += partials[w][4 * piece + j];
  }
}

template <int kRowsEach, bool kDelta>
__global__ void __launch_bounds__(kStepThreads) step(const __grid_constant__ ScanArguments p) {
  __shared__ __align__(16) float held_partials[kStepThreads / 32][kStepColumns];
  __shared__ __align__(16) float partials[kStepThreads / 32][kStepColumns];
  const int tiles = (p.columns + kStepColumns - 1) / kStepColumns;
  const int64_t head = blockIdx.x / tiles, b = head / p.heads, h = head % p.heads;
  const int column = static_cast<int>(blockIdx.x % tiles) * kStepColumns + threadIdx.x % kStepPieces * 4;
  const bool inside = column < p.columns;
  const auto row_of = [](int i) { return static_cast<int>(threadIdx.x) / kStepPieces + i * kStepGroups; };
  const auto place_of = [&](int i) { return (head * p.rows + row_of(i)) * p.columns + column; };

  float s[kRowsEach][4] = {};
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i)
    if (p.initial && inside && row_of(i) < p.rows) load_floats(p.initial + place_of(i), s[i]);
  float key[kRowsEach], query[kRowsEach], gate[kRowsEach], written[4] = {}, value_gate[4] = {1, 1, 1, 1};
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const bool valid = row_of(i) < p.rows;
    key[i] = valid ? element_of(p.key, b, h, row_of(i), p.dtype) : 0.0f;
    query[i] = valid ? p.scale * element_of(p.query, b, h, row_of(i), p.dtype) : 0.0f;
    gate[i] = 1.0f;
    if (p.key_gate.data && valid)
      gate[i] = expf(element_of(p.key_gate, b, h, p.gate_per_row ? row_of(i) : 0, Dtype::kFloat32));
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (!inside) continue;
    written[j] = element_of(p.value, b, h, column + j, p.dtype);
    if (p.value_gate.data) value_gate[j] = expf(element_of(p.value_gate, b, h, column + j, Dtype::kFloat32));
  }

#pragma unroll
  for (int i = 0; i < kRowsEach; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = s[i][j] * gate[i] * value_gate[j];
  if constexpr (kDelta) {
    float held[4] = {};
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) held[j] = fmaf(key[i], s[i][j], held[j]);
    over_all_rows(held, held_partials);
    const float beta = p.beta.log_forget[b * p.beta.batch_stride + h * p.beta.head_stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) written[j] = beta * (written[j] - held[j]);
  }
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = fmaf(key[i], written[j], s[i][j]);
      sums[j] = fmaf(query[i], s[i][j], sums[j]);
    }
    if (p.last && inside && row_of(i) < p.rows) store_floats(p.last + place_of(i), s[i]);
  }
  over_all_rows(sums, partials);
  if (threadIdx.x >= kStepPieces || !inside) return;
  const int64_t to = head * p.columns + column;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (p.values_dtype == Dtype::kFloat32) static_cast<float*>(p.values)[to + j] = sums[j];
    else if (p.values_dtype == Dtype::kBFloat16)
      static_cast<__nv_bfloat16*>(p.values)[to + j] = __float2bfloat16_rn(sums[j]);
    else static_cast<__half*>(p.values)[to + j] = __float2half_rn(sums[j]);
  }
}

template <bool kDelta>
void launch(const ScanArguments& p, cudaStream_t stream) {
  const int tiles = (p.columns + kStepColumns - 1) / kStepColumns;
  const auto kernel = p.rows <= 4 * kStepGroups ? step<4, kDelta> : step<8, kDelta>;
  kernel<<<static_cast<unsigned>(p.batch * p.heads * tiles), kStepThreads, 0, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

}  // namespace

void step_forward(const ScanArguments& p, cudaStream_t stream) {
  p.beta.log_forget ? launch<true>(p, stream) : launch<false>(p, stream);
}

}  // namespace lethe::matrix_state

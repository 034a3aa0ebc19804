// One token of a matrix state: the state is read, decayed, written and read out while it lies in registers. A CTA has 64 columns of a head, a thread
// four of them in four or eight rows.

#include "optimized/cuda/matrix_state/scan_parts.cuh"

#include "optimized/cuda/check.hpp"

namespace lethe::matrix_state {
namespace {

constexpr int kStepColumns = 64, kStepPieces = kStepColumns / 4, kStepGroups = 16,
              kStepThreads = kStepPieces * kStepGroups;

// kCount numbers of a token's row from place `at` on, on their way.
template <Dtype kDtype, int kCount>
__device__ inline Raw<kCount> load_row(const Operand& from, int64_t b, int64_t h, int at) {
  constexpr int kBytes = kDtype == Dtype::kFloat32 ? 4 : 2;
  Raw<kCount> raw;
  load_words<kCount * kBytes / 4>(raw, static_cast<int64_t>(__cvta_generic_to_global(from.data)) +
                                           (b * from.batch_stride + h * from.head_stride + at) * kBytes);
  return raw;
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

// Loads are all issued before a number of any is used, so the type is the template's.
template <Dtype kDtype, int kRowsEach, bool kDelta>
__global__ void __launch_bounds__(kStepThreads, (kRowsEach == 4 ? 5 : 3) - kDelta)
    step(const __grid_constant__ ScanArguments p) {
  __shared__ __align__(16) float held_partials[kStepThreads / 32][kStepColumns];
  __shared__ __align__(16) float partials[kStepThreads / 32][kStepColumns];
  const unsigned tiles = (p.columns + kStepColumns - 1) / kStepColumns, head = blockIdx.x / tiles;
  const int64_t b = head / p.heads, h = head % p.heads;
  const int column = static_cast<int>(blockIdx.x % tiles) * kStepColumns + threadIdx.x % kStepPieces * 4;
  const int row = static_cast<int>(threadIdx.x) / kStepPieces * kRowsEach;
  // Rows and columns are multiples of 8: all numbers of a thread are of the state, or none is.
  const bool valid = column < p.columns && row < p.rows;
  const int64_t place = (int64_t{1} * head * p.rows + row) * p.columns + column;

  float s[kRowsEach][4] = {};
  Raw<kRowsEach> raw_key{}, raw_query{};
  Raw<4> raw_value{};
  float gate[kRowsEach] = {}, value_gate[4] = {}, beta = 0.0f;  // logarithms at first
  if (valid) {
    if (p.initial) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const float4 x = load_global4(p.initial + place + i * p.columns);
        s[i][0] = x.x, s[i][1] = x.y, s[i][2] = x.z, s[i][3] = x.w;
      }
    }
    raw_key = load_row<kDtype, kRowsEach>(p.key, b, h, row);
    raw_query = load_row<kDtype, kRowsEach>(p.query, b, h, row);
    raw_value = load_row<kDtype, 4>(p.value, b, h, column);
    if constexpr (kDelta) beta = load_global(p.beta.log_forget + b * p.beta.batch_stride + h * p.beta.head_stride);
    if (p.value_gate.data) {
      const Raw<4> raw = load_row<Dtype::kFloat32, 4>(p.value_gate, b, h, column);
      to_floats(raw, Dtype::kFloat32, value_gate);
    }
    if (p.key_gate.data) {
      const int64_t step = p.gate_per_row ? 1 : 0;
      const float* const from = static_cast<const float*>(p.key_gate.data) + b * p.key_gate.batch_stride +
                                h * p.key_gate.head_stride + row * step;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) gate[i] = load_global(from + i * step);
    }
  }

  float key[kRowsEach], query[kRowsEach], written[4];
  to_floats(raw_key, kDtype, key);
  to_floats(raw_query, kDtype, query);
  to_floats(raw_value, kDtype, written);
#pragma unroll
  for (float& x : value_gate) x = expf(x);
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const float factor = expf(gate[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = s[i][j] * factor * value_gate[j];
  }
  if constexpr (kDelta) {
    float held[4] = {};
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) held[j] = fmaf(key[i], s[i][j], held[j]);
    over_all_rows(held, held_partials);
#pragma unroll
    for (int j = 0; j < 4; ++j) written[j] = beta * (written[j] - held[j]);
  }
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const float scaled = p.scale * query[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = fmaf(key[i], written[j], s[i][j]);
      sums[j] = fmaf(scaled, s[i][j], sums[j]);
    }
    if (p.last && valid) store_floats(p.last + place + i * p.columns, s[i]);
  }
  over_all_rows(sums, partials);
  if (threadIdx.x >= kStepPieces || !valid) return;
  store_numbers(p.values, int64_t{1} * head * p.columns + column, sums, p.values_dtype);
}

template <Dtype kDtype, bool kDelta>
void launch(const ScanArguments& p, cudaStream_t stream) {
  const int tiles = (p.columns + kStepColumns - 1) / kStepColumns;
  const auto kernel = p.rows <= 4 * kStepGroups ? step<kDtype, 4, kDelta> : step<kDtype, 8, kDelta>;
  kernel<<<static_cast<unsigned>(p.batch * p.heads * tiles), kStepThreads, 0, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

template <Dtype kDtype>
void launch_of(const ScanArguments& p, cudaStream_t stream) {
  p.beta.log_forget ? launch<kDtype, true>(p, stream) : launch<kDtype, false>(p, stream);
}

}  // namespace

void step_forward(const ScanArguments& p, cudaStream_t stream) {
  if (p.dtype == Dtype::kFloat32) launch_of<Dtype::kFloat32>(p, stream);
  else if (p.dtype == Dtype::kBFloat16) launch_of<Dtype::kBFloat16>(p, stream);
  else launch_of<Dtype::kFloat16>(p, stream);
}

}  // namespace lethe::matrix_state

// One number a column, added to a product by one more k-step.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "optimized/cuda/hopper/bias_step.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

// D [64, N] = start + 0 · 0 + bias, in the order of the fragment: d[thread][register]. The other product of the batch is of Element, and comes before
// the bias or, where D starts from the bias, after it. The bias is stored as BiasOfEight, in the last stage, or as BiasColumn.
template <typename Element, int kN, bool kDense, bool kFirst>
__global__ void __launch_bounds__(128, 1) add_bias(const float* bias, float start, float* d) {
  static_assert(kDense || !kFirst);
  struct alignas(1024) Operands {
    BiasOnes ones;
    BiasColumn columns[kN];
    DenseBias<kN, 2> dense;
    alignas(1024) uint4 zeros[kN * 128 / sizeof(uint4)];
  };
  __shared__ Operands operands;
  auto& [ones, columns, dense, zeros] = operands;
  for (int i = threadIdx.x; i < kN * 128 / int(sizeof(uint4)); i += 128) zeros[i] = {0, 0, 0, 0};
  for (int i = threadIdx.x; i < int(sizeof dense / 4); i += 128) reinterpret_cast<int*>(&dense)[i] = -1;  // NaN
  __syncthreads();
  clear(dense, threadIdx.x, 128);
  __syncthreads();
  if (threadIdx.x < kN) {
    columns[threadIdx.x] = bias_column(bias[threadIdx.x]);
    const BiasParts parts = bias_parts(bias[threadIdx.x]);
    for (int i = 0; i < 3; ++i) dense.eights[1][threadIdx.x / 8].part[i][threadIdx.x % 8] = parts.part[i];
  }
  fill_ones(ones, threadIdx.x);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  for (float& value : registers) value = start;
  ptx::fence_registers(registers);
  ptx::wgmma_fence();
  const uint64_t nothing = ptx::operand_descriptor(zeros, 0);
  if constexpr (!kFirst) ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(Element{}, registers, nothing, nothing, true);
  const uint32_t ones_of_lane = ones_in_registers(threadIdx.x % 32);
  if constexpr (kDense) issue_dense_bias(registers, ones_of_lane, bias_operand(dense.eights[1]), !kFirst);
  else issue_bias(registers, ones_operand(ones), bias_operand(columns));
  if constexpr (kFirst) ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(Element{}, registers, nothing, nothing, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(registers);
  for (int i = 0; i < kN / 2; ++i) d[threadIdx.x * kN / 2 + i] = registers[i];
}

// Calls check(column, value) for every element of D, of each element type; N is the bias's size.
template <bool kDense, bool kFirst = false, typename Check>
void for_each_element(const std::vector<float>& bias, float start, Check check) {
  const int columns = static_cast<int>(bias.size());
  for (const bool half : {false, true}) {
    const DeviceArray<float> device(bias), d(64 * columns);
    const auto kernel =
        columns == 64 ? (half ? add_bias<__half, 64, kDense, kFirst> : add_bias<__nv_bfloat16, 64, kDense, kFirst>)
                      : (half ? add_bias<__half, 128, kDense, kFirst> : add_bias<__nv_bfloat16, 128, kDense, kFirst>);
    kernel<<<1, 128>>>(device.data(), start, d.data());
    testing::require(cudaGetLastError());
    const std::vector<float> values = d.host();
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < columns / 2; ++i) check(i / 4 * 8 + thread % 4 * 2 + i % 2, values[thread * columns / 2 + i]);
  }
}

TEST(BiasStep, AddsTheNumberOfEachColumn) {
  LETHE_NEEDS_GPU();
  for (const int columns : {64, 128}) {
    std::vector<float> bias(columns);
    for (int n = 0; n < columns; ++n)  // all 24 bits of a float in use, and the size of a bias over a tiny scale
      bias[n] =
          (n % 2 ? 1 : -1) * std::ldexp(1 + (n * 2654435761u % (1u << 23)) * 0x1p-23f, n % 16 == 3 ? 80 : n % 40 - 20);
    for (const float start : {0.0f, 1.0f, -300.0f}) {
      const auto check = [&](int n, float value) {
        const double expected = double{start} + bias[n];
        EXPECT_NEAR(value, expected, 0x1p-22 * std::max(std::abs(double{start}), std::abs(double{bias[n]})))
            << "column " << n << " of " << columns << ", start " << start;
      };
      for_each_element<false>(bias, start, check);
      for_each_element<true>(bias, start, check);
    }
  }
}

TEST(BiasStep, StartsFromTheNumberOfEachColumn) {
  LETHE_NEEDS_GPU();
  std::vector<float> bias(128);
  for (int n = 0; n < 128; ++n) bias[n] = n - 63.5f;
  const auto check = [&](int n, float value) { EXPECT_EQ(value, bias[n]) << "column " << n; };
  for_each_element<true, true>(bias, 1000, check);  // the start has no share left
}

TEST(BiasStep, KeepsNanInItsOwnColumn) {
  LETHE_NEEDS_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> bias(128, 1.0f);
  bias[5] = -kInfinity;
  bias[70] = kInfinity;
  bias[71] = std::numeric_limits<float>::max();
  bias[100] = std::nanf("");
  const auto check = [&](int n, float value) {
    if (n == 100) EXPECT_TRUE(std::isnan(value));
    else if (n == 5) EXPECT_LT(value, -2e38f);
    else if (n == 70 || n == 71) EXPECT_GT(value, 2e38f);
    else EXPECT_EQ(value, 2.0f) << "column " << n;
  };
  for_each_element<false>(bias, 1, check);
  bias[100] = 1;  // dense parts must be numbers
  for_each_element<true>(bias, 1, [&](int n, float value) {
    if (n == 100) EXPECT_EQ(value, 2.0f);
    else check(n, value);
  });
}

}  // namespace
}  // namespace lethe

// A number a column, added to a product by one more k-step.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "optimized/cuda/bias_step.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

// D [64, N] = start + 0 · 0 + bias, in the order of the fragment: d[thread][register]. The product before it in the batch is of Element.
template <typename Element, int kN>
__global__ void __launch_bounds__(128, 1) add_bias(const float* bias, float start, float* d) {
  struct alignas(1024) Operands {
    BiasOnes ones;
    BiasColumn columns[kN];
    alignas(1024) uint4 zeros[kN * 128 / sizeof(uint4)];
  };
  __shared__ Operands operands;
  auto& [ones, columns, zeros] = operands;
  for (int i = threadIdx.x; i < kN * 128 / int(sizeof(uint4)); i += 128) zeros[i] = {0, 0, 0, 0};
  if (threadIdx.x < kN) columns[threadIdx.x] = bias_column(bias[threadIdx.x]);
  fill_ones(ones, threadIdx.x);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  for (float& value : registers) value = start;
  ptx::pin(registers);
  ptx::wgmma_fence();
  ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(Element{}, registers, ptx::operand_descriptor(zeros, 0),
                                             ptx::operand_descriptor(zeros, 0), true);
  issue_bias(registers, ones_operand(ones), bias_operand(columns));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(registers);
  for (int i = 0; i < kN / 2; ++i) d[threadIdx.x * kN / 2 + i] = registers[i];
}

// Calls check(column, value) for every element of D; N is the bias's size.
template <typename Check>
void for_each_element(const std::vector<float>& bias, float start, Check check) {
  const int columns = static_cast<int>(bias.size());
  for (const bool half : {false, true}) {
    const DeviceArray<float> device(bias), d(64 * columns);
    if (columns == 64)
      (half ? add_bias<__half, 64> : add_bias<__nv_bfloat16, 64>)<<<1, 128>>>(device.data(), start, d.data());
    else (half ? add_bias<__half, 128> : add_bias<__nv_bfloat16, 128>)<<<1, 128>>>(device.data(), start, d.data());
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
    for (int n = 0; n < columns; ++n)  // all 24 bits of a float in use, and what a bias over a tiny scale is
      bias[n] =
          (n % 2 ? 1 : -1) * std::ldexp(1 + (n * 2654435761u % (1u << 23)) * 0x1p-23f, n % 16 == 3 ? 80 : n % 40 - 20);
    for (const float start : {0.0f, 1.0f, -300.0f})
      for_each_element(bias, start, [&](int n, float value) {
        const double expected = double{start} + bias[n];
        EXPECT_NEAR(value, expected, 0x1p-22 * std::max(std::abs(double{start}), std::abs(double{bias[n]})))
            << "column " << n << " of " << columns << ", start " << start;
      });
  }
}

TEST(BiasStep, KeepsWhatIsNoNumberInItsOwnColumn) {
  LETHE_NEEDS_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> bias(128, 1.0f);
  bias[5] = -kInfinity;
  bias[70] = kInfinity;
  bias[71] = std::numeric_limits<float>::max();
  bias[100] = std::nanf("");
  for_each_element(bias, 1, [&](int n, float value) {
    if (n == 100) EXPECT_TRUE(std::isnan(value));
    else if (n == 5) EXPECT_LT(value, -2e38f);
    else if (n == 70 || n == 71) EXPECT_GT(value, 2e38f);
    else EXPECT_EQ(value, 2.0f) << "column " << n;
  });
}

}  // namespace
}  // namespace lethe

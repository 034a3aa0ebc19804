// Every wgmma wrapper against a product on the CPU, exactly: small integers leave no rounding.

#include <cmath>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_eight_columns.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_few_columns.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_steps.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_with_sums.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using ptx::Major;
using testing::DeviceArray;

constexpr int kM = 64;
constexpr int kDepth = 64;

// Stores the row-major [rows, columns] matrix into panels of 64 columns.
template <typename Element>
__device__ void fill_panels(char* panels, const Element* source, int rows, int columns) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int row = i / columns, column = i % columns;
    *reinterpret_cast<Element*>(panels + (column / 64) * rows * 128 + ptx::swizzled_offset(row, column % 64)) =
        source[i];
  }
}

template <int kN>
__device__ void write_accumulators(float* d, const float (&registers)[kN / 2]) {
  const int row = (threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int j = 0; j < kN / 8; ++j)
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e) d[(row + 8 * h) * kN + 8 * j + column + e] = registers[4 * j + 2 * h + e];
}

// D = D0 + A·B with D0 = 1 where `accumulate`, else 0. K-major A is [M, K], MN-major A is [K, M]; B likewise [N, K] or [K, N]. kSteps: at once.
template <typename Element, int kN, Major kMajorA, Major kMajorB, bool kSteps = false>
__global__ void __launch_bounds__(128, 1)
    shared_product(const Element* a, const Element* b, float* d, bool accumulate) {
  __shared__ alignas(1024) char a_panels[kM * kDepth * 2];
  __shared__ alignas(1024) char b_panels[(kN + 63) / 64 * 64 * kDepth * 2];
  constexpr bool kTransposedA = kMajorA == Major::kMN, kTransposedB = kMajorB == Major::kMN;
  fill_panels(a_panels, a, kTransposedA ? kDepth : kM, kTransposedA ? kM : kDepth);
  fill_panels(b_panels, b, kTransposedB ? kDepth : kN, kTransposedB ? kN : kDepth);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  for (float& value : registers) value = 1;
  ptx::fence_registers(registers);
  ptx::wgmma_fence();
  const uint64_t first_of_a = ptx::pin_uniform(ptx::operand_descriptor(a_panels, kDepth * 128)),
                 first_of_b = ptx::operand_descriptor(b_panels, kDepth * 128);
  constexpr int kStepA = (kTransposedA ? 2048 : 32) >> 4, kBytesB = kTransposedB ? 2048 : 32;
  if constexpr (kSteps) {
    ptx::wgmma_steps<kMajorA, kMajorB, kStepA, kBytesB / 16>(Element{}, registers, first_of_a, first_of_b, accumulate);
  } else {
    for (int step = 0; step < kDepth / 16; ++step)
      ptx::wgmma<kMajorA, kMajorB>(Element{}, registers, first_of_a + step * kStepA,
                                   ptx::advance<kBytesB>(first_of_b, step), accumulate || step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(registers);
  write_accumulators<kN>(d, registers);
}

// A [M, 4·kWords] as the fragment the header describes.
template <typename Element, int kWords>
__device__ void load_fragment(uint32_t (&fragment)[kWords], const Element* a) {
  const int row = (threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int j = 0; j < kWords / 2; ++j)
    for (int h = 0; h < 2; ++h) {
      const Element* pair = a + (row + 8 * h) * 4 * kWords + 8 * j + column;
      fragment[2 * j + h] = pack<Element>(static_cast<float>(pair[0]), static_cast<float>(pair[1]));
    }
}

// The same with A [M, K] from registers.
template <typename Element, int kN, Major kMajorB>
__global__ void __launch_bounds__(128, 1)
    register_product(const Element* a, const Element* b, float* d, bool accumulate) {
  __shared__ alignas(1024) char b_panels[(kN + 63) / 64 * 64 * kDepth * 2];
  constexpr bool kTransposedB = kMajorB == Major::kMN;
  fill_panels(b_panels, b, kTransposedB ? kDepth : kN, kTransposedB ? kN : kDepth);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  for (float& value : registers) value = 1;
  uint32_t fragment[kDepth / 4];
  load_fragment(fragment, a);
  ptx::fence_registers(registers);
  ptx::fence_registers(fragment);
  ptx::wgmma_fence();
  for (int step = 0; step < kDepth / 16; ++step) {
    const uint64_t b_operand =
        ptx::operand_descriptor(b_panels, kDepth * 128) + step * ((kTransposedB ? 2048 : 32) >> 4);
    ptx::wgmma<kMajorB>(Element{}, registers, fragment[4 * step], fragment[4 * step + 1], fragment[4 * step + 2],
                        fragment[4 * step + 3], b_operand, accumulate || step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(registers);
  write_accumulators<kN>(d, registers);
}

// One k-step without a swizzle: 8 × 8 elements of A and of B are contiguous, one such matrix k_bytes after the other of the same rows and row_bytes
// after that of the eight rows before. The gaps between them hold NaN.
struct Strides {
  uint32_t k_bytes, row_bytes;
};

template <Major kMajor, typename Element>
__device__ void fill_matrices(char* operand, const Element* source, int rows, Strides strides) {
  for (int i = threadIdx.x; i < rows * 16; i += blockDim.x) {
    const int row = i / 16, k = i % 16;
    const int within = kMajor == Major::kK ? row % 8 * 16 + k % 8 * 2 : k % 8 * 16 + row % 8 * 2;
    *reinterpret_cast<Element*>(operand + row / 8 * strides.row_bytes + k / 8 * strides.k_bytes + within) = source[i];
  }
}

template <typename Element, int kN, Major kMajorA, Major kMajorB>
__global__ void __launch_bounds__(128, 1)
    unswizzled_product(const Element* a, const Element* b, Strides strides_of_a, Strides strides_of_b, float* d) {
  __shared__ alignas(16) char a_matrices[5120], b_matrices[5120];
  for (int i = threadIdx.x; i < 5120; i += blockDim.x) a_matrices[i] = b_matrices[i] = -1;
  __syncthreads();
  fill_matrices<kMajorA>(a_matrices, a, kM, strides_of_a);
  fill_matrices<kMajorB>(b_matrices, b, kN, strides_of_b);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  ptx::undefined(registers);
  ptx::wgmma_fence();
  ptx::wgmma<kMajorA, kMajorB>(
      Element{}, registers, ptx::unswizzled_descriptor(a_matrices, strides_of_a.k_bytes, strides_of_a.row_bytes),
      ptx::unswizzled_descriptor(b_matrices, strides_of_b.k_bytes, strides_of_b.row_bytes), false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(registers);
  write_accumulators<kN>(d, registers);
}

// The same with A from registers.
template <typename Element, int kN, Major kMajorB>
__global__ void __launch_bounds__(128, 1)
    unswizzled_register_product(const Element* a, const Element* b, Strides strides, float* d) {
  __shared__ alignas(16) char b_matrices[5120];
  for (int i = threadIdx.x; i < 5120; i += blockDim.x) b_matrices[i] = -1;
  __syncthreads();
  fill_matrices<kMajorB>(b_matrices, b, kN, strides);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[kN / 2];
  uint32_t fragment[4];
  load_fragment(fragment, a);
  ptx::undefined(registers);
  ptx::fence_registers(registers);
  ptx::fence_registers(fragment);
  ptx::wgmma_fence();
  ptx::wgmma<kMajorB>(Element{}, registers, fragment[0], fragment[1], fragment[2], fragment[3],
                      ptx::unswizzled_descriptor(b_matrices, strides.k_bytes, strides.row_bytes), false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(registers);
  write_accumulators<kN>(d, registers);
}

// D = A·B in accumulators whose earlier values, `before`, were discarded.
template <typename Element>
__global__ void __launch_bounds__(128, 1)
    product_of_forgotten(const Element* a, const Element* b, float before, float* d) {
  __shared__ alignas(1024) char a_panels[kM * kDepth * 2], b_panels[64 * kDepth * 2];
  fill_panels(a_panels, a, kM, kDepth);
  fill_panels(b_panels, b, 64, kDepth);
  ptx::fence_async_shared();
  __syncthreads();
  float registers[32];
  for (float& value : registers) value = before;
  ptx::fence_registers(registers);
  for (int round = 0; round < 3; ++round) {
    ptx::undefined(registers);
    ptx::wgmma_fence();
    for (int step = 0; step < kDepth / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(Element{}, registers,
                                       ptx::advance<32>(ptx::operand_descriptor(a_panels, 0), step),
                                       ptx::advance<32>(ptx::operand_descriptor(b_panels, 0), step), step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(registers);
  }
  write_accumulators<64>(d, registers);
}

std::vector<float> transposed(const std::vector<float>& matrix, int rows, int columns) {
  std::vector<float> result(matrix.size());
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  return result;
}

// start + A·B of A [M, depth] and B [depth, columns].
std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, int columns, float start = 0) {
  const int depth = static_cast<int>(a.size()) / kM;
  std::vector<float> result(kM * columns, start);
  for (int m = 0; m < kM; ++m)
    for (int n = 0; n < columns; ++n)
      for (int k = 0; k < depth; ++k) result[m * columns + n] += a[m * depth + k] * b[k * columns + n];
  return result;
}

template <typename Element, int kN, bool kTransposedA, bool kTransposedB, typename Kernel>
void expect_product(Kernel kernel) {
  const auto a = testing::small_integers(kM * kDepth, 1);  // [M, K]
  const auto b = testing::small_integers(kDepth * kN, 2);  // [K, N]
  const DeviceArray<Element> a_device(testing::to_element<Element>(kTransposedA ? transposed(a, kM, kDepth) : a));
  const DeviceArray<Element> b_device(testing::to_element<Element>(kTransposedB ? b : transposed(b, kDepth, kN)));
  for (const bool accumulate : {false, true}) {
    const DeviceArray<float> d(kM * kN);
    kernel<<<1, 128>>>(a_device.data(), b_device.data(), d.data(), accumulate);
    testing::require(cudaGetLastError());
    EXPECT_EQ(d.host(), product(a, b, kN, accumulate ? 1.0f : 0.0f))
        << "N " << kN << ", A transposed " << kTransposedA << ", B transposed " << kTransposedB << ", accumulate "
        << accumulate;
  }
}

template <typename Element, int kN>
void expect_all_products() {
  expect_product<Element, kN, false, false>(shared_product<Element, kN, Major::kK, Major::kK>);
  expect_product<Element, kN, false, true>(shared_product<Element, kN, Major::kK, Major::kMN>);
  expect_product<Element, kN, true, false>(shared_product<Element, kN, Major::kMN, Major::kK>);
  expect_product<Element, kN, true, true>(shared_product<Element, kN, Major::kMN, Major::kMN>);
  expect_product<Element, kN, false, false>(register_product<Element, kN, Major::kK>);
  expect_product<Element, kN, false, true>(register_product<Element, kN, Major::kMN>);
}

template <typename Element>
void expect_products_of_steps() {
  expect_product<Element, 64, false, false>(shared_product<Element, 64, Major::kK, Major::kK, true>);
  expect_product<Element, 64, false, true>(shared_product<Element, 64, Major::kK, Major::kMN, true>);
  expect_product<Element, 64, true, false>(shared_product<Element, 64, Major::kMN, Major::kK, true>);
  expect_product<Element, 64, true, true>(shared_product<Element, 64, Major::kMN, Major::kMN, true>);
}

// With eight columns more: the forms that exist, B with K along the panel's rows.
template <typename Element>
void expect_products_with_sums() {
  expect_product<Element, 72, false, true>(shared_product<Element, 72, Major::kK, Major::kMN>);
  expect_product<Element, 72, false, true>(register_product<Element, 72, Major::kMN>);
  expect_product<Element, 136, false, true>(register_product<Element, 136, Major::kMN>);
}

TEST(Wgmma, EqualsTheProductWithEightColumnsMore) {
  LETHE_NEEDS_GPU();
  expect_products_with_sums<__nv_bfloat16>();
  expect_products_with_sums<__half>();
}

// With 256 columns: the one form that exists.
TEST(Wgmma, EqualsTheProductOf256Columns) {
  LETHE_NEEDS_GPU();
  expect_product<__nv_bfloat16, 256, false, true>(register_product<__nv_bfloat16, 256, Major::kMN>);
  expect_product<__half, 256, false, true>(register_product<__half, 256, Major::kMN>);
}

// With 32 columns: both operands from shared memory.
TEST(Wgmma, EqualsTheProductOf32Columns) {
  LETHE_NEEDS_GPU();
  expect_product<__nv_bfloat16, 32, false, false>(shared_product<__nv_bfloat16, 32, Major::kK, Major::kK>);
  expect_product<__half, 32, false, false>(shared_product<__half, 32, Major::kK, Major::kK>);
}

TEST(Wgmma, EqualsTheProductOfFourStepsAtOnce) {
  LETHE_NEEDS_GPU();
  expect_products_of_steps<__nv_bfloat16>();
  expect_products_of_steps<__half>();
}

TEST(Wgmma, EqualsTheProductInBfloat16) {
  LETHE_NEEDS_GPU();
  expect_all_products<__nv_bfloat16, 64>();
  expect_all_products<__nv_bfloat16, 128>();
}

TEST(Wgmma, EqualsTheProductInFloat16) {
  LETHE_NEEDS_GPU();
  expect_all_products<__half, 64>();
  expect_all_products<__half, 128>();
}

template <typename Element, int kN, Major kMajorA, Major kMajorB>
void expect_unswizzled_product() {
  const auto a = testing::small_integers(kM * 16, 3), b = testing::small_integers(16 * kN, 4);
  const DeviceArray<Element> a_device(testing::to_element<Element>(a));
  const DeviceArray<Element> b_device(testing::to_element<Element>(transposed(b, 16, kN)));
  constexpr Strides kRowAfterRow{144, 304};  // both matrices of eight rows, then the next rows
  constexpr Strides kHalfAfterHalf{144 * ((kN + 63) / 64 * 8) + 16,
                                   144};  // all rows' first eight of k, then the others
  for (const bool swapped : {false, true}) {
    const DeviceArray<float> d(kM * kN);
    unswizzled_product<Element, kN, kMajorA, kMajorB><<<1, 128>>>(a_device.data(), b_device.data(),
                                                                  swapped ? kHalfAfterHalf : kRowAfterRow,
                                                                  swapped ? kRowAfterRow : kHalfAfterHalf, d.data());
    testing::require(cudaGetLastError());
    EXPECT_EQ(d.host(), product(a, b, kN))
        << "N " << kN << ", A transposed " << (kMajorA == Major::kMN) << ", B transposed " << (kMajorB == Major::kMN)
        << ", strides swapped " << swapped;
  }
}

template <typename Element, int kN>
void expect_unswizzled_products() {
  expect_unswizzled_product<Element, kN, Major::kK, Major::kK>();
  expect_unswizzled_product<Element, kN, Major::kK, Major::kMN>();
  expect_unswizzled_product<Element, kN, Major::kMN, Major::kK>();
  expect_unswizzled_product<Element, kN, Major::kMN, Major::kMN>();
}

TEST(Wgmma, ReadsOperandsWithoutASwizzleByTheirTwoStrides) {
  LETHE_NEEDS_GPU();
  expect_unswizzled_products<__nv_bfloat16, 64>();
  expect_unswizzled_products<__nv_bfloat16, 128>();
  expect_unswizzled_products<__half, 64>();
}

// With eight columns: B with rows along N, with a swizzle and without.
template <typename Element>
void expect_products_of_eight_columns() {
  expect_product<Element, 8, false, false>(shared_product<Element, 8, Major::kK, Major::kK>);
  expect_product<Element, 8, true, false>(shared_product<Element, 8, Major::kMN, Major::kK>);
  expect_product<Element, 8, false, false>(register_product<Element, 8, Major::kK>);
  expect_unswizzled_product<Element, 8, Major::kK, Major::kK>();
}

TEST(Wgmma, EqualsTheProductOfEightColumns) {
  LETHE_NEEDS_GPU();
  expect_products_of_eight_columns<__nv_bfloat16>();
  expect_products_of_eight_columns<__half>();
}

// With 16, 32 and 48 columns: A from registers, as the triangles of the delta rule are read.
template <typename Element, int kN>
void expect_products_of_few_columns() {
  expect_product<Element, kN, false, false>(register_product<Element, kN, Major::kK>);
  const auto a = testing::small_integers(kM * 16, 7), b = testing::small_integers(16 * kN, 8);
  const DeviceArray<Element> a_device(testing::to_element<Element>(a));
  const DeviceArray<Element> b_device(testing::to_element<Element>(transposed(b, 16, kN)));
  for (const auto kernel :
       {unswizzled_register_product<Element, kN, Major::kK>, unswizzled_register_product<Element, kN, Major::kMN>}) {
    const DeviceArray<float> d(kM * kN);
    kernel<<<1, 128>>>(a_device.data(), b_device.data(), {144, 304}, d.data());
    testing::require(cudaGetLastError());
    EXPECT_EQ(d.host(), product(a, b, kN)) << "N " << kN;
  }
}

TEST(Wgmma, EqualsTheProductOf16To48Columns) {
  LETHE_NEEDS_GPU();
  expect_products_of_few_columns<__nv_bfloat16, 16>();
  expect_products_of_few_columns<__nv_bfloat16, 32>();
  expect_products_of_few_columns<__nv_bfloat16, 48>();
  expect_products_of_few_columns<__half, 16>();
  expect_products_of_few_columns<__half, 32>();
  expect_products_of_few_columns<__half, 48>();
}

TEST(Wgmma, StartsForgottenAccumulatorsFromZero) {
  LETHE_NEEDS_GPU();
  const auto a = testing::small_integers(kM * kDepth, 5), b = testing::small_integers(kDepth * 64, 6);
  const DeviceArray<__half> a_device(testing::to_element<__half>(a));
  const DeviceArray<__half> b_device(testing::to_element<__half>(transposed(b, kDepth, 64)));
  for (const float before : {7.0f, std::nanf("")}) {
    const DeviceArray<float> d(kM * 64);
    product_of_forgotten<<<1, 128>>>(a_device.data(), b_device.data(), before, d.data());
    testing::require(cudaGetLastError());
    EXPECT_EQ(d.host(), product(a, b, 64)) << "before: " << before;
  }
}

}  // namespace
}  // namespace lethe

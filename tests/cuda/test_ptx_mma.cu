// The wrappers for products of one warp and their copies: exactly, with small integers.

#include <set>
#include <vector>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/ptx/address.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"
#include "optimized/cuda/ptx/mma.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr int kMmaRows = 16, kMmaDepth = 16, kMmaColumns = 16, kMmaPitch = 32;  // of shared memory, in elements

// sum[16, 16] = left[16, 16] · right, where right is [column][depth], or with kTransposed [depth][column]; two products of eight columns each.
template <typename Element, bool kTransposed>
__global__ void multiply(const Element* left, const Element* right, float* sum) {
  __shared__ alignas(128) char of_left[kMmaRows * kMmaPitch * 2], of_right[kMmaColumns * kMmaPitch * 2];
  const int lane = threadIdx.x;
  const uint32_t lefts = ptx::shared_address(of_left), rights = ptx::shared_address(of_right);
  const int row = lane / 2, chunk = lane % 2;
  ptx::copy_chunk(lefts + ptx::swizzled_chunk<kMmaPitch>(row, chunk), left + row * kMmaDepth + 8 * chunk);
  ptx::copies_commit();
  ptx::copy_chunk(rights + ptx::swizzled_chunk<kMmaPitch>(row, chunk), right + row * kMmaDepth + 8 * chunk);
  ptx::copies_commit();
  ptx::copies_wait<0>();
  __syncwarp();
  uint32_t a[4], b[4];
  ptx::load_matrices(a, lefts + ptx::swizzled_chunk<kMmaPitch>(lane % 16, lane / 16));
  if (kTransposed) ptx::load_matrices_transposed(b, rights + ptx::swizzled_chunk<kMmaPitch>(lane % 16, lane / 16));
  else ptx::load_matrices(b, rights + ptx::swizzled_chunk<kMmaPitch>(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  for (int half = 0; half < 2; ++half) {
    float c[4] = {};
    ptx::multiply_add<Element>(c, a, b[2 * half], b[2 * half + 1]);
    for (int i = 0; i < 4; ++i) sum[(lane / 4 + i / 2 * 8) * kMmaColumns + 8 * half + lane % 4 * 2 + i % 2] = c[i];
  }
}

template <typename Element>
void expect_products() {
  const auto left = testing::small_integers(kMmaRows * kMmaDepth, 3),
             right = testing::small_integers(kMmaColumns * kMmaDepth, 5);
  const DeviceArray<Element> lefts(testing::to_element<Element>(left)), rights(testing::to_element<Element>(right));
  for (const bool transposed : {false, true}) {
    const DeviceArray<float> sum(kMmaRows * kMmaColumns);
    const auto kernel = transposed ? multiply<Element, true> : multiply<Element, false>;
    kernel<<<1, 32>>>(lefts.data(), rights.data(), sum.data());
    testing::require(cudaGetLastError());
    std::vector<float> expected(kMmaRows * kMmaColumns);
    for (int row = 0; row < kMmaRows; ++row)
      for (int column = 0; column < kMmaColumns; ++column)
        for (int k = 0; k < kMmaDepth; ++k)
          expected[row * kMmaColumns + column] +=
              left[row * kMmaDepth + k] * right[transposed ? k * kMmaColumns + column : column * kMmaDepth + k];
    EXPECT_EQ(sum.host(), expected) << (transposed ? "transposed" : "plain");
  }
}

TEST(WarpProducts, EqualTheDefinitionInBothTypesAndLayouts) {
  LETHE_NEEDS_GPU();
  expect_products<__nv_bfloat16>();
  expect_products<__half>();
}

__global__ void copy(const float* from, float* to) {
  __shared__ alignas(16) float run[4 * 32], words[32];
  const int lane = threadIdx.x;
  ptx::copy_chunk(ptx::shared_address(run + 4 * lane), from + 4 * lane, lane < 5);
  ptx::copy_word(ptx::shared_address(words + lane), from + lane, lane < 7);
  ptx::copies_commit();
  ptx::copies_wait<0>();
  __syncwarp();
  for (int i = 0; i < 4; ++i) to[4 * lane + i] = run[4 * lane + i];
  to[128 + lane] = words[lane];
}

TEST(AsyncCopies, WriteZerosWhereTheSourceIsNotValid) {
  LETHE_NEEDS_GPU();
  std::vector<float> numbers(128), expected(160);
  for (int i = 0; i < 128; ++i) numbers[i] = 1 + i;
  for (int i = 0; i < 20; ++i) expected[i] = numbers[i];
  for (int i = 0; i < 7; ++i) expected[128 + i] = numbers[i];
  const DeviceArray<float> from(numbers), to(160);
  copy<<<1, 32>>>(from.data(), to.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(to.host(), expected);
}

template <int kMmaColumns>
__global__ void places(uint32_t* offsets) {
  const int chunks = kMmaColumns / 8;
  for (int i = threadIdx.x; i < 16 * chunks; i += 32)
    offsets[i] = ptx::swizzled_chunk<kMmaColumns>(i / chunks, i % chunks);
}

template <int kMmaColumns>
void expect_places() {
  constexpr int kChunks = kMmaColumns / 8;
  const DeviceArray<uint32_t> offsets(16 * kChunks);
  places<kMmaColumns><<<1, 32>>>(offsets.data());
  testing::require(cudaGetLastError());
  const auto host = offsets.host();
  EXPECT_EQ(std::set<uint32_t>(host.begin(), host.end()).size(), host.size());
  for (const uint32_t offset : host) EXPECT_TRUE(offset % 16 == 0 && offset < 16 * kMmaColumns * 2);
  for (int chunk = 0; chunk < kChunks; ++chunk)
    for (int first : {0, 8}) {
      std::set<uint32_t> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(host[row * kChunks + chunk] % 128);
      EXPECT_EQ(banks.size(), 8u) << kMmaColumns << ", chunk " << chunk;
    }
}

TEST(SwizzledChunks, AreApartAndOfEightRowsInAllBanks) {
  LETHE_NEEDS_GPU();
  expect_places<32>();
  expect_places<64>();
  expect_places<96>();
  expect_places<128>();
  expect_places<256>();
}

}  // namespace
}  // namespace lethe

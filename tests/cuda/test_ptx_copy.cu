// The wrappers of the copy engine and the fragments, one by one.

#include <algorithm>
#include <cmath>
#include <limits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr int kRows = 32;

// Loads the box at (d0, head, token, batch), writes it out unswizzled, and stores the same box into another tensor.
__global__ void copy_box(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, __half* box,
                         int d0, int head, int token, int batch) {
  __shared__ alignas(1024) char tile[kRows * 128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&from);
    ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(&full, sizeof tile);
    ptx::load_tile(tile, &from, &full, d0, head, token, batch);
  }
  ptx::mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kRows * 64; i += blockDim.x)
    box[i] = *reinterpret_cast<__half*>(tile + ptx::swizzled_offset(i / 64, i % 64));
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_tile(&to, tile, d0, head, token, batch);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

TEST(TensorCopy, LoadsSwizzledBoxesWithZerosOutsideAndStoresClipped) {
  LETHE_NEEDS_GPU();
  constexpr int kBatch = 2, kLength = 50, kHeads = 3, kDim = 128;
  std::vector<float> values(kBatch * kLength * kHeads * kDim);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2039);
  const auto index = [](int b, int t, int h, int d) { return ((b * kLength + t) * kHeads + h) * kDim + d; };
  const DeviceArray<__half> source(testing::to_element<__half>(values));
  const DeviceArray<__half> box(kRows * 64), target(values.size());
  const auto map = [&](const __half* data) {
    return tensor_map({data, kLength * kHeads * kDim, kHeads * kDim, kDim}, Dtype::kFloat16, kBatch, kLength, kHeads,
                      kDim, kRows);
  };
  constexpr int kColumn = 64, kHead = 2, kToken = 32, kItem = 1;
  copy_box<<<1, 128>>>(map(source.data()), map(target.data()), box.data(), kColumn, kHead, kToken, kItem);
  const auto loaded = box.host();
  const auto stored = target.host();
  std::vector<bool> written(values.size(), false);
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < 64; ++column) {
      const bool inside = kToken + row < kLength;
      const int i = inside ? index(kItem, kToken + row, kHead, kColumn + column) : 0;
      ASSERT_EQ(__half2float(loaded[row * 64 + column]), inside ? values[i] : 0.0f) << row << ' ' << column;
      if (inside) {
        ASSERT_EQ(__half2float(stored[i]), values[i]);
        written[i] = true;
      }
    }
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(std::isnan(__half2float(stored[i])), !written[i]) << i;
}

// Adds the numbers 0, 1, 2 … of the box's rows to the box at (d0, head, token, batch).
template <typename Element>
__global__ void add_box(const __grid_constant__ CUtensorMap to, int d0, int head, int token, int batch) {
  __shared__ alignas(1024) char tile[kRows * 128];
  for (int i = threadIdx.x; i < kRows * 64; i += blockDim.x)
    *reinterpret_cast<Element*>(tile + ptx::swizzled_offset(i / 64, i % 64)) = Element(static_cast<float>(i));
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::reduce_add_tile(&to, tile, d0, head, token, batch);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

template <typename Element>
void expect_clipped_sums(Dtype dtype) {
  LETHE_NEEDS_GPU();
  constexpr int kBatch = 2, kLength = 50, kHeads = 3, kDim = 96, kColumn = 64, kHead = 2, kToken = 32, kItem = 1;
  constexpr float kThere = 1023.0f;  // sums need more bits than either type has
  const auto in_element = [](float x) {
    return static_cast<float>(testing::to_element<Element>(std::vector<float>{x})[0]);
  };
  const float there = in_element(kThere);
  const DeviceArray<Element> sums(
      testing::to_element<Element>(std::vector<float>(kBatch * kLength * kHeads * kDim, kThere)));
  const Operand all{sums.data(), kLength * kHeads * kDim, kHeads * kDim, kDim};
  add_box<Element>
      <<<1, 128>>>(tensor_map(all, dtype, kBatch, kLength, kHeads, kDim, kRows), kColumn, kHead, kToken, kItem);
  const auto found = sums.host();
  for (int i = 0; i < static_cast<int>(found.size()); ++i) {
    const int d = i % kDim, h = i / kDim % kHeads, t = i / (kDim * kHeads) % kLength, b = i / (kDim * kHeads * kLength);
    const bool inside = d >= kColumn && h == kHead && t >= kToken && b == kItem;
    const float added = inside ? in_element(static_cast<float>((t - kToken) * 64 + d - kColumn)) : 0.0f;
    ASSERT_EQ(static_cast<float>(found[i]), in_element(there + added)) << b << ' ' << t << ' ' << h << ' ' << d;
  }
}

TEST(TensorCopy, AddsClippedBoxesInFloat16) { expect_clipped_sums<__half>(Dtype::kFloat16); }
TEST(TensorCopy, AddsClippedBoxesInBFloat16) { expect_clipped_sums<__nv_bfloat16>(Dtype::kBFloat16); }

__global__ void copy_runs(const float* source, float* copied, float* sum) {
  __shared__ alignas(16) float run[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(&full, sizeof run);
    ptx::load_run(run, source + blockIdx.x * 256, sizeof run, &full);
  }
  ptx::mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x) copied[blockIdx.x * 256 + i] = run[i];
  if (threadIdx.x == 0) {
    ptx::reduce_add_run(sum, run, sizeof run);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

TEST(RunCopy, LoadsAndAddsUp) {
  LETHE_NEEDS_GPU();
  constexpr int kBlocks = 40;
  const auto values = testing::small_integers(kBlocks * 256, 3);
  const DeviceArray<float> source(values), copied(values.size()), sum(std::vector<float>(256, 5.0f));
  copy_runs<<<kBlocks, 32>>>(source.data(), copied.data(), sum.data());
  EXPECT_EQ(copied.host(), values);
  std::vector<float> expected(256, 5.0f);
  for (size_t i = 0; i < values.size(); ++i) expected[i % 256] += values[i];
  EXPECT_EQ(sum.host(), expected);
}

// Adds two buffers to kCopies places each, and one of them to one place more in between, in three groups; a buffer is overwritten as soon as it has
// been read, its end first.
constexpr int kCopies = 8, kBufferFloats = 8192;
__global__ void overwrite_what_was_read(float* sums) {
  extern __shared__ __align__(128) float first[];
  float* second = first + kBufferFloats;
  float* sum = sums + size_t{blockIdx.x} * (2 * kCopies + 1) * kBufferFloats;
  for (int i = threadIdx.x; i < kBufferFloats; i += blockDim.x) {
    first[i] = static_cast<float>(i + 1);
    second[i] = static_cast<float>(2 * i + 1);
  }
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int copy = 0; copy < kCopies; ++copy)
      ptx::reduce_add_run(sum + copy * kBufferFloats, first, kBufferFloats * sizeof *first);
    ptx::bulk_commit();
    ptx::reduce_add_run(sum + kCopies * kBufferFloats, second, kBufferFloats * sizeof *second);
    ptx::bulk_commit();
    ptx::bulk_wait_read<1>();
  }
  __syncthreads();
  for (int i = kBufferFloats - 1 - threadIdx.x; i >= 0; i -= blockDim.x) first[i] = -1;
  if (threadIdx.x == 0) {
    for (int copy = kCopies + 1; copy <= 2 * kCopies; ++copy)
      ptx::reduce_add_run(sum + copy * kBufferFloats, second, kBufferFloats * sizeof *second);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
  __syncthreads();
  for (int i = kBufferFloats - 1 - threadIdx.x; i >= 0; i -= blockDim.x) second[i] = -1;
  if (threadIdx.x == 0) ptx::bulk_wait<0>();
}

TEST(RunCopy, LeavesABufferThatHasBeenReadToBeOverwritten) {
  LETHE_NEEDS_GPU();
  constexpr int kBlocks = 16, kSharedBytes = 2 * kBufferFloats * sizeof(float), kPlaces = 2 * kCopies + 1;
  const DeviceArray<float> sums(std::vector<float>(size_t{kBlocks} * kPlaces * kBufferFloats, 0.0f));
  testing::require(
      cudaFuncSetAttribute(overwrite_what_was_read, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  overwrite_what_was_read<<<kBlocks, 256, kSharedBytes>>>(sums.data());
  testing::require(cudaGetLastError());
  const auto got = sums.host();
  for (int place = 0; place < kBlocks * kPlaces; ++place)
    for (int i = 0; i < kBufferFloats; ++i)
      ASSERT_EQ(got[size_t(place) * kBufferFloats + i], place % kPlaces < kCopies ? i + 1 : 2 * i + 1)
          << "CTA " << place / kPlaces << ", place " << place % kPlaces << ", number " << i;
}

// Adds a buffer to one place many times, 2 MiB in all, and reads the last sum as soon as the wait for its completion returns.
constexpr int kAdditions = 64;
__global__ void read_what_was_added(float* sum, float* last) {
  __shared__ alignas(16) float numbers[kBufferFloats];
  for (int i = threadIdx.x; i < kBufferFloats; i += blockDim.x) numbers[i] = static_cast<float>(i);
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 0; i < kAdditions; ++i) ptx::reduce_add_run(sum, numbers, sizeof numbers);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
  *last = sum[kBufferFloats - 1];
}

TEST(RunCopy, IsCompleteOnceItHasBeenWaitedFor) {
  LETHE_NEEDS_GPU();
  const DeviceArray<float> sum(std::vector<float>(kBufferFloats, 0.0f)), last(1);
  read_what_was_added<<<1, 256>>>(sum.data(), last.data());
  EXPECT_EQ(last.host().front(), kAdditions * (kBufferFloats - 1));
}

__global__ void load_floats(const float* source, float* reversed, float* swapped) {
  __shared__ alignas(8) float numbers[32];
  numbers[threadIdx.x] = load_global(source + threadIdx.x);
  __syncwarp();
  reversed[threadIdx.x] = ptx::load_float(ptx::shared_address(&numbers[31 - threadIdx.x]));
  const float2 pair = ptx::load_pair(ptx::shared_address(&numbers[threadIdx.x / 2 * 2]));
  swapped[threadIdx.x] = threadIdx.x % 2 ? pair.x : pair.y;
}

TEST(Floats, AreLoadedFromGlobalAndFromSharedMemory) {
  LETHE_NEEDS_GPU();
  std::vector<float> values = testing::small_integers(32, 5);
  const DeviceArray<float> source(values), reversed(values.size()), swapped(values.size());
  load_floats<<<1, 32>>>(source.data(), reversed.data(), swapped.data());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(swapped.host()[i], values[i ^ 1]);
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(reversed.host(), values);
}

// Writes a 16 × 16 matrix with one stmatrix, plain or transposed.
__global__ void store_matrices(__half* stored, __half* stored_transposed) {
  __shared__ alignas(1024) char plain[16 * 128], transposed[16 * 128];
  const int lane = threadIdx.x;
  uint32_t fragment[4];  // two 8-row halves × two 8-column halves of M[r][c] = 16 r + c
  for (int matrix = 0; matrix < 4; ++matrix) {
    const int row = matrix % 2 * 8 + lane / 4, column = matrix / 2 * 8 + lane % 4 * 2;
    fragment[matrix] = pack<__half>(16.0f * row + column, 16.0f * row + column + 1);
  }
  const int matrix = lane / 8;
  const uint32_t row = matrix % 2 * 8 + lane % 8, column = matrix / 2 * 8;
  ptx::store_matrices(ptx::shared_address(plain) + ptx::swizzled_offset(row, column), fragment[0], fragment[1],
                      fragment[2], fragment[3]);
  const uint32_t transposed_row = matrix / 2 * 8 + lane % 8, transposed_column = matrix % 2 * 8;
  ptx::store_matrices_transposed(
      ptx::shared_address(transposed) + ptx::swizzled_offset(transposed_row, transposed_column), fragment[0],
      fragment[1], fragment[2], fragment[3]);
  __syncwarp();
  for (int i = lane; i < 256; i += 32) {
    stored[i] = *reinterpret_cast<__half*>(plain + ptx::swizzled_offset(i / 16, i % 16));
    stored_transposed[i] = *reinterpret_cast<__half*>(transposed + ptx::swizzled_offset(i / 16, i % 16));
  }
}

TEST(Fragments, StoreMatricesPlainAndTransposed) {
  LETHE_NEEDS_GPU();
  const DeviceArray<__half> stored(256), stored_transposed(256);
  store_matrices<<<1, 32>>>(stored.data(), stored_transposed.data());
  const auto a = stored.host(), b = stored_transposed.host();
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      const float expected = 16.0f * row + column;
      ASSERT_EQ(__half2float(a[row * 16 + column]), expected);
      ASSERT_EQ(__half2float(b[column * 16 + row]), expected);
    }
}

template <typename Element>
__global__ void round_trip(const float* values, float* returned, float* powers, float* logarithms) {
  const int i = threadIdx.x;
  const float2 pair = unpack<Element>(pack<Element>(values[2 * i], values[2 * i + 1]));
  returned[2 * i] = pair.x;
  returned[2 * i + 1] = pair.y;
  for (int e = 0; e < 2; ++e) {
    powers[2 * i + e] = exp2_approximate(values[2 * i + e]);
    logarithms[2 * i + e] = log2_approximate(powers[2 * i + e]);
  }
}

template <typename Element>
void expect_round_trip() {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = -40.0f + 1.2345678f * i;
  const DeviceArray<float> source(values), returned(64), powers(64), logarithms(64);
  round_trip<Element><<<1, 32>>>(source.data(), returned.data(), powers.data(), logarithms.data());
  const auto rounded = testing::to_element<Element>(values);
  const auto got = returned.host(), power = powers.host(), logarithm = logarithms.host();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(got[i], static_cast<float>(rounded[i]));
    EXPECT_LT(std::fabs(power[i] / std::exp2(double(values[i])) - 1), 5e-7);
    EXPECT_LT(std::fabs(logarithm[i] - values[i]), 1e-5);
  }
}

TEST(Fragments, PackRoundsToNearestAndExponentialsAreExactToTwentyBits) {
  LETHE_NEEDS_GPU();
  expect_round_trip<__nv_bfloat16>();
  expect_round_trip<__half>();
}

__global__ void exponentials(const float* values, float* powers, float* logarithms) {
  powers[threadIdx.x] = exp2_approximate(values[threadIdx.x]);
  logarithms[threadIdx.x] = log2_approximate(values[threadIdx.x]);
}

TEST(Fragments, ExponentialsEndInZeroAndLogarithmsInMinusInfinity) {
  LETHE_NEEDS_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{-kInfinity, -1000, -140, -126.5f, -125, 0};
  const DeviceArray<float> source(values), powers(values.size()), logarithms(values.size());
  exponentials<<<1, static_cast<unsigned>(values.size())>>>(source.data(), powers.data(), logarithms.data());
  const auto power = powers.host();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(power[i], 0.0f) << "2^" << values[i];  // also where a subnormal number is nearer
  EXPECT_FLOAT_EQ(power[4], 0x1p-125f);
  EXPECT_EQ(power[5], 1.0f);
  EXPECT_EQ(logarithms.host()[5], -kInfinity);
}

}  // namespace
}  // namespace lethe

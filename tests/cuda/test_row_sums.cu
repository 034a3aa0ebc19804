// Sums of the rows and columns of a tile in a warp's registers, in the order of the tensor core's accumulators, exactly: small integers leave no
// rounding.

#include <vector>

#include "optimized/cuda/tile/row_sums.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr int kTileRows = 64, kTileColumns = 8;  // of one warp; each of its eight groups of four lanes has a column

// `tile` is [column][row].
__global__ void add_rows(const float* tile, float* sums_of_row) {
  const int lane = threadIdx.x % 32;
  float sums[kTileRows / 4];
  for (int j = 0; j < 8; ++j)
    for (int e = 0; e < 2; ++e) sums[2 * j + e] = tile[lane / 4 * kTileRows + 8 * j + 2 * (lane % 4) + e];
  reinterpret_cast<float2*>(sums_of_row)[threadIdx.x] = tile::sums_of_rows(sums, lane);
}

// The same of the first 32 rows.
__global__ void add_half_the_rows(const float* tile, float* sums_of_row) {
  const int lane = threadIdx.x % 32;
  float sums[8];
  for (int j = 0; j < 4; ++j)
    for (int e = 0; e < 2; ++e) sums[2 * j + e] = tile[lane / 4 * kTileRows + 8 * j + 2 * (lane % 4) + e];
  sums_of_row[tile::row_of_thirty_two(lane)] = tile::sum_of_thirty_two_rows(sums, lane);
}

__global__ void add_columns(const float* tile, float* sums_of_column) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int row = lane % 4; row < kTileRows; row += 4) sum += tile[lane / 4 * kTileRows + row];
  sums_of_column[threadIdx.x] = tile::sum_of_column(sum);
}

// `of_lanes` is [group][lane].
__global__ void add_groups(const float* of_lanes, float* parts) {
  parts[threadIdx.x] = tile::part_of_group(of_lanes[threadIdx.x], of_lanes[32 + threadIdx.x], threadIdx.x);
}

TEST(RowSums, AreOfEachRowOverTheColumnsOfAWarp) {
  LETHE_NEEDS_GPU();
  const auto tile = testing::small_integers(kTileColumns * kTileRows, 11);
  std::vector<float> expected(kTileRows);
  for (int column = 0; column < kTileColumns; ++column)
    for (int row = 0; row < kTileRows; ++row) expected[row] += tile[column * kTileRows + row];
  const DeviceArray<float> tile_device(tile), sums(kTileRows);
  add_rows<<<1, 32>>>(tile_device.data(), sums.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(sums.host(), expected);
}

TEST(RowSums, AreOfEachOfThirtyTwoRows) {
  LETHE_NEEDS_GPU();
  const auto tile = testing::small_integers(kTileColumns * kTileRows, 12);
  std::vector<float> expected(32);
  for (int column = 0; column < kTileColumns; ++column)
    for (int row = 0; row < 32; ++row) expected[row] += tile[column * kTileRows + row];
  const DeviceArray<float> tile_device(tile), sums(32);
  add_half_the_rows<<<1, 32>>>(tile_device.data(), sums.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(sums.host(), expected);
}

// Numbers whose sums do round, always in the same order.
TEST(RowSums, AreTheSameAtEveryPositionOfARow) {
  LETHE_NEEDS_GPU();
  std::vector<float> tile(kTileColumns * kTileRows);
  for (int column = 0; column < kTileColumns; ++column)
    for (int row = 0; row < kTileRows; ++row) tile[column * kTileRows + row] = 1 / (3.0f + column);
  const DeviceArray<float> tile_device(tile), sums(kTileRows);
  add_rows<<<1, 32>>>(tile_device.data(), sums.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(sums.host(), std::vector<float>(kTileRows, sums.host()[0]));
  EXPECT_NEAR(sums.host()[0], 1 / 3. + 1 / 4. + 1 / 5. + 1 / 6. + 1 / 7. + 1 / 8. + 1 / 9. + 1 / 10., 1e-6);
}

TEST(RowSums, AColumnsIsInEachOfItsLanes) {
  LETHE_NEEDS_GPU();
  const auto tile = testing::small_integers(kTileColumns * kTileRows, 12);
  std::vector<float> expected(32);
  for (int lane = 0; lane < 32; ++lane)
    for (int row = 0; row < kTileRows; ++row) expected[lane] += tile[lane / 4 * kTileRows + row];
  const DeviceArray<float> tile_device(tile), sums(32);
  add_columns<<<1, 32>>>(tile_device.data(), sums.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(sums.host(), expected);
}

TEST(RowSums, OfTwoGroupsAreInEitherHalfOfAWarp) {
  LETHE_NEEDS_GPU();
  const auto of_lanes = testing::small_integers(64, 13);
  std::vector<float> expected(32);
  for (int lane = 0; lane < 32; ++lane) {
    const float* group = of_lanes.data() + lane / 16 * 32;
    expected[lane] = group[lane % 16] + group[lane % 16 + 16];
  }
  const DeviceArray<float> of_lanes_device(of_lanes), parts(32);
  add_groups<<<1, 32>>>(of_lanes_device.data(), parts.data());
  testing::require(cudaGetLastError());
  EXPECT_EQ(parts.host(), expected);
}

}  // namespace
}  // namespace lethe

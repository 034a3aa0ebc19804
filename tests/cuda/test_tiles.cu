// The forward's tiles on the host: the keys that each query sees, cell by cell, of the blocks that its warpgroup visits in its order.

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>
#include <vector>

#include "optimized/cuda/gate/sections.hpp"
#include "optimized/cuda/tile/order.cuh"

namespace lethe::tile {
namespace {

// One head; `cuts` ascend. The plan as launch_plan leaves it, as far as tiles read it.
struct HostPlan {
  std::vector<int32_t> first_key_block, block_cut_before, head_order{0}, tile_order;
  std::vector<uint8_t> cut_before;
  std::vector<double> base;
  ForwardShape parameters{};

  HostPlan(int queries, int keys, int rows, const std::vector<int>& cuts, const std::vector<int32_t>& first_blocks,
           int window)
      : first_key_block(first_blocks) {
    const int blocks = (keys + kColumns - 1) / kColumns;
    cut_before.assign(blocks * kColumns, kNoCut);
    block_cut_before.assign(blocks + 1, 0);
    base.assign(blocks + 1, 0);
    for (const int cut : cuts) {
      for (int token = cut; token < (cut / kColumns + 1) * kColumns; ++token) cut_before[token] = cut % kColumns;
      for (int block = cut / kColumns + 1; block <= blocks; ++block) block_cut_before[block] = cut;
    }
    parameters.query_length = queries;
    parameters.key_length = keys;
    parameters.heads = parameters.query_heads = parameters.section = 1;
    parameters.query_blocks = (queries + kColumns - 1) / kColumns;
    parameters.query_tiles = parameters.tiles = (queries + rows - 1) / rows;
    parameters.key_blocks = blocks;
    for (int tile = parameters.tiles; tile-- > 0;) tile_order.push_back(tile);
    parameters.order.head_order = head_order.data();
    parameters.order.tile_order = tile_order.data();
    parameters.boundary.first_key_block = first_key_block.data();
    parameters.prefix.base = base.data();
    parameters.prefix.block_cut_before = block_cut_before.data();
    parameters.prefix.cut_before = cut_before.data();
    parameters.prefix.window = window;
  }
};

// The keys that the kernel's loops over a tile's steps leave: masked down from the diagonal, clean down to the last cut, masked again.
template <int kRows, int kKeys>
bool sees(const ForwardShape& a, const Tile<kRows>& tile, int row, int key) {
  const int offset = a.key_length - a.query_length, warpgroup = row / 64, position = tile.query + row + offset;
  const int block = key / kKeys, own_last = own_last_block<kKeys>(tile, warpgroup, offset, a.key_length),
            unmasked = block_below_diagonal<kKeys>(tile.query + 64 * warpgroup + offset);
  if (block < tile.first || block > own_last) return false;
  if (block != own_last && block <= unmasked && block >= tile.cut_block) return true;
  const auto visibility = visibility_of(a, tile, (tile.query + offset) / kColumns);
  return key <= visibility.last_key(position) && (block >= tile.cut_block || key >= visibility.first_key(position));
}

// The same of the loops whose warpgroups find their own edges: masked, clean, and from the edge on by columns; a warpgroup of two sequences all
// masked.
template <int kRows, int kKeys>
bool sees_by_own_edges(const ForwardShape& a, const Tile<kRows>& tile, int row, int key) {
  const int offset = a.key_length - a.query_length, warpgroup = row / 64, position = tile.query + row + offset;
  const int block = key / kKeys, own_last = own_last_block<kKeys>(tile, warpgroup, offset, a.key_length),
            unmasked = block_below_diagonal<kKeys>(tile.query + 64 * warpgroup + offset);
  const OwnEdges own = own_edges<kKeys>(a, tile, warpgroup);
  if (block < own.first || block > own_last) return false;
  const bool diagonal = block == own_last || block > unmasked;
  if (!diagonal && block >= own.cut_block) return true;
  const auto visibility = visibility_of(a, tile, (tile.query + offset) / kColumns);
  return (!diagonal || key <= visibility.last_key(position)) &&
         (block >= own.cut_block || key >= visibility.first_key(position));
}

// Rows whose keys are not hidden by a maximum of their own are of one sequence.
template <int kRows>
void expect_own_edges_to_find_cuts(const ForwardShape& a, const Tile<kRows>& tile) {
  const int offset = a.key_length - a.query_length;
  const auto visibility = visibility_of(a, tile, (tile.query + offset) / kColumns);
  for (int warpgroup = 0; 64 * warpgroup < kRows && tile.query + 64 * warpgroup < a.query_length; ++warpgroup) {
    const int first = tile.query + 64 * warpgroup + offset, end = std::min(first + 64, a.key_length);
    bool cut_within = false;
    for (int position = first + 1; position < end; ++position)
      cut_within |= visibility.cuts.last_cut(position) == position;
    ASSERT_EQ(own_edges(a, tile, warpgroup).cut_within, cut_within) << first;
  }
}

template <int kRows, int kKeys>
void expect_each_query_to_see_its_keys(int queries, int keys, const std::vector<int>& cuts,
                                       const std::vector<int32_t>& first_blocks, int window) {
  const HostPlan plan(queries, keys, kRows, cuts, first_blocks, window);
  std::vector<int> tiles_of_a_query(queries, 0);
  for (int index = 0; index < plan.parameters.tiles; ++index) {
    Tile<kRows> tile = tile_at<kRows>(plan.parameters, index, 1);
    count_in_steps<kKeys>(tile, keys - queries, keys);
    if (kKeys == kColumns) expect_own_edges_to_find_cuts(plan.parameters, tile);
    for (int row = 0; row < kRows && tile.query + row < queries; ++row) {
      const int position = tile.query + row + keys - queries;
      ++tiles_of_a_query[tile.query + row];
      ASSERT_LE(tile.first * kKeys, first_blocks[(tile.query + row) / kColumns] * kColumns);
      const auto behind = std::upper_bound(cuts.begin(), cuts.end(), position);
      const int first_key = std::max(behind == cuts.begin() ? 0 : *(behind - 1), position - window + 1);
      for (int key = tile.first * kKeys; key < (tile.last + 1) * kKeys; ++key)
        for (const auto found : {sees<kRows, kKeys>, sees_by_own_edges<kRows, kKeys>})
          ASSERT_EQ(found(plan.parameters, tile, row, key), key >= first_key && key <= position)
              << kRows << " rows, " << kKeys << " keys, " << queries << " of " << keys << ", query " << tile.query + row
              << ", key " << key << ", window " << window << ", first cut " << (cuts.empty() ? -1 : cuts.front());
    }
  }
  EXPECT_EQ(tiles_of_a_query, std::vector<int>(queries, 1));
}

void expect_each_query_to_see_its_keys(int queries, int keys, const std::vector<int>& cuts,
                                       const std::vector<int32_t>& first_blocks, int window = kNoWindow) {
  expect_each_query_to_see_its_keys<128, kColumns>(queries, keys, cuts, first_blocks, window);
  expect_each_query_to_see_its_keys<192, kColumns>(queries, keys, cuts, first_blocks, window);
  expect_each_query_to_see_its_keys<128, 64>(queries, keys, cuts, first_blocks, window);
}

TEST(Tiles, ShowEachQueryItsKeysAfterOneCutAnywhere) {
  for (const int offset : {0, 1, 63, 64, 100, 127, 128, 200})
    for (const int keys : {257, 385, 512, 640})
      for (int edge = 64; edge <= keys; edge += 64)
        for (const int cut : {edge - 1, edge, edge + 1})
          if (cut < keys)
            expect_each_query_to_see_its_keys(keys - offset, keys, {cut},
                                              std::vector<int32_t>((keys - offset + kColumns - 1) / kColumns, 0));
}

TEST(Tiles, ShowEachQueryItsKeysInAWindow) {
  for (const int offset : {0, 1, 64, 100, 128, 200})
    for (const int keys : {257, 385, 640})
      for (const int window : {1, 2, 63, 64, 65, 127, 128, 129, 200, 256, 384, 1000})
        for (const std::vector<int>& cuts : {std::vector<int>{}, {130}, {64, 250}}) {
          std::vector<int32_t> first_blocks((keys - offset + kColumns - 1) / kColumns);
          for (size_t m = 0; m < first_blocks.size(); ++m)
            first_blocks[m] = std::max(static_cast<int>(m) * kColumns + offset - window + 1, 0) / kColumns;
          expect_each_query_to_see_its_keys(keys - offset, keys, cuts, first_blocks, window);
        }
}

TEST(Tiles, ShowEachQueryItsKeysAfterManyCutsAndAPrunedBoundary) {
  std::mt19937 random(1);
  const auto up_to = [&](int largest) { return std::uniform_int_distribution<int>(0, largest)(random); };
  for (int trial = 0; trial < 400; ++trial) {
    const int keys = 1 + up_to(899), queries = keys - std::min(keys - 1, up_to(300));
    std::vector<int> cuts(up_to(1) ? up_to(6) : up_to(keys));
    for (int& cut : cuts) cut = 1 + up_to(std::max(0, keys - 2));
    std::sort(cuts.begin(), cuts.end());
    std::vector<int32_t> first_blocks((queries + kColumns - 1) / kColumns);
    int first = 0;
    for (size_t m = 0; m < first_blocks.size(); ++m) {
      const int block = (static_cast<int>(m) * kColumns + keys - queries) / kColumns;
      first = std::max(first, up_to(2) ? 0 : up_to(block));
      first_blocks[m] = first;
    }
    expect_each_query_to_see_its_keys(queries, keys, cuts, first_blocks);
  }
}

// Heads by rank, the first `long_heads` of them long.
TEST(Sections, AfterTheFirstAreOfLongHeadsAloneOrHaveNone) {
  for (int count = 1; count <= 20; ++count)
    for (int long_heads = 0; long_heads <= count; ++long_heads)
      for (int section = 1; section <= count; ++section) {
        std::vector<int> rank_at(count, -1);
        for (int rank = 0; rank < count; ++rank) rank_at[place_of_rank(rank, count, long_heads, section)] = rank;
        ASSERT_EQ(std::count(rank_at.begin(), rank_at.end(), -1), 0) << "each place once";
        const int odd = long_heads % section;
        if (long_heads <= section || (odd > 0 && count - long_heads < section - odd)) {
          ASSERT_TRUE(std::is_sorted(rank_at.begin(), rank_at.end()));
          continue;
        }
        for (int first = section; first < count; first += section) {
          const int end = std::min(first + section, count);
          const auto in_section = std::count_if(rank_at.begin() + first, rank_at.begin() + end,
                                                [&](int rank) { return rank < long_heads; });
          ASSERT_TRUE(in_section == 0 || in_section == section) << count << " " << long_heads << " " << section;
          ASSERT_TRUE(std::is_sorted(rank_at.begin() + first, rank_at.begin() + end));
        }
        ASSERT_LT(rank_at[0], long_heads);
      }
}

TEST(Sections, OfWindowsAreOfNearlyEqualSize) {
  for (int64_t heads = 1; heads <= 40; ++heads)
    for (const int64_t tokens : {1, 100, 4096, 16384, 65536})
      for (const int64_t token_bytes : {128, 256, 512, 1024})
        for (const int64_t window : {int64_t{1}, int64_t{128}, int64_t{2048}, tokens, int64_t{kLargestWindow}})
          for (const int64_t running : {0, 25344, 1 << 20})
            for (const int64_t most : {8, INT_MAX}) {
              const int section = heads_in_cache(tokens * token_bytes, heads, tokens, window, running, most),
                        whole = heads_in_cache(tokens * token_bytes, heads);
              ASSERT_TRUE(section >= 1 && section <= heads && section <= std::max<int64_t>(whole, most));
              if (window >= tokens) {
                ASSERT_EQ(section, whole);
                continue;
              }
              const int64_t sections = (heads + section - 1) / section, last = heads - (sections - 1) * section;
              ASSERT_GT(last, section - sections) << heads << " heads of " << tokens << ", window " << window;
            }
}

TEST(Sections, OfSeveralSequencesHaveSomeHeads) {
  Shape shape{
      .query_length = 65536, .key_length = 65536, .heads = 8, .query_heads = 8, .key_dim = 128, .value_dim = 128};
  EXPECT_EQ(section_of_keys(shape, 512, kNoWindow, 0, 8, 4), 1);
  EXPECT_EQ(section_of_keys(shape, 512, kLargestWindow, 0, 8, 4), 4);
  shape.heads = shape.query_heads = 3;
  EXPECT_EQ(section_of_keys(shape, 512, kLargestWindow, 0, 8, 4), 3);
}

}  // namespace
}  // namespace lethe::tile

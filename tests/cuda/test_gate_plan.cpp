// The plan's sums and cuts, of few heads and of many, against sums in double; and its boundary against the reference's, where a head's blocks fit
// into shared memory and where they do not.

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "optimized/cuda/gate/sections.hpp"
#include "optimized/cuda/hopper/attention.hpp"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/forward.hpp"
#include "optimized/cuda/hopper/plan.hpp"
#include "reference/computation_pruning.hpp"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kBatch = 2;
constexpr double kScale = 0.125;

class Prefix : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, bool>> {  // length, heads, side by side
 protected:
  const int64_t length = std::get<0>(GetParam()), heads = std::get<1>(GetParam());
  const bool side_by_side = std::get<2>(GetParam());
  const int64_t token_stride = side_by_side ? heads : 1, head_stride = side_by_side ? 1 : length,
                blocks = (length + kGateBlock - 1) / kGateBlock, rows = kBatch * heads;
  const Shape shape{kBatch, length, length, heads, heads, 64, 64};

  int64_t place_of(int64_t row, int64_t t) const {
    return row / heads * length * heads + t * token_stride + row % heads * head_stride;
  }
  std::unique_ptr<DeviceArray<char>> memory;
  std::unique_ptr<DeviceArray<int32_t>> boundary;

  void SetUp() override {
    LETHE_NEEDS_GPU();
    memory = std::make_unique<DeviceArray<char>>(hopper::forward_workspace_bytes(shape));
    boundary = std::make_unique<DeviceArray<int32_t>>(rows * blocks);
  }

  Plan plan_of(const DeviceArray<float>& gate) const {
    Workspace workspace(memory->data());
    const Plan plan = plan_in(workspace, shape, boundary->data());
    launch_plan({.shape = shape,
                 .dtype = Dtype::kBFloat16,
                 .scale = kScale,
                 .query = {},
                 .key = {},
                 .gates = {gate.data(), length * heads, token_stride, head_stride},
                 .log_pruning_tolerance = -kInfinity,
                 .logit_bound = nullptr,
                 .boundary_given = false,
                 .stream = nullptr},
                plan);
    return plan;
  }
  std::vector<uint16_t> start_of(const Plan& plan) const {  // bits of bfloat16, eight tokens' three parts at a time
    return testing::download(reinterpret_cast<const uint16_t*>(plan.scratch.start), rows * blocks * kGateBlock * 3);
  }
};

TEST_P(Prefix, IsThatOfEveryHead) {
  constexpr double kLog2E = 1.4426950408889634;
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-2, 0);
  std::vector<float> log_forget(rows * length);
  for (float& gate : log_forget) gate = generator() % 64 == 0 ? -kInfinity : uniform(generator);
  const auto gate_at = [&](int64_t row, int64_t t) -> float& { return log_forget[place_of(row, t)]; };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = 0; row % 2 == 1 && t < length; ++t)
      if (t / kGateBlock % 4 < 2) gate_at(row, t) *= 0.0078f;  // a block's sum is above −1 or below
    if (row % 3 == 0)                                          // none
      for (int64_t t = 0; t < length; ++t) gate_at(row, t) = std::max(gate_at(row, t), -1.0f);
    if (row % 3 == 1)  // on the edges
      for (const int64_t t : {int64_t{0}, kGateBlock - 1, kGateBlock, length - 1}) gate_at(row, t) = -kInfinity;
  }
  const DeviceArray<float> gate(log_forget);
  const Plan plan = plan_of(gate);
  const auto bias = testing::download(plan.prefix.bias, rows * blocks * kGateBlock);
  const auto start = start_of(plan);
  const auto cut_before = testing::download(plan.prefix.cut_before, rows * blocks * kGateBlock);
  const auto cut_after = testing::download(plan.prefix.cut_after, rows * blocks * kGateBlock);
  const auto base = testing::download(plan.prefix.base, rows * (blocks + 1));
  const auto base_log2 = testing::download(plan.scratch.base_log2, rows * (blocks + 1));
  const auto separate_rows = testing::download(plan.prefix.separate_rows, rows * (blocks + 1));
  const auto block_cut_before = testing::download(plan.prefix.block_cut_before, rows * (blocks + 1));
  const auto block_cut_after = testing::download(plan.prefix.block_cut_after, rows * (blocks + 1));
  const auto part_of_start = [&](int64_t token, int part) {
    const uint32_t bits = uint32_t{start[token / 8 * 24 + part * 8 + token % 8]} << 16;  // of a bfloat16
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return double{number};
  };
  for (int64_t row = 0; row < rows; ++row) {
    const auto is_cut = [&](int64_t t) { return gate_at(row, t) == -kInfinity; };
    int last_cut = 0;  // before the block
    double before = 0;
    bool decayed = false;  // in the block before
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * kGateBlock, count = std::min(kGateBlock, length - first),
                    entry = row * (blocks + 1) + block;
      SCOPED_TRACE(::testing::Message() << "row " << row << ", block " << block);
      ASSERT_NEAR(base[entry], before, 1e-12 * (1 - before));
      ASSERT_NEAR(double{base_log2[entry].high} + base_log2[entry].low, before * kLog2E, 1e-13 * (1 - before));
      ASSERT_EQ(block_cut_before[entry], last_cut);
      std::vector<double> local(count);  // up to each token
      double sum = 0;
      bool has_cut = false;
      for (int64_t i = 0; i < count; ++i) has_cut = has_cut || is_cut(first + i);
      for (int64_t i = 0; i < count; ++i) local[i] = sum += is_cut(first + i) ? 0 : gate_at(row, first + i);
      const bool decays = has_cut || sum <= -1;
      ASSERT_EQ(separate_rows[entry], decays || decayed);
      decayed = decays;
      int place = kNoCut;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (row * blocks + block) * kGateBlock + i;
        if (is_cut(first + i)) place = i;
        ASSERT_EQ(cut_before[at], place) << "token " << i;
        ASSERT_NEAR(bias[at], -kLog2E * local[i], 1e-7 * (1 - kLog2E * local[i])) << "token " << i;
        const double expected = (sum - local[i]) / kScale;
        ASSERT_NEAR(part_of_start(at, 0) + part_of_start(at, 1) + part_of_start(at, 2), expected, 1e-7 * (1 - expected))
            << "token " << i;
      }
      if (place != kNoCut) last_cut = first + place;
      int behind = kNoCut;
      for (int64_t i = count - 1; i >= 0; --i) {
        ASSERT_EQ(cut_after[(row * blocks + block) * kGateBlock + i], behind) << "token " << i;
        if (is_cut(first + i)) behind = i;
      }
      before += sum;
    }
    const int64_t end = row * (blocks + 1) + blocks;
    ASSERT_NEAR(base[end], before, 1e-12 * (1 - before)) << "row " << row;
    ASSERT_EQ(separate_rows[end], 0) << "row " << row;
    ASSERT_EQ(block_cut_before[end], last_cut) << "row " << row;
    ASSERT_EQ(block_cut_after[end], INT_MAX) << "row " << row;
    int next_cut = INT_MAX;
    for (int64_t t = blocks * kGateBlock - 1; t >= 0; --t) {
      if (t < length && is_cut(t)) next_cut = t;
      if (t % kGateBlock == 0) {
        ASSERT_EQ(block_cut_after[row * (blocks + 1) + t / kGateBlock], next_cut) << "row " << row << ", token " << t;
      }
    }
  }
}

// A k-step reads part of a neighbouring block and multiplies it by zeros; NaN times zero would not be zero.
TEST_P(Prefix, WritesNoNanIntoKStepsWhereAGateIsNan) {
  std::vector<float> log_forget(rows * length, -0.001f);
  for (int64_t row = 0; row < rows; ++row) log_forget[place_of(row, row * 37 % length)] = std::nanf("");
  const DeviceArray<float> gate(log_forget);
  const Plan plan = plan_of(gate);
  const auto start = start_of(plan);
  constexpr uint16_t kExponent = 0x7f80;
  for (size_t i = 0; i < start.size(); ++i)
    ASSERT_NE(start[i] & kExponent, kExponent) << "token " << i / 24 * 8 + i % 8 << " of all heads' blocks";
  const auto separate_rows = testing::download(plan.prefix.separate_rows, rows * (blocks + 1));
  for (int64_t row = 0; row < rows; ++row)  // nor to other rows of its block, or the next, by a sum that they share
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t behind = block - row * 37 % length / kGateBlock;
      ASSERT_EQ(separate_rows[row * (blocks + 1) + block], behind == 0 || behind == 1) << "row " << row;
    }
}

// Sequences of several lengths in every head; and none, where the last tile comes first.
TEST_P(Prefix, OrdersTilesBySequencesWhereThereAreCuts) {
  const int64_t tile_rows = forward_tile_rows(hopper::instance_dim(shape)),
                tiles = (length + tile_rows - 1) / tile_rows;
  for (const bool has_cuts : {true, false}) {
    std::vector<float> log_forget(rows * length, -0.01f);
    for (int64_t row = 0; has_cuts && row < rows; ++row)
      for (int64_t t = 100, next = 700; t < length; t += next, next = 3001 - next)
        log_forget[place_of(row, t)] = -kInfinity;
    const DeviceArray<float> gate(log_forget);
    const Plan plan = plan_of(gate);
    const auto order = testing::download(plan.order.tile_order, tiles);
    const auto first = testing::download(plan.boundary.first_key_block, blocks);
    const int32_t section = testing::download(plan.order.query_section, 1)[0];
    const auto blocks_of = [&](int64_t tile) {
      return (std::min((tile + 1) * tile_rows, length) - 1) / kGateBlock - first[tile * tile_rows / kGateBlock];
    };
    // of the last tile whose keys begin in the same block
    const auto of_sequence = [&](int64_t tile) {
      const auto first_of = [&](int64_t t) { return first[t * tile_rows / kGateBlock]; };
      while (tile + 1 < tiles && first_of(tile + 1) == first_of(tile)) ++tile;
      return blocks_of(tile);
    };
    std::vector<bool> seen(tiles, false);
    for (int64_t place = 0; place < tiles; ++place) {
      ASSERT_TRUE(order[place] >= 0 && order[place] < tiles && !seen[order[place]]) << place;
      seen[order[place]] = true;
      if (!has_cuts) ASSERT_EQ(order[place], tiles - 1 - place);
      if (place == 0) continue;
      const int64_t longer = of_sequence(order[place - 1]), own = of_sequence(order[place]);
      ASSERT_TRUE(longer > own || (longer == own && order[place - 1] > order[place])) << place;
    }
    EXPECT_GE(section, section_of_queries(shape, 2));
    EXPECT_LE(section, std::max<int64_t>(section_of_queries(shape, 2), 4));
    if (!has_cuts) EXPECT_EQ(section, section_of_queries(shape, 2));
    if (has_cuts && 4 * (blocks_of(order[0]) + 1) <= blocks)
      EXPECT_EQ(section, std::max<int64_t>(section_of_queries(shape, 2), std::min<int64_t>(rows, 4)));
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, Prefix,
                         ::testing::Values(std::tuple{300, 1, true}, std::tuple{300, 8, true},
                                           std::tuple{1024, 17, true}, std::tuple{300, 17, false},
                                           std::tuple{40000, 2, true}, std::tuple{140000, 2, true},
                                           std::tuple{130, 8200, true}));

class PruningBoundary
    : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, bool>> {  // key and query length, by mass
};

TEST_P(PruningBoundary, IsWhereTheReferencePutsIt) {
  LETHE_NEEDS_GPU();
  const auto [keys, queries, by_mass] = GetParam();
  constexpr int64_t kHeads = 3;
  constexpr double kTolerance = -10;
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(0, 2);
  std::vector<float> log_forget(keys * kHeads);
  for (int64_t t = 0; t < keys; ++t) {
    log_forget[t * kHeads] = -0.01f * uniform(generator);  // forgets 20 blocks away
    // by cuts alone: within a block, on its first token, on its last
    const bool cut = t % 50000 == 777 || t % 50000 == 2560 || t % 50000 == 3839;
    log_forget[t * kHeads + 1] = cut ? -kInfinity : -1e-6f * uniform(generator);
    log_forget[t * kHeads + 2] = -0.005f * uniform(generator);  // over 5000 tokens, just more than its bound
  }
  const std::vector<float> bound = {3, 5, 0};
  const DeviceArray<float> gate(log_forget), bound_on_device(bound);
  const Shape shape{1, queries, keys, kHeads, kHeads, 64, 64};
  const DeviceArray<char> memory(hopper::forward_workspace_bytes(shape));
  const DeviceArray<int32_t> boundary(kHeads * gate_blocks(queries));
  Workspace workspace(memory.data());
  const Plan plan = plan_in(workspace, shape, boundary.data());
  launch_plan({.shape = shape,
               .dtype = Dtype::kBFloat16,
               .scale = 0.125,
               .query = {},
               .key = {},
               .gates = {gate.data(), keys * kHeads, kHeads, 1},
               .log_pruning_tolerance = kTolerance,
               .logit_bound = bound_on_device.data(),
               .prune_by_mass = by_mass,
               .boundary_given = false,
               .stream = nullptr},
              plan);
  const int64_t key_blocks = gate_blocks(keys), query_blocks = gate_blocks(queries);
  const auto first_key = testing::download(plan.boundary.first_key_block, kHeads * query_blocks);
  const auto last_query = testing::download(plan.boundary.last_query_block, kHeads * key_blocks);
  namespace pruning = reference::computation_pruning;
  for (int64_t head = 0; head < kHeads; ++head) {
    Vector<double> gates(keys);
    for (int64_t t = 0; t < keys; ++t) gates[t] = log_forget[t * kHeads + head];
    const double threshold =
        by_mass ? pruning::mass_threshold(bound[head], kTolerance) : pruning::threshold(bound[head], keys, kTolerance);
    constexpr double kRounding = 1e-4;  // of c at the query, whose local part is a float, and of the mass
    const auto boundary_at = [&](double shifted) {
      constexpr reference::Blocks kBlocks{kGateBlock, kGateBlock};
      return by_mass ? pruning::boundary_by_mass(gates, queries, kBlocks, shifted)
                     : pruning::boundary_by_walk(gates, queries, kBlocks, shifted);
    };
    const auto earliest = boundary_at(threshold - kRounding), latest = boundary_at(threshold + kRounding);
    int64_t pruned = 0;
    for (int64_t m = 0; m < query_blocks; ++m) {
      const int64_t found = first_key[head * query_blocks + m];
      ASSERT_GE(found, earliest[m]) << "head " << head << ", query block " << m;
      ASSERT_LE(found, latest[m]) << "head " << head << ", query block " << m;
      pruned += found;
    }
    EXPECT_GT(pruned, 0);
    for (int64_t n = 0; n < key_blocks; ++n) {
      int64_t last = query_blocks - 1;
      while (last >= 0 && first_key[head * query_blocks + last] > n) --last;
      ASSERT_EQ(last_query[head * key_blocks + n], last) << "head " << head << ", key block " << n;
    }
  }
}

// What the gate alone forgets is in a block's mass: at three heads' gates, up to 5 nats less than log T.
TEST(MassBoundary, IsNeverBeforeTheOneByWeight) {
  LETHE_NEEDS_GPU();
  constexpr int64_t kTokens = 20000, kHeads = 4;
  std::mt19937 generator(2);
  std::uniform_real_distribution<float> uniform(0, 2);
  std::vector<float> log_forget(kTokens * kHeads);
  for (int64_t t = 0; t < kTokens; ++t) {
    const float decays[] = {0.05f, 0.005f, t < kTokens - 200 ? 0.0f : 0.2f, t % 7000 == 10 ? 30.0f : 1e-4f};
    for (int64_t head = 0; head < kHeads; ++head) log_forget[t * kHeads + head] = -decays[head] * uniform(generator);
  }
  const DeviceArray<float> gate(log_forget), bound(std::vector<float>(kHeads, 4));
  const Shape shape{1, kTokens, kTokens, kHeads, kHeads, 64, 64};
  const DeviceArray<char> memory(hopper::forward_workspace_bytes(shape));
  const int64_t blocks = gate_blocks(kTokens);
  const DeviceArray<int32_t> boundary(kHeads * blocks);
  std::vector<std::vector<int32_t>> first_key;
  for (const bool by_mass : {false, true}) {
    Workspace workspace(memory.data());
    const Plan plan = plan_in(workspace, shape, boundary.data());
    launch_plan({.shape = shape,
                 .dtype = Dtype::kBFloat16,
                 .scale = 0.125,
                 .query = {},
                 .key = {},
                 .gates = {gate.data(), kTokens * kHeads, kHeads, 1},
                 .log_pruning_tolerance = -10,
                 .logit_bound = bound.data(),
                 .prune_by_mass = by_mass,
                 .boundary_given = false,
                 .stream = nullptr},
                plan);
    first_key.push_back(testing::download(plan.boundary.first_key_block, kHeads * blocks));
  }
  int64_t further = 0;
  for (size_t i = 0; i < first_key[0].size(); ++i) {
    ASSERT_GE(first_key[1][i], first_key[0][i]) << i;
    ASSERT_TRUE(i % blocks == 0 || first_key[1][i] >= first_key[1][i - 1]) << i;
    further += first_key[1][i] - first_key[0][i];
  }
  EXPECT_GT(further, blocks);
}

INSTANTIATE_TEST_SUITE_P(Lengths, PruningBoundary,
                         ::testing::Combine(::testing::Values(5000), ::testing::Values(5000), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(
    LongLengths, PruningBoundary,
    ::testing::Values(std::tuple{1024 * 128, 1024 * 128, false}, std::tuple{1024 * 128 + 1, 1024 * 128 + 1, false},
                      std::tuple{1030 * 128, 1000 * 128 - 7, false}, std::tuple{1024 * 128, 1024 * 128, true},
                      std::tuple{1024 * 128 + 1, 1024 * 128 + 1, true}, std::tuple{1030 * 128, 1000 * 128 - 7, true}));

}  // namespace
}  // namespace lethe

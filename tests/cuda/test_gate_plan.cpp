// The plan's boundary against the reference's, where a head's blocks fit into shared memory and where they do not.

#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "optimized/kernels.hpp"
#include "reference/computation_pruning.hpp"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Boundary : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};  // key and query length

TEST_P(Boundary, IsWhereTheReferencePutsIt) {
  LETHE_NEEDS_GPU();
  const auto [keys, queries] = GetParam();
  constexpr int64_t kHeads = 2;
  constexpr double kTolerance = -10;
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(0, 2);
  std::vector<float> log_forget(keys * kHeads);
  for (int64_t t = 0; t < keys; ++t) {
    log_forget[t * kHeads] = -0.01f * uniform(generator);                                      // forgets 20 blocks away
    log_forget[t * kHeads + 1] = t % 50000 == 777 ? -kInfinity : -1e-6f * uniform(generator);  // by cuts alone
  }
  const std::vector<float> bound = {3, 5};
  const DeviceArray<float> gate(log_forget), bound_on_device(bound);
  const Shape shape{1, queries, keys, kHeads, kHeads, 64, 64};
  const DeviceArray<char> memory(gate_plan_bytes(shape));
  const GatePlan plan = gate_plan_in(memory.data(), shape);
  launch_gate_plan({.shape = shape,
                    .dtype = Dtype::kBFloat16,
                    .scale = 0.125,
                    .query = {},
                    .key = {},
                    .log_forget = gate.data(),
                    .gate_batch_stride = keys * kHeads,
                    .gate_token_stride = kHeads,
                    .gate_head_stride = 1,
                    .log_pruning_tolerance = kTolerance,
                    .logit_bound = bound_on_device.data(),
                    .boundary_given = false,
                    .plan = plan,
                    .stream = nullptr});
  const int64_t key_blocks = (keys + kGateBlock - 1) / kGateBlock,
                query_blocks = (queries + kGateBlock - 1) / kGateBlock;
  const auto first_key = testing::download(plan.first_key_block, kHeads * query_blocks);
  const auto last_query = testing::download(plan.last_query_block, kHeads * key_blocks);
  namespace pruning = reference::computation_pruning;
  for (int64_t head = 0; head < kHeads; ++head) {
    Vector<double> gates(keys);
    for (int64_t t = 0; t < keys; ++t) gates[t] = log_forget[t * kHeads + head];
    const double threshold = pruning::threshold(bound[head], keys, kTolerance);
    constexpr double kRounding = 1e-4;  // of c at the query, whose local part is a float
    const auto earliest = pruning::boundary_by_walk(gates, queries, {kGateBlock, kGateBlock}, threshold - kRounding);
    const auto latest = pruning::boundary_by_walk(gates, queries, {kGateBlock, kGateBlock}, threshold + kRounding);
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

INSTANTIATE_TEST_SUITE_P(Lengths, Boundary,
                         ::testing::Values(std::tuple{5000, 5000}, std::tuple{1024 * 128, 1024 * 128},
                                           std::tuple{1024 * 128 + 1, 1024 * 128 + 1},
                                           std::tuple{1030 * 128, 1000 * 128 - 7}));

}  // namespace
}  // namespace lethe

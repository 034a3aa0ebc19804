// The plan's boundary against the definition, block by block, where a head's blocks fit into shared memory and where they do not.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "optimized/kernels.hpp"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int32_t> download(const int32_t* device, size_t count) {
  std::vector<int32_t> host(count);
  testing::require(cudaDeviceSynchronize());
  testing::require(cudaMemcpy(host.data(), device, count * sizeof(int32_t), cudaMemcpyDeviceToHost));
  return host;
}

class Boundary : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};  // key and query length

// D of a block against the threshold, from a sum in double: c at the block's last key.
TEST_P(Boundary, IsWhereTheDefinitionPutsIt) {
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
  const auto first_key = download(plan.first_key_block, kHeads * query_blocks);
  const auto last_query = download(plan.last_query_block, kHeads * key_blocks);
  for (int64_t head = 0; head < kHeads; ++head) {
    std::vector<double> sum(keys + 1, 0);   // c before each token
    std::vector<int64_t> cut(keys + 1, 0);  // the last cut before it
    for (int64_t t = 0; t < keys; ++t) {
      const float log_f = log_forget[t * kHeads + head];
      sum[t + 1] = sum[t] + (std::isinf(log_f) ? 0 : log_f);
      cut[t + 1] = std::isinf(log_f) ? t : cut[t];
    }
    const double threshold = -2.0 * bound[head] - std::log(double(keys)) + kTolerance;
    int64_t pruned = 0;
    for (int64_t m = 0; m < query_blocks; ++m) {
      const int64_t position = m * kGateBlock + keys - queries, own = position / kGateBlock;
      // the boundary for a threshold moved by `slack`, which covers how c is rounded
      const auto boundary = [&, head = head](double slack) {
        int64_t n = 0;
        while (n < own && (sum[position + 1] - sum[std::min((n + 1) * kGateBlock, keys)] < threshold + slack ||
                           (n + 1) * kGateBlock <= cut[position + 1]))
          ++n;
        return n;
      };
      const int64_t found = first_key[head * query_blocks + m];
      ASSERT_GE(found, boundary(-1e-4)) << "head " << head << ", query block " << m;
      ASSERT_LE(found, boundary(1e-4)) << "head " << head << ", query block " << m;
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

// The backward's last kernel, which computes the gate's gradient from row and column sums of dS: on sums that a test supplies.

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "reference/agreement.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/every_kernel.hpp"
#include "tests/cuda/gate_sums.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;
using testing::GateSums;
using testing::slice;

GateSums random_sums(const Shape& s) {
  std::mt19937 generator(29);
  std::normal_distribution<float> normal;
  GateSums sums{std::vector<float>(s.batch * s.query_heads * s.query_length),
                std::vector<float>(s.batch * s.query_heads * s.key_length)};
  for (auto* tensor : {&sums.of_rows, &sums.of_columns})
    for (float& number : *tensor) number = normal(generator);
  return sums;
}

/// The last kernel's result for the sums: [B, Tk, Hq]. Where the gate hardly decays, float sums are one for a group of rows, in parts: `sums` is then
/// left with the group's mean in each of its rows.
template <typename Element>
std::vector<double> gate_gradient(const Problem& problem, GateSums& sums, bool float_sums) {
  const Shape& s = problem.shape;
  const testing::DeviceProblem<Element> device(problem, {});
  const DeviceArray<char> memory(testing::HopperKernels::backward_passes_bytes(s));
  Workspace cut(memory.data());
  const BackwardWorkspace workspace = backward_workspace_in(cut, s);
  // Changed here and copied back whole: beside other processes every copy waits for its turn.
  const int64_t heads = s.batch * s.query_heads;
  std::vector<float> slices = testing::download(workspace.grad_query, testing::slice_of(s, heads, 0));
  std::vector<float> columns = testing::download(workspace.column_sums, testing::column_sum_at(s, heads, 0));
  const auto put_parts = [&](int64_t row, int64_t first) {
    const int64_t count = std::min(testing::kRowsOfGroup, s.query_length - first);
    const auto rows = sums.of_rows.begin() + row * s.query_length + first;
    double sum = 0;
    int i = 0;
    for (const int64_t at : testing::parts_at(s, row, first)) {
      slices[at] = (i % 2 == 0 ? 3.0f : -1.0f) * rows[i % count];
      ++i;
      sum += slices[at];
    }
    std::fill_n(rows, count, static_cast<float>(sum / count));
  };
  for (int64_t row = 0; row < heads; ++row) {
    std::copy_n(&sums.of_columns[row * s.key_length], s.key_length, &columns[testing::column_sum_at(s, row, 0)]);
    for (int64_t query = 0; query < s.query_length; query += 64) {
      if (float_sums && !testing::rows_apart(problem, row, query)) {
        put_parts(row, query);
      } else {
        std::copy_n(&sums.of_rows[row * s.query_length + query], std::min<int64_t>(64, s.query_length - query),
                    &slices[testing::row_sum_at(s, row, query)]);
      }
    }
  }
  for (const auto& [to, from] : {std::pair(workspace.grad_query, &slices), {workspace.column_sums, &columns}})
    testing::require(cudaMemcpy(to, from->data(), from->size() * sizeof(float), cudaMemcpyHostToDevice));
  const DeviceArray<float> gradient(s.batch * s.key_length * s.query_heads);
  BackwardArguments arguments{};
  arguments.shape = s;
  arguments.dtype = problem.dtype;
  arguments.scale = problem.scale;
  arguments.grad_log_forget = gradient.data();
  arguments.float_sums = float_sums;
  launch_backward_gate(arguments, workspace, device.plan());
  const std::vector<float> host = gradient.host();
  return {host.begin(), host.end()};
}

/// The same of one head in double, by the definition: each row's sum is subtracted from its keys in proportion to their weights by the gate alone.
std::vector<double> expected_gate_gradient(const Problem& problem, const GateSums& sums, int64_t row) {
  const Shape& s = problem.shape;
  const auto gate = [&](int64_t token) {
    return problem.log_forget[(row / s.query_heads * s.key_length + token) * s.query_heads + row % s.query_heads];
  };
  std::vector<double> of_keys(s.key_length), gradient(s.key_length);
  for (int64_t key = 0; key < s.key_length; ++key) of_keys[key] = -sums.of_columns[row * s.key_length + key];
  for (int64_t query = 0; query < s.query_length; ++query) {
    std::vector<double> left;  // of the query's keys, from its own backwards
    double log_left = 0, all = 0;
    for (int64_t key = query + s.key_length - s.query_length; key >= 0 && log_left > -60; log_left += gate(key--))
      all += left.emplace_back(std::exp(log_left));
    for (size_t i = 0; i < left.size(); ++i)
      of_keys[query + s.key_length - s.query_length - i] += sums.of_rows[row * s.query_length + query] * left[i] / all;
  }
  double behind = 0;
  for (int64_t token = s.key_length - 1; token > 0; --token) {
    behind += of_keys[token];
    gradient[token] = gate(token) == -INFINITY ? 0 : behind;
  }
  return gradient;
}

class BackwardGate : public testing::EveryKernel {
 protected:
  // On sums that are no rounding errors but arbitrary numbers, with cuts and with fewer queries than keys; with gates a 16th of an untrained head's,
  // and in the weak blocks a 1000th.
  void expect_gradient(bool float_sums, bool (*is_weak)(int64_t block)) {
    for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{300, 300}, {333, 700}, {4500, 5000}}) {
      SCOPED_TRACE(std::to_string(queries) + " of " + std::to_string(keys));
      Problem problem = random_problem(shape(2, queries, keys, 2, 2), dtype(), Gate::kInitial, 28);
      for (size_t i = 0; i < problem.log_forget.size(); ++i) {
        const int64_t token = int64_t(i) / 2 % keys;
        problem.log_forget[i] = static_cast<float>(problem.log_forget[i] / (is_weak(token / kGateBlock) ? 1000 : 16));
      }
      for (const int64_t cut : {50, 128, 255}) problem.log_forget[2 * cut] = -INFINITY;  // of one head
      GateSums sums = random_sums(problem.shape);
      const std::vector<double> found = problem.dtype == Dtype::kBFloat16
                                            ? gate_gradient<__nv_bfloat16>(problem, sums, float_sums)
                                            : gate_gradient<__half>(problem, sums, float_sums);
      for (int64_t row = 0; row < 4; ++row) {
        const std::vector<double> expected = expected_gate_gradient(problem, sums, row),
                                  actual = slice(found, keys, 2, 1, row / 2, row % 2);
        EXPECT_LE(compare(actual, expected, 1).error, 1e-5);
      }
    }
  }
};

TEST_P(BackwardGate, ComputesTheGatesGradientFromTheSums) {
  for (const bool float_sums : {false, true}) expect_gradient(float_sums, [](int64_t) { return false; });
}

TEST_P(BackwardGate, GivesEachRowTheMeanOfItsGroup) {
  expect_gradient(true, [](int64_t) { return true; });
  expect_gradient(true, [](int64_t block) { return block % 3 != 1; });
}

TEST_P(BackwardGate, TakesSumsOf16BitsOfEachRowForEveryGate) {
  expect_gradient(false, [](int64_t) { return true; });
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardGate, testing::hopper_instances(), testing::name_of_instance);

}  // namespace
}  // namespace lethe

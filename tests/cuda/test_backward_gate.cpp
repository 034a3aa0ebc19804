// The backward's last kernels, which compute the gate's gradient from row and column sums of dS: on sums that a test supplies.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

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

/// Their result for the sums: [B, Tk, Hq]. Where the gate hardly decays, float sums are one for a group of rows, in parts: `sums` is then
/// left with the group's mean in each of its rows.
template <typename Element>
std::vector<double> gate_gradient(const Problem& problem, GateSums& sums, bool float_sums) {
  const Shape& s = problem.shape;
  const testing::DeviceProblem<Element> device(problem, {});
  const DeviceArray<char> memory(testing::HopperKernels::backward_passes_bytes(s));
  Workspace cut(memory.data());
  const BackwardWorkspace workspace = backward_workspace_in(cut, s);
  // Copied whole: beside other processes every copy waits for its turn. What no sum fills is NaN.
  const int64_t heads = s.batch * s.query_heads;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> slices(testing::slice_of(s, heads, 0), kNan), columns(testing::column_sum_at(s, heads, 0), kNan);
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
      if (testing::in_float(s, float_sums) && !testing::rows_apart(problem, row, query)) {
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

using IsWeak = bool (*)(int64_t block);

class BackwardGate : public testing::EveryKernel {
 protected:
  // Gates a 16th of an untrained head's, and in the weak blocks a 1000th; nothing else is read. cuts: of the first head, or of all.
  Problem problem_of(const Shape& s, IsWeak is_weak, const std::vector<int64_t>& cuts,
                     bool of_all_heads = false) const {
    Problem problem = random_problem({s.batch, s.query_length, s.key_length, s.heads, s.query_heads, 1, 1}, dtype(),
                                     Gate::kInitial, 28);
    problem.shape = s;
    for (auto* tensor : {&problem.query, &problem.key, &problem.value}) tensor->clear();
    for (size_t i = 0; i < problem.log_forget.size(); ++i) {
      const int64_t token = int64_t(i) / s.query_heads % s.key_length;
      problem.log_forget[i] = static_cast<float>(problem.log_forget[i] / (is_weak(token / kGateBlock) ? 1000 : 16));
    }
    for (const int64_t cut : cuts)
      for (int64_t head = 0; head < (of_all_heads ? s.query_heads : 1); ++head)
        problem.log_forget[s.query_heads * cut + head] = -INFINITY;
    return problem;
  }

  std::vector<double> gradient_of(const Problem& problem, GateSums& sums, bool float_sums) const {
    return problem.dtype == Dtype::kBFloat16 ? gate_gradient<__nv_bfloat16>(problem, sums, float_sums)
                                             : gate_gradient<__half>(problem, sums, float_sums);
  }

  // On sums that are no rounding errors but arbitrary numbers.
  void expect_gradient(const Problem& problem, bool float_sums) const {
    const Shape& s = problem.shape;
    SCOPED_TRACE(std::to_string(s.query_length) + " of " + std::to_string(s.key_length));
    GateSums sums = random_sums(s);
    const std::vector<double> found = gradient_of(problem, sums, float_sums);
    for (int64_t row = 0; row < s.batch * s.query_heads; ++row) {
      const std::vector<double> expected = expected_gate_gradient(problem, sums, row),
                                actual = slice(found, s.key_length, s.query_heads, 1, row / s.query_heads,
                                               row % s.query_heads);
      EXPECT_LE(compare(actual, expected, 1).error, 1e-5) << row;
    }
  }

  // With fewer queries than keys, and with cuts.
  void expect_gradients(bool float_sums, IsWeak is_weak) const {
    for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{300, 300}, {333, 700}, {4500, 5000}})
      expect_gradient(problem_of(shape(2, queries, keys, 2, 2), is_weak, {50, 128, 255}), float_sums);
  }
};

const IsWeak no_block = [](int64_t) { return false; };
const IsWeak every_block = [](int64_t) { return true; };
const IsWeak two_blocks_of_three = [](int64_t block) { return block % 3 != 1; };

TEST_P(BackwardGate, ComputesTheGatesGradientFromTheSums) {
  for (const bool float_sums : testing::kinds_of_sums(shape(1, 1, 1, 1, 1))) expect_gradients(float_sums, no_block);
}

TEST_P(BackwardGate, GivesEachRowTheMeanOfItsGroup) {
  expect_gradients(true, every_block);
  expect_gradients(true, two_blocks_of_three);
}

TEST_P(BackwardGate, TakesSumsOf16BitsOfEachRowForEveryGate) { expect_gradients(false, every_block); }

// Heads of several chunks of 4096, which many CTAs compute.
class BackwardGateOfLongHeads : public BackwardGate {};

// Packed sequences that end at the borders of a warp, a CTA and a chunk, beside them and anywhere; of some tokens and across borders.
TEST_P(BackwardGateOfLongHeads, IsThatOfPackedSequences) {
  const std::vector<int64_t> cuts = {1,    2,    127,  128,  129,  1023, 1024, 1025,  2600, 4095,
                                     4096, 4097, 5000, 6144, 7777, 9216, 9300, 10700, 11776};
  for (const bool float_sums : testing::kinds_of_sums(shape(1, 1, 1, 1, 1)))
    expect_gradient(problem_of(shape(1, 12800, 12800, 2, 2), two_blocks_of_three, cuts, true), float_sums);
}

// Sequences across every border of a chunk, and a head of few; fewer queries than keys, whose groups of rows lie across borders too.
TEST_P(BackwardGateOfLongHeads, IsThatOfFewerQueriesThanKeys) {
  std::vector<int64_t> cuts;
  for (int64_t cut = 600; cut < 16384; cut += 1500) cuts.push_back(cut);
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{8193, 8193}, {12200, 16384}, {70, 9000}})
    expect_gradient(problem_of(shape(1, queries, keys, 2, 2), no_block,
                               {cuts.begin(), std::lower_bound(cuts.begin(), cuts.end(), keys)}),
                    true);
}

// Later tokens whose sums are all 0 change nothing: two chunks, which one CTA computes alone, must be those of a head that has more, beside another.
TEST_P(BackwardGateOfLongHeads, HasTheBitsThatOneCtaGives) {
  constexpr int64_t kShort = 8192;
  for (const int64_t length : {kShort + 1, kShort + 5000, int64_t{66000}}) {
    for (const bool float_sums : testing::kinds_of_sums(shape(1, 1, 1, 1, 1))) {
      SCOPED_TRACE(length);
      const Problem both = problem_of(shape(1, length, length, 2, 2), two_blocks_of_three, {600, 4096, 7000}, true);
      GateSums of_both = random_sums(both.shape);
      for (auto* tensor : {&of_both.of_rows, &of_both.of_columns})
        for (size_t i = 0; i < tensor->size(); ++i)
          if (int64_t(i) % length >= kShort) (*tensor)[i] = 0;
      Problem alone = problem_of(shape(1, kShort, kShort, 1, 1), no_block, {});
      for (int64_t token = 0; token < kShort; ++token) alone.log_forget[token] = both.log_forget[2 * token + 1];
      const auto second = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + length, of.begin() + length + kShort);
      };
      GateSums of_one{second(of_both.of_rows), second(of_both.of_columns)};
      std::vector<double> found = slice(gradient_of(both, of_both, float_sums), length, 2, 1, 0, 1);
      found.resize(kShort);
      EXPECT_EQ(found, gradient_of(alone, of_one, float_sums));
    }
  }
}

TEST_P(BackwardGateOfLongHeads, HasTheSameBitsTwice) {
  const Problem problem = problem_of(shape(3, 9000, 10000, 2, 2), two_blocks_of_three, {3, 4096, 5555});
  GateSums sums = random_sums(problem.shape), again = sums;
  EXPECT_EQ(gradient_of(problem, sums, true), gradient_of(problem, again, true));
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardGateOfLongHeads, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardGate, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, BackwardGate, testing::window_instances(), testing::name_of_instance);

}  // namespace
}  // namespace lethe

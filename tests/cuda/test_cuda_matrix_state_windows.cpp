// delta_state with a gate a row, of so many heads that a forward prepares one chunk of each at a time: every head has the bits that it has among a
// few, whose chunks are prepared at once. Of few tokens for compute-sanitizer's sake.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "optimized/cuda/matrix_state.hpp"
#include "reference/agreement.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/poison.hpp"

namespace lethe::windows_of_states {
namespace {

using Element = __nv_bfloat16;
using testing::DeviceArray;

constexpr int64_t kBatch = 2, kHeads = 2, kTokens = 130;  // two chunks of 64 tokens and two tokens of a third
constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kKey, .delta = true};

Shape shape_of(int64_t dim, int64_t copies) { return {copies * kBatch, kTokens, kTokens, kHeads, kHeads, dim, dim}; }

/// The numbers, so many times one after the other.
template <typename T>
void fill(const DeviceArray<T>& array, const std::vector<T>& numbers) {
  const size_t size = numbers.size();
  testing::require(cudaMemcpy(array.data(), numbers.data(), size * sizeof(T), cudaMemcpyHostToDevice));
  for (size_t done = size; done < array.size(); done *= 2)
    testing::require(cudaMemcpy(array.data() + done, array.data(), std::min(done, array.size() - done) * sizeof(T),
                                cudaMemcpyDeviceToDevice));
}

struct Results {
  std::vector<Element> values;
  std::vector<float> last_state;
};

/// Of a batch's entries, so many times over.
Results run(const MatrixStateFamily& family, int64_t dim, int64_t copies) {
  const Problem problem = random_problem(shape_of(dim, 1), Dtype::kBFloat16, lethe::Gate::kInitial, 61);
  const std::vector<double> gates =
      random_problem({.query_length = int64_t(problem.key.size()), .key_length = int64_t(problem.key.size())},
                     Dtype::kFloat32, lethe::Gate::kInitial, 62)
          .log_forget;
  std::vector<float> keys(problem.key.begin(), problem.key.end()), key_gates(gates.begin(), gates.end()), strengths,
      states = testing::small_integers(kBatch * kHeads * dim * dim, 63);
  for (float& key : keys) key /= std::sqrt(static_cast<float>(dim));  // of a norm near 1
  for (float& gate : key_gates) gate /= 48;
  for (const double gate : problem.log_forget) strengths.push_back(static_cast<float>(std::exp(gate)));

  const size_t elements = copies * problem.key.size();
  const DeviceArray<Element> query(elements), key(elements), value(elements), values(elements);
  const DeviceArray<float> gate(elements), beta(copies * strengths.size()), state(copies * states.size()),
      last_state(state.size());
  fill(query, testing::to_element<Element>(problem.query));
  fill(key, testing::to_element<Element>(keys));
  fill(value, testing::to_element<Element>(problem.value));
  fill(gate, key_gates);
  fill(beta, strengths);
  fill(state, states);
  const auto operand = [&](const void* data) { return Operand{data, kTokens * kHeads * dim, kHeads * dim, dim}; };
  MatrixStateForward forward{};
  forward.shape = shape_of(dim, copies);
  forward.dtype = Dtype::kBFloat16;
  forward.form = kForm;
  forward.scale = 1 / std::sqrt(static_cast<double>(dim));
  forward.query = operand(query.data());
  forward.key = operand(key.data());
  forward.value = operand(value.data());
  forward.key_gate = operand(gate.data());
  forward.beta = {beta.data(), kTokens * kHeads, kHeads, 1};
  forward.initial_state = state.data();
  forward.values = values.data();
  forward.last_state = last_state.data();
  const DeviceArray<char> memory(family.forward_workspace_bytes(forward.shape, kForm));
  forward.workspace = memory.data();
  testing::poison_shared_memory();
  family.forward(forward);
  return {values.host(), last_state.host()};
}

template <typename T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other, int64_t copy) {
  return std::memcmp(&one[0], &other[copy * one.size()], one.size() * sizeof(T)) == 0;
}

class MatrixStateWindows : public ::testing::TestWithParam<int64_t> {};

TEST_P(MatrixStateWindows, GiveAHeadTheBitsThatItHasAmongAFew) {
  LETHE_NEEDS_ANY_GPU();
  const int64_t dim = GetParam(), copies = dim == 64 ? 1000 : 650;  // more than 128 MiB of one prepared chunk each
  const auto families = matrix_state_families();
  const auto family = std::ranges::find_if(families, [&](const MatrixStateFamily& one) {
    return one.unsupported(shape_of(dim, 1), kForm, Dtype::kBFloat16, compute_capability(0)).empty();
  });
  ASSERT_NE(family, families.end());
  if (family->name != std::string("delta key gate kernels")) {
    ASSERT_NE(compute_capability(0), 90) << "found " << family->name;
    GTEST_SKIP() << "other kernels run it here";
  }
  const auto bytes = [&](int64_t times) { return family->forward_workspace_bytes(shape_of(dim, times), kForm); };
  EXPECT_LT(bytes(copies), copies * bytes(1) / 4 * 3) << "expected room for two chunks of three";
  const Results few = run(*family, dim, 1), many = run(*family, dim, copies);
  ASSERT_TRUE(std::ranges::all_of(few.last_state, [](float number) { return std::isfinite(number); }));
  for (int64_t copy = 0; copy < copies; ++copy) {
    ASSERT_TRUE(same_bits(few.values, many.values, copy)) << "values of copy " << copy;
    ASSERT_TRUE(same_bits(few.last_state, many.last_state, copy)) << "last states of copy " << copy;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MatrixStateWindows, ::testing::Values(64, 128),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace lethe::windows_of_states

// Every implementation of the matrix state that runs on the CPU equals the first, for every dtype and gate. All add in float64 and round
// once, so what remains are roundings that fall to the other side.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "optimized/operators/matrix_state.hpp"
#include "optimized/torch/implementations.hpp"
#include "tests/operator/state_calls.hpp"

namespace lethe {
namespace {

using reference::Input;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kResults[] = {"values",
                                    "last state",
                                    "query's gradient",
                                    "key's gradient",
                                    "value's gradient",
                                    "log_key_gate's gradient",
                                    "log_value_gate's gradient",
                                    "beta's gradient",
                                    "state's gradient"};

constexpr size_t kValueGradient = 4;

std::vector<at::Tensor> results_of(const MatrixStateImplementation& row, const MatrixStateInputs& in,
                                   const at::Tensor& d_values, const at::Tensor& d_state) {
  const MatrixStateOutputs out = row.forward(in);
  const MatrixStateGradients gradients = row.backward(d_values, d_state, in);
  return {out.values,
          out.state,
          gradients.query,
          gradients.key,
          gradients.value,
          gradients.log_key_gate,
          gradients.log_value_gate,
          gradients.beta,
          gradients.state};
}

// The row that the operators run here, and one that runs on any device.
const MatrixStateImplementation& first() { return matrix_state_implementations().front(); }
const MatrixStateImplementation& last() { return matrix_state_implementations().back(); }

// ‖actual − expected‖ relative to ‖expected‖, or to `floor` where that is larger.
double difference(const at::Tensor& actual, const at::Tensor& expected, double floor = 1e-300) {
  const at::Tensor wide = expected.to(at::kDouble);
  const double off = (actual.to(at::kDouble) - wide).norm().item().toDouble();
  return off / std::max(wide.norm().item().toDouble(), floor);
}

struct Case {
  const char* name;
  MatrixStateInputs inputs;
};

// Runs function(case, ∂values, ∂state) for each call of the operators that a device can get.
template <typename Function>
void for_every_case(Dtype dtype, const GateChoice& gate, const Function& function) {
  constexpr int64_t kLength = 70;  // beyond the 64 tokens between two kept states
  const StateTensors in = state_tensors(state_heads({2, kLength, 2, 7, 9}, dtype, gate, 10), 2, dtype);
  const auto given = [&](Input input) { return OptionalTensor(in.at(input)); };
  const OptionalTensor none, key_gate = given(Input::kLogKeyGate), head_gate = given(Input::kLogForget),
                             value_gate = given(Input::kLogValueGate), beta = given(Input::kWriteStrength),
                             state = given(Input::kInitialState),
                             wide_state = at::cat({*state, in.at(Input::kInitialNormalizer).unsqueeze(3)}, 3);
  const at::Tensor q = in.at(Input::kQuery).abs(), k = in.at(Input::kKey).abs(), v = in.at(Input::kValue);
  const Case cases[] = {{"no gate", {q, k, v, none, none, none, none, 0.5, false}},
                        {"both gates", {q, k, v, key_gate, value_gate, none, state, 0.5, false}},
                        {"normalized", {q, k, v, head_gate, none, none, wide_state, 0.5, true}},
                        {"delta", {q, k, v, none, none, beta, none, 0.5, false}},
                        {"gated delta", {q, k, v, key_gate, none, beta, state, 0.5, false}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.name) + ", " + dtype_name(dtype) + ", gate " + gate.name);
    at::manual_seed(1);
    const at::Tensor d_values = at::randn(v.sizes(), at::kDouble).to(v.scalar_type()),
                     d_state = at::randn((c.inputs.normalize ? wide_state : state)->sizes(), at::kDouble)
                                   .to(state->scalar_type());
    function(c.inputs, d_values, d_state);
  }
}

TEST(MatrixStateImplementations, EqualTheFirstForEveryDtypeAndGate) {
  const std::pair<Dtype, double> allowed[] = {
      {Dtype::kFloat64, 1e-12}, {Dtype::kFloat32, 1e-7}, {Dtype::kBFloat16, 5e-4}};
  for (const auto& [dtype, share] : allowed) {
    for (const GateChoice& gate : every_gate_choice()) {
      for_every_case(
          dtype, gate, [share = share](const auto& in, const at::Tensor& d_values, const at::Tensor& d_state) {
            const std::vector<at::Tensor> expected = results_of(first(), in, d_values, d_state);
            // A token that sees itself alone has a normalised value that its query doesn't change: a gradient of zero, rounded.
            const double floor =
                in.normalize ? 1e-2 * expected[kValueGradient].to(at::kDouble).norm().item().toDouble() : 1e-300;
            for (const MatrixStateImplementation& row : matrix_state_implementations().subspan(1)) {
              if (!is_for(row, at::kCPU)) continue;
              SCOPED_TRACE(row.name);
              const std::vector<at::Tensor> actual = results_of(row, in, d_values, d_state);
              for (size_t i = 0; i < expected.size(); ++i) {
                EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << kResults[i];
                EXPECT_LE(difference(actual[i], expected[i], floor), share) << kResults[i];
              }
            }
          });
    }
  }
}

TEST(MatrixStateImplementations, MissTheFirstWhereAnInputIsATokenLate) {
  for_every_case(
      Dtype::kBFloat16, {"initial"},
      [](const MatrixStateInputs& in, const at::Tensor& d_values, const at::Tensor& d_state) {
        const std::vector<at::Tensor> expected = results_of(first(), in, d_values, d_state);
        const auto misses = [&](const MatrixStateInputs& spoilt) {
          EXPECT_GT(difference(results_of(last(), spoilt, d_values, d_state).front(), expected.front()), 1e-2);
        };
        const auto late = [](const at::Tensor& tensor) { return tensor.roll({1}, {1}); };
        const auto late_if_given = [&](const OptionalTensor& tensor) {
          return tensor ? OptionalTensor(late(*tensor)) : tensor;
        };
        const at::Tensor key = late(in.key);
        misses(
            {in.query, key, in.value, in.log_key_gate, in.log_value_gate, in.beta, in.state, in.scale, in.normalize});
        if (!in.log_key_gate && !in.beta) return;
        const OptionalTensor key_gate = late_if_given(in.log_key_gate), beta = late_if_given(in.beta);
        misses({in.query, in.key, in.value, key_gate, in.log_value_gate, beta, in.state, in.scale, in.normalize});
      });
}

}  // namespace
}  // namespace lethe

// What runs on other devices than the CPU, here on the CPU: the same as the kernels for every dtype and gate. Both add in float64 and round
// once, so what remains are roundings that fall to the other side.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "optimized/torch/portable_matrix_state.hpp"
#include "tests/operator/state_calls.hpp"

namespace lethe {
namespace {

using reference::Input;
using OptionalTensor = std::optional<at::Tensor>;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using SevenTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

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

std::vector<at::Tensor> list_of(const TwoTensors& forward, const SevenTensors& backward) {
  return std::apply([](const auto&... tensors) { return std::vector<at::Tensor>{tensors...}; },
                    std::tuple_cat(forward, backward));
}

std::vector<at::Tensor> by_kernels(const MatrixStateInputs& in, const at::Tensor& d_values, const at::Tensor& d_state) {
  const auto kernel = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  const auto forward =
      kernel("lethe::_matrix_state_forward")
          .typed<TwoTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                            const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, double, bool)>();
  const auto backward =
      kernel("lethe::_matrix_state_backward")
          .typed<SevenTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                              const OptionalTensor&, double, bool)>();
  return list_of(forward.call(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, in.beta, in.state,
                              in.scale, in.normalize),
                 backward.call(d_values, d_state, in.query, in.key, in.value, in.log_key_gate, in.log_value_gate,
                               in.beta, in.state, in.scale, in.normalize));
}

std::vector<at::Tensor> portably(const MatrixStateInputs& in, const at::Tensor& d_values, const at::Tensor& d_state) {
  return list_of(portable::matrix_state_forward(in), portable::matrix_state_backward(d_values, d_state, in));
}

// ‖actual − expected‖ of ‖expected‖, or of `floor` where that is more.
double difference(const at::Tensor& actual, const at::Tensor& expected, double floor = 1e-300) {
  const at::Tensor wide = expected.to(at::kDouble);
  const double off = (actual.to(at::kDouble) - wide).norm().item().toDouble();
  return off / std::max(wide.norm().item().toDouble(), floor);
}

struct Case {
  const char* name;
  MatrixStateInputs inputs;
};

// For each call of the operators that a device can get: function(case, ∂values, ∂state).
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

TEST(PortableMatrixState, EqualsTheKernelsForEveryDtypeAndGate) {
  const std::pair<Dtype, double> allowed[] = {
      {Dtype::kFloat64, 1e-12}, {Dtype::kFloat32, 1e-7}, {Dtype::kBFloat16, 5e-4}};
  for (const auto& [dtype, share] : allowed) {
    for (const GateChoice& gate : every_gate_choice()) {
      for_every_case(
          dtype, gate, [share = share](const auto& in, const at::Tensor& d_values, const at::Tensor& d_state) {
            const std::vector<at::Tensor> actual = portably(in, d_values, d_state),
                                          expected = by_kernels(in, d_values, d_state);
            // A token that sees itself alone has a normalised value that its query doesn't change: a gradient of zero, rounded.
            const double floor =
                in.normalize ? 1e-2 * expected[kValueGradient].to(at::kDouble).norm().item().toDouble() : 1e-300;
            for (size_t i = 0; i < expected.size(); ++i) {
              EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << kResults[i];
              EXPECT_LE(difference(actual[i], expected[i], floor), share) << kResults[i];
            }
          });
    }
  }
}

TEST(PortableMatrixState, MissesTheKernelsWhereAnInputIsATokenLate) {
  for_every_case(
      Dtype::kBFloat16, {"initial"},
      [](const MatrixStateInputs& in, const at::Tensor& d_values, const at::Tensor& d_state) {
        const std::vector<at::Tensor> expected = by_kernels(in, d_values, d_state);
        const auto misses = [&](const MatrixStateInputs& spoilt) {
          EXPECT_GT(difference(portably(spoilt, d_values, d_state).front(), expected.front()), 1e-2);
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

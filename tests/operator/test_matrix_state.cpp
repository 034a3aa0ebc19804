// gated_state and delta_state equal the reference: values, state and every gradient, for every mechanism that has a state, every dtype and gate.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "optimized/torch/matrix_state.hpp"
#include "reference/agreement.hpp"
#include "tests/operator/state_calls.hpp"

namespace lethe {
namespace {

using reference::Input;

// Where a mechanism normalises, a gradient may be zero in exact arithmetic (z·q and Sᵀq grow alike with q): such a rounding of zero is measured
// against this share of ‖∂value‖.
constexpr double kFloorShare = 1e-2;

at::Tensor random_gradient(const at::Tensor& of, int64_t seed) {
  at::manual_seed(seed);
  return at::randn(of.sizes(), at::kDouble).to(of.scalar_type());
}

Matrix<double> matrix_of(const std::vector<double>& data, Eigen::Index columns) {
  return Eigen::Map<const Matrix<double>>(data.data(), static_cast<Eigen::Index>(data.size()) / columns, columns);
}

void expect_close(const std::string& what, const std::vector<double>& actual, std::span<const double> expected,
                  double allowed, double floor = 1e-300) {
  const Agreement agreement = compare(actual, expected, allowed, floor);
  EXPECT_TRUE(agreement.passed()) << what << ": " << agreement.describe();
}

void expect_equals_reference(const StateCall& call, const StateShape& shape, Dtype dtype, const GateChoice& gate,
                             uint64_t seed, double allowed) {
  const reference::Variant& variant = variant_named(call.variant);
  const std::vector<Head> heads = state_heads(shape, dtype, gate, seed);
  StateTensors inputs = state_tensors(heads, shape.batch, dtype);
  for (const Input input : variant.inputs) inputs[input].requires_grad_();
  const StateResult result = call.call(inputs, heads.front().scale);
  const at::Tensor values_gradient = random_gradient(result.values, 1),
                   state_gradient = random_gradient(result.state, 2);
  const bool normalizes = result.normalizer.defined();
  const at::Tensor normalizer_gradient = normalizes ? random_gradient(result.normalizer, 3) : at::Tensor();
  at::Tensor loss = (result.values.to(at::kDouble) * values_gradient.to(at::kDouble)).sum() +
                    (result.state.to(at::kDouble) * state_gradient.to(at::kDouble)).sum();
  if (normalizes) loss = loss + (result.normalizer.to(at::kDouble) * normalizer_gradient.to(at::kDouble)).sum();
  loss.backward();
  for (int64_t i = 0; i < shape.batch * shape.heads; ++i) {
    const int64_t batch = i / shape.heads, head = i % shape.heads;
    SCOPED_TRACE(std::string(call.variant) + ", " + dtype_name(dtype) + ", gate " + gate.name +
                 ", T = " + std::to_string(shape.length) + ", K = " + std::to_string(shape.key_dim) +
                 ", V = " + std::to_string(shape.value_dim) + ", head " + std::to_string(i));
    const Output output = variant.recurrent(heads[i]);
    const std::vector<double> of_normalizer =
        normalizes ? state_head_of(normalizer_gradient, false, batch, head) : std::vector<double>();
    const Gradients gradients =
        variant.gradients(heads[i], matrix_of(state_head_of(values_gradient, true, batch, head), shape.value_dim),
                          matrix_of(state_head_of(state_gradient, false, batch, head), shape.value_dim),
                          Eigen::Map<const Vector<double>>(of_normalizer.data(), of_normalizer.size()));
    expect_close("values", state_head_of(result.values, true, batch, head), flat(output.values), allowed);
    expect_close("state", state_head_of(result.state, false, batch, head), flat(output.state), allowed);
    if (normalizes)
      expect_close("normalizer", state_head_of(result.normalizer, false, batch, head), flat(output.normalizer),
                   allowed);
    for (const Input input : variant.inputs) {
      const double floor = std::max(1e-300, normalizes ? kFloorShare * gradients.value.norm() : 0.0);
      expect_close(std::string(input_name(input)) + "'s gradient",
                   state_head_of(inputs[input].grad(), has_positions(input), batch, head), entries(gradients, input),
                   allowed, floor);
    }
  }
}

TEST(MatrixState, HasACallForEveryMechanismWithAState) {
  const Head head = random_head({5, 5}, Gate::kInitial);
  size_t with_state = 0;
  for (const reference::Variant& variant : reference::variants()) {
    if (variant.recurrent(head).state.size() == 0) continue;
    ++with_state;
    EXPECT_TRUE(std::ranges::any_of(state_calls(), [&](const StateCall& call) { return call.variant == variant.name; }))
        << variant.name;
  }
  EXPECT_EQ(with_state, state_calls().size());
}

TEST(MatrixState, EqualsTheReferenceForEveryMechanismGateAndShape) {
  const StateShape shapes[] = {{2, 1, 3, 8, 4},   {1, 2, 1, 3, 7},    {2, 17, 3, 5, 3}, {1, 33, 1, 16, 41},
                               {1, 65, 2, 9, 65}, {1, 100, 1, 70, 6}, {1, 130, 1, 1, 1}};
  uint64_t seed = 1;
  for (const StateCall& call : state_calls()) {
    for (const GateChoice& gate : every_gate_choice()) {
      for (const StateShape& shape : shapes) {
        if (shape.key_dim == 1 && std::ranges::count(variant_named(call.variant).inputs, Input::kInitialNormalizer) > 0)
          continue;  // q cancels
        expect_equals_reference(call, shape, Dtype::kFloat64, gate, ++seed, budget(Dtype::kFloat64));
      }
    }
  }
}

TEST(MatrixState, EqualsTheReferenceInFloat32) {
  uint64_t seed = 1;
  for (const StateCall& call : state_calls()) {
    for (const GateChoice& gate : every_gate_choice()) {
      for (const StateShape& shape : {StateShape{2, 67, 3, 6, 20}, StateShape{1, 257, 1, 32, 64}}) {
        expect_equals_reference(call, shape, Dtype::kFloat32, gate, ++seed, budget(Dtype::kFloat32));
      }
    }
  }
}

TEST(MatrixState, EqualsTheReferenceInHalfPrecision) {
  uint64_t seed = 1;
  for (const StateCall& call : state_calls()) {
    if (!call.as_given) continue;
    for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat16}) {
      for (const GateChoice& gate : every_gate_choice()) {
        expect_equals_reference(call, {2, 67, 2, 12, 20}, dtype, gate, ++seed, budget(dtype));
      }
    }
  }
}

// Sums are float64 and results are rounded once: float32's own rounding is 6e-8, for every length and every gate.
TEST(MatrixState, RoundsFloat32OnlyOnceOver4096Tokens) {
  for (const StateCall& call : state_calls()) {
    if (!call.as_given) continue;
    for (const GateChoice& gate : every_gate_choice()) {
      expect_equals_reference(call, {1, 4096, 1, 12, 10}, Dtype::kFloat32, gate, 3, 2e-7);
    }
  }
}

// Rounding does not add up: the budget of short sequences is kept for every call, including normalised ones and those whose gate closes.
TEST(MatrixState, EqualsTheReferenceInFloat64Over4096Tokens) {
  uint64_t seed = 1;
  for (const StateCall& call : state_calls()) {
    for (const GateChoice& gate : every_gate_choice()) {
      if (gate.log_gates.empty()) continue;
      expect_equals_reference(call, {1, 4096, 1, 6, 9}, Dtype::kFloat64, gate, ++seed, budget(Dtype::kFloat64));
    }
  }
}

// Wrong formulas, as wrong calls of the right operator: each must miss the reference by more than three budgets.
TEST(MatrixState, MissesTheReferenceWhereTheFormulaIsWrong) {
  const struct {
    Dtype dtype;
    GateChoice gate;
  } cases[] = {{Dtype::kBFloat16, {"initial", Gate::kInitial}},
               {Dtype::kFloat32, {"open", Gate::kOpen}},
               {Dtype::kFloat32, {"strong", Gate::kStrong}}};
  for (const auto& [dtype, gate] : cases) {
    for (const char* name : {"decay_fast_weights", "gated_delta_fast_weights"}) {
      const std::vector<Head> heads = state_heads({1, 70, 1, 8, 12}, dtype, gate, 4);
      const StateCall& call =
          *std::ranges::find_if(state_calls(), [&](const StateCall& c) { return c.variant == std::string(name); });
      const Output expected = variant_named(name).recurrent(heads.front());
      const auto share_of_budget = [&, dtype = dtype](const std::function<void(StateTensors&, double& scale)>& spoil) {
        StateTensors inputs = state_tensors(heads, 1, dtype);
        double scale = heads.front().scale;
        spoil(inputs, scale);
        return compare(head_of(call.call(inputs, scale).values, 0, 0), flat(expected.values), budget(dtype)).share();
      };
      const auto for_gates = [](const std::function<at::Tensor(const at::Tensor&)>& change) {
        return [change](StateTensors& inputs, double&) {
          for (const Input input : {Input::kLogForget, Input::kLogKeyGate, Input::kLogValueGate})
            inputs[input] = change(inputs[input]);
        };
      };
      SCOPED_TRACE(std::string(name) + ", gate " + gate.name);
      EXPECT_LT(share_of_budget([](StateTensors&, double&) {}), 1.0);
      EXPECT_GT(share_of_budget(for_gates([](const at::Tensor& g) { return at::zeros_like(g); })), 3.0)
          << "gates ignored";
      EXPECT_GT(share_of_budget(for_gates([](const at::Tensor& g) { return g.roll({-1}, {1}); })), 3.0)
          << "gates a token early";
      EXPECT_GT(share_of_budget(for_gates([](const at::Tensor& g) { return g.roll({1}, {1}); })), 3.0)
          << "gates after the write";
      EXPECT_GT(share_of_budget([](StateTensors&, double& scale) { scale *= 1.05; }), 3.0) << "wrong scale";
      EXPECT_GT(share_of_budget([](StateTensors& in, double&) {
                  in[Input::kInitialState] = at::zeros_like(in[Input::kInitialState]);
                }),
                3.0)
          << "initial state ignored";
      EXPECT_GT(
          share_of_budget([](StateTensors& in, double&) { in[Input::kQuery] = in[Input::kQuery].roll({-1}, {1}); }),
          3.0)
          << "read before write";
    }
  }
}

}  // namespace
}  // namespace lethe

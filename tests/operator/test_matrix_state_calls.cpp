// The matrix state operators' errors for wrong calls, and the promises of a call: exact gates, states that carry on, equal bits.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "optimized/torch/matrix_state.hpp"
#include "tests/operator/state_calls.hpp"

namespace lethe {
namespace {

using reference::Input;

struct Call {
  at::Tensor query = at::ones({2, 3, 4, 8}), key = at::ones({2, 3, 4, 8}), value = at::ones({2, 3, 4, 6});
  std::optional<at::Tensor> log_key_gate, log_value_gate, beta, state;
  std::optional<double> scale;
  bool normalize = false;
};

std::string message_of(const std::function<void(Call&)>& spoil) {
  Call c;
  spoil(c);
  try {
    if (c.beta) {
      delta_state(c.query, c.key, c.value, *c.beta, c.log_key_gate, c.state, c.scale);
    } else {
      gated_state(c.query, c.key, c.value, c.log_key_gate, c.log_value_gate, c.state, c.scale, c.normalize);
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(MatrixStateArguments, AreRefusedWithTheirNameTheExpectedAndTheFound) {
  const std::pair<const char*, std::function<void(Call&)>> cases[] = {
      {"query: expected 4 dimensions [B,T,H,K], found 3", [](Call& c) { c.query = c.query[0]; }},
      {"key: expected 4 dimensions [B,T,H,K], found 3", [](Call& c) { c.key = c.key[0]; }},
      {"value: expected 4 dimensions [B,T,H,V], found 3", [](Call& c) { c.value = c.value[0]; }},
      {"query: expected a head dimension of at least 1, found 0",
       [](Call& c) {
         c.query = at::ones({2, 3, 4, 0});
       }},
      {"query: expected dtype float64, float32, bfloat16 or float16, found Int",
       [](Call& c) { c.query = c.query.to(at::kInt); }},
      {"key: expected shape [2, 3, 4, 8], found [2, 2, 4, 8]",
       [](Call& c) {
         c.key = at::ones({2, 2, 4, 8});
       }},
      {"value: expected shape [2, 3, 4, 6], found [2, 3, 1, 6]",
       [](Call& c) {
         c.value = at::ones({2, 3, 1, 6});
       }},
      {"key: expected dtype Float, found Half", [](Call& c) { c.key = c.key.to(at::kHalf); }},
      {"value: expected a strided layout, found Sparse", [](Call& c) { c.value = c.value.to_sparse(); }},
      {"log_key_gate: expected 4 dimensions [B,T,H,K], or 3 dimensions [B,T,H], found 2",
       [](Call& c) {
         c.log_key_gate = at::zeros({3, 4});
       }},
      {"log_key_gate: expected shape [2, 3, 4], found [2, 3, 8]",
       [](Call& c) {
         c.log_key_gate = at::zeros({2, 3, 8});
       }},
      {"log_key_gate: expected shape [2, 3, 4, 8], found [2, 3, 4, 6]",
       [](Call& c) {
         c.log_key_gate = at::zeros({2, 3, 4, 6});
       }},
      {"log_key_gate: expected dtype Float, found Double",
       [](Call& c) {
         c.log_key_gate = at::zeros({2, 3, 4}, at::kDouble);
       }},
      {"log_key_gate: expected a natural logarithm <= 0, found 0.25 at position 2",
       [](Call& c) {
         c.log_key_gate = at::zeros({2, 3, 4, 8}), (*c.log_key_gate)[1][2][3][7] = 0.25;
       }},
      {"log_key_gate: expected a natural logarithm <= 0, found nan at position 1",
       [](Call& c) {
         c.log_key_gate = at::zeros({2, 3, 4}), (*c.log_key_gate)[1][1][0] = NAN;
       }},
      {"log_value_gate: expected 4 dimensions [B,T,H,V], found 3",
       [](Call& c) {
         c.log_value_gate = at::zeros({2, 3, 4});
       }},
      {"log_value_gate: expected shape [2, 3, 4, 6], found [2, 3, 4, 8]",
       [](Call& c) {
         c.log_value_gate = at::zeros({2, 3, 4, 8});
       }},
      {"log_value_gate: expected a natural logarithm <= 0, found 1 at position 0",
       [](Call& c) {
         c.log_value_gate = at::zeros({2, 3, 4, 6}), (*c.log_value_gate)[1][0][3][5] = 1.0;
       }},
      {"log_value_gate: expected none with normalize, found one",
       [](Call& c) {
         c.log_value_gate = at::zeros({2, 3, 4, 6}), c.normalize = true;
       }},
      {"state: expected 4 dimensions [B,H,K,V], found 3",
       [](Call& c) {
         c.state = at::zeros({4, 8, 6});
       }},
      {"state: expected shape [2, 4, 8, 6], found [2, 4, 6, 8]",
       [](Call& c) {
         c.state = at::zeros({2, 4, 6, 8});
       }},
      {"state: expected shape [2, 4, 8, 7], found [2, 4, 8, 6]",
       [](Call& c) {
         c.state = at::zeros({2, 4, 8, 6}), c.normalize = true;
       }},
      {"state: expected dtype Float, found BFloat16",
       [](Call& c) {
         c.state = at::zeros({2, 4, 8, 6}, at::kBFloat16);
       }},
      {"scale: expected a finite number, found inf", [](Call& c) { c.scale = INFINITY; }},
      {"beta: expected 3 dimensions [B,T,H], found 4",
       [](Call& c) {
         c.beta = at::ones({2, 3, 4, 1});
       }},
      {"beta: expected shape [2, 3, 4], found [2, 3, 3]",
       [](Call& c) {
         c.beta = at::ones({2, 3, 3});
       }},
      {"beta: expected dtype Float, found Double",
       [](Call& c) {
         c.beta = at::ones({2, 3, 4}, at::kDouble);
       }},
      {"beta: expected a number >= 0, found -1 at position 0",
       [](Call& c) {
         c.beta = -at::ones({2, 3, 4});
       }},
      {"beta: expected a number >= 0, found nan at position 2",
       [](Call& c) {
         c.beta = at::ones({2, 3, 4}), (*c.beta)[0][2][1] = NAN;
       }},
  };
  for (const auto& [expected, spoil] : cases)
    EXPECT_EQ(message_of(spoil).substr(0, std::string(expected).size()), expected);
  EXPECT_EQ(message_of([](Call&) {}), "no error");
  EXPECT_EQ(message_of([](Call& c) { c.beta = at::ones({2, 3, 4}); }), "no error");
}

TEST(MatrixStateArguments, OnAnotherDeviceThanTheQueryAreRefused) {
  EXPECT_EQ(message_of([](Call& c) { c.query = c.query.to(at::kMeta), c.value = c.value.to(at::kMeta); }),
            "key: expected device meta as query, found cpu");
  EXPECT_EQ(message_of([](Call& c) {
              c.state = at::zeros({2, 4, 8, 6}, at::kMeta);
            }),
            "state: expected device cpu as query, found meta");
}

StateTensors positions(const StateTensors& inputs, int64_t begin, int64_t length) {
  StateTensors part = inputs;
  for (auto& [input, tensor] : part) {
    if (has_positions(input)) tensor = tensor.narrow(1, begin, length);
  }
  return part;
}

// The state carries all of the past: stored in float64, as it is kept, it loses no bit.
TEST(MatrixStateCalls, CarryTheStateOverAnySplitWithTheSameBits) {
  constexpr int64_t kLength = 70;
  const std::vector<Head> heads = state_heads({2, kLength, 2, 9, 41}, Dtype::kFloat64, {"initial"}, 5);
  const StateTensors inputs = state_tensors(heads, 2, Dtype::kFloat64);
  for (const StateCall& call : state_calls()) {
    if (!call.as_given) continue;  // Torch's own functions round a slice otherwise than the whole
    SCOPED_TRACE(call.variant);
    const StateResult whole = call.call(inputs, 0.5);
    for (const int64_t part : {1, 32, 69}) {
      std::vector<at::Tensor> values;
      StateTensors carried = inputs;
      StateResult last;
      for (int64_t begin = 0; begin < kLength; begin += part) {
        last = call.call(positions(carried, begin, std::min(part, kLength - begin)), 0.5);
        values.push_back(last.values);
        carried[Input::kInitialState] = last.state;
      }
      EXPECT_TRUE(at::equal(at::cat(values, 1), whole.values)) << "parts of " << part;
      EXPECT_TRUE(at::equal(last.state, whole.state)) << "parts of " << part;
    }
  }
}

TEST(MatrixStateCalls, CarryTheNormalizerWithTheState) {
  const StateTensors in =
      state_tensors(state_heads({1, 50, 2, 7, 33}, Dtype::kFloat64, {"initial"}, 5), 1, Dtype::kFloat64);
  const at::Tensor q = in.at(Input::kQuery).abs(), k = in.at(Input::kKey).abs(), v = in.at(Input::kValue),
                   gate = in.at(Input::kLogForget);
  const auto part = [&](int64_t begin, int64_t length, const std::optional<at::Tensor>& state) {
    const auto cut = [&](const at::Tensor& tensor) { return tensor.narrow(1, begin, length); };
    return gated_state(cut(q), cut(k), cut(v), cut(gate), std::nullopt, state, std::nullopt, true);
  };
  const auto whole = part(0, 50, std::nullopt), first = part(0, 41, std::nullopt),
             second = part(41, 9, std::get<1>(first));
  EXPECT_TRUE(at::equal(at::cat({std::get<0>(first), std::get<0>(second)}, 1), std::get<0>(whole)));
  EXPECT_TRUE(at::equal(std::get<1>(second), std::get<1>(whole)));
}

TEST(MatrixStateCalls, LetNothingThroughAGateOfZero) {
  constexpr int64_t kCut = 40;
  StateTensors inputs =
      state_tensors(state_heads({1, 100, 2, 5, 20}, Dtype::kFloat32, {"open", Gate::kOpen}, 6), 1, Dtype::kFloat32);
  inputs[Input::kLogKeyGate].select(1, kCut).fill_(-std::numeric_limits<double>::infinity());
  for (const char* name : {"decay_fast_weights", "gated_delta_fast_weights"}) {
    SCOPED_TRACE(name);
    for (const Input input : variant_named(name).inputs) inputs[input] = inputs[input].detach().requires_grad_();
    const StateCall& call =
        *std::ranges::find_if(state_calls(), [&](const StateCall& c) { return c.variant == std::string(name); });
    const StateResult result = call.call(inputs, 1.0);
    (result.values.narrow(1, kCut, 60).square().sum() + result.state.square().sum()).backward();
    for (const Input input : variant_named(name).inputs) {
      const at::Tensor gradient = inputs[input].grad();
      SCOPED_TRACE(input_name(input));
      EXPECT_TRUE(at::isfinite(gradient).all().item().toBool());
      if (!has_positions(input)) {
        EXPECT_EQ(gradient.abs().sum().item().toDouble(), 0.0);
        continue;
      }
      EXPECT_EQ(gradient.narrow(1, 0, kCut).abs().sum().item().toDouble(), 0.0);
      if (input == Input::kQuery) continue;
      EXPECT_GT(gradient.narrow(1, kCut, 60).abs().sum().item().toDouble(), 0.0);
    }
    EXPECT_EQ(inputs[Input::kLogKeyGate].grad().select(1, kCut).abs().sum().item().toDouble(), 0.0);
    // The same as starting there from zeros.
    StateTensors rest = positions(inputs, kCut, 60);
    rest[Input::kInitialState] = at::zeros_like(rest[Input::kInitialState]);
    EXPECT_TRUE(at::equal(call.call(rest, 1.0).values, result.values.narrow(1, kCut, 60)));
  }
}

TEST(MatrixStateCalls, TakeAGateOfOneForNoGate) {
  const StateTensors in =
      state_tensors(state_heads({1, 50, 2, 7, 9}, Dtype::kFloat32, {"initial"}, 7), 1, Dtype::kFloat32);
  const at::Tensor &q = in.at(Input::kQuery), &k = in.at(Input::kKey), &v = in.at(Input::kValue),
                   &beta = in.at(Input::kWriteStrength);
  const at::Tensor key_gate = at::zeros_like(in.at(Input::kLogKeyGate)),
                   value_gate = at::zeros_like(in.at(Input::kLogValueGate));
  const at::Tensor none = std::get<0>(gated_state(q, k, v)), delta = std::get<0>(delta_state(q, k, v, beta));
  EXPECT_TRUE(at::equal(std::get<0>(gated_state(q, k, v, key_gate)), none));
  EXPECT_TRUE(at::equal(std::get<0>(gated_state(q, k, v, key_gate.select(3, 0))), none));
  EXPECT_TRUE(at::equal(std::get<0>(gated_state(q, k, v, std::nullopt, value_gate)), none));
  EXPECT_TRUE(at::equal(std::get<0>(delta_state(q, k, v, beta, key_gate)), delta));
  EXPECT_FALSE(at::equal(std::get<0>(gated_state(q, k, v, in.at(Input::kLogKeyGate))), none));
}

// In float64, the type of the sums: rounding to float32 would hide their order.
std::vector<at::Tensor> values_and_gradients(const char* name, const StateShape& shape) {
  StateTensors inputs =
      state_tensors(state_heads(shape, Dtype::kFloat64, {"initial"}, 8), shape.batch, Dtype::kFloat64);
  const reference::Variant& variant = variant_named(name);
  for (const Input input : variant.inputs) inputs[input].requires_grad_();
  const StateCall& call =
      *std::ranges::find_if(state_calls(), [&](const StateCall& c) { return c.variant == std::string(name); });
  const StateResult result = call.call(inputs, 1.0);
  (result.values.square().sum() + result.state.square().sum()).backward();
  std::vector<at::Tensor> results{result.values.detach(), result.state.detach()};
  for (const Input input : variant.inputs) results.push_back(inputs[input].grad());
  return results;
}

// With fewer heads than threads, a task is a part of a head's columns: all of them over some chunks at a time, or, where so wide a state leaves room
// for one chunk only, some of them at a time. Chunk lengths (T = 37, or V = 330) that are no multiple of a vector too.
TEST(MatrixStateCalls, GiveTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const StateCall& call : state_calls()) {
    for (const StateShape& shape : {StateShape{1, 300, 1, 24, 70}, StateShape{1, 300, 3, 24, 70},
                                    StateShape{1, 37, 1, 24, 330}, StateShape{1, 90, 2, 5, 330}}) {
      SCOPED_TRACE(std::string(call.variant) + ", T = " + std::to_string(shape.length) + ", heads " +
                   std::to_string(shape.heads) + ", V = " + std::to_string(shape.value_dim));
      at::set_num_threads(1);
      const std::vector<at::Tensor> expected = values_and_gradients(call.variant, shape);
      for (const int count : {1, 2, 5}) {
        at::set_num_threads(count);
        const std::vector<at::Tensor> actual = values_and_gradients(call.variant, shape);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::equal(actual[i], expected[i])) << "result " << i << ", threads " << count;
        }
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(MatrixStateCalls, HideNoNaNOfTheirInputs) {
  const StateTensors in =
      state_tensors(state_heads({1, 50, 1, 7, 9}, Dtype::kFloat32, {"initial"}, 9), 1, Dtype::kFloat32);
  const at::Tensor key = in.at(Input::kKey).clone();
  key.select(1, 30).fill_(NAN);
  const at::Tensor values = std::get<0>(gated_state(in.at(Input::kQuery), key, in.at(Input::kValue)));
  EXPECT_TRUE(at::isfinite(values.narrow(1, 0, 30)).all().item().toBool());
  EXPECT_TRUE(at::isnan(values.narrow(1, 30, 20)).all().item().toBool());
}

}  // namespace
}  // namespace lethe

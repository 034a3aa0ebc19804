// A call in pieces of its rows and columns is the whole call: values, last state and every gradient.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "optimized/torch/implementations.hpp"
#include "optimized/torch/matrix_state.hpp"
#include "optimized/torch/state_pieces.hpp"
#include "tests/operator/state_calls.hpp"

namespace lethe {
namespace {

using at::Tensor;
using reference::Input;
using OptionalTensor = std::optional<Tensor>;
using Gate = MatrixStateForm::Gate;

constexpr MatrixStateForm kPlain{}, kTokenGate{.key_gate = Gate::kToken}, kKeyGate{.key_gate = Gate::kKey},
    kBothGates{.key_gate = Gate::kKey, .value_gate = true}, kColumnGate{.value_gate = true},
    kDelta{.key_gate = Gate::kToken, .delta = true}, kDeltaKey{.key_gate = Gate::kKey, .delta = true},
    kNormalized{.key_gate = Gate::kToken, .normalize = true};

std::string pieces_at(int capability, const MatrixStateForm& form, int64_t rows, int64_t columns,
                      Dtype dtype = Dtype::kBFloat16, int64_t length = 4096) {
  const StatePieces found = state_pieces({2, length, length, 3, 3, rows, columns}, form, dtype, capability);
  return std::to_string(found.rows) + " x " + std::to_string(found.columns);
}

TEST(StatePieces, AreTheFewestThatChunksCover) {
  EXPECT_EQ(pieces_at(90, kPlain, 256, 256), "1 x 1");
  EXPECT_EQ(pieces_at(90, kTokenGate, 256, 512), "1 x 2");  // RetNet
  EXPECT_EQ(pieces_at(90, kKeyGate, 128, 256), "1 x 2");    // GLA of 340M
  EXPECT_EQ(pieces_at(90, kKeyGate, 256, 512), "2 x 4");    // GLA of 1.3B
  EXPECT_EQ(pieces_at(90, kBothGates, 200, 129), "2 x 2");
  EXPECT_EQ(pieces_at(90, kDelta, 120, 240), "1 x 2");  // Gated DeltaNet
  EXPECT_EQ(pieces_at(90, kDeltaKey, 128, 128), "1 x 1");
  EXPECT_EQ(pieces_at(90, kNormalized, 64, 256), "1 x 2");
  EXPECT_EQ(pieces_at(80, kNormalized, 64, 128), "1 x 2");
  EXPECT_EQ(pieces_at(80, kTokenGate, 256, 128), "2 x 1");
  EXPECT_EQ(pieces_at(80, kKeyGate, 128, 128), "2 x 2");
  EXPECT_EQ(pieces_at(89, kTokenGate, 128, 64), "2 x 1");
  EXPECT_EQ(pieces_at(89, kDelta, 64, 128), "1 x 2");
  EXPECT_EQ(pieces_at(89, kNormalized, 64, 64), "1 x 2");  // the normaliser is two columns
}

TEST(StatePieces, AreThoseOfTheTokensKernelWhereNoChunkIsCovered) {
  EXPECT_EQ(pieces_at(90, kDelta, 256, 64), "1 x 1");  // rows of the delta rule depend on one another
  EXPECT_EQ(pieces_at(90, kNormalized, 300, 64), "1 x 1");
  EXPECT_EQ(pieces_at(89, kDelta, 128, 64), "1 x 1");
  EXPECT_EQ(pieces_at(89, kDelta, 128, 256), "1 x 2");
  EXPECT_EQ(pieces_at(89, kKeyGate, 128, 128), "1 x 1");
  EXPECT_EQ(pieces_at(90, kColumnGate, 128, 256), "1 x 2");
  EXPECT_EQ(pieces_at(90, kKeyGate, 128, 256, Dtype::kFloat32), "1 x 2");
  EXPECT_EQ(pieces_at(90, kKeyGate, 128, 128, Dtype::kFloat32), "1 x 1");
  EXPECT_EQ(pieces_at(90, kDelta, 120, 240, Dtype::kBFloat16, 1), "1 x 2");  // one token
  EXPECT_EQ(pieces_at(90, kDelta, 120, 128, Dtype::kBFloat16, 1), "1 x 1");
  EXPECT_EQ(pieces_at(90, kKeyGate, 128, 256, Dtype::kFloat64), "1 x 1");
  EXPECT_EQ(pieces_at(75, kKeyGate, 128, 256), "1 x 1");
}

TEST(StatePieces, AreNamedWithTheirKernels) {
  const auto name = [](at::DeviceType device, int64_t columns) {
    return matrix_state_text({.shape = {1, 4096, 4096, 4, 4, 128, columns},
                              .dtype = Dtype::kBFloat16,
                              .device = device,
                              .compute_capability = 90,
                              .form = kKeyGate})
        .name;
  };
  EXPECT_EQ(name(at::kCUDA, 256), "vector gate kernels in 1 × 2 pieces of 128 × 128");
  EXPECT_EQ(name(at::kCUDA, 128), "vector gate kernels");
  EXPECT_EQ(name(at::kCPU, 256), "CPU");
}

std::tuple<Tensor, Tensor> whole(const MatrixStateInputs& in) {
  if (in.beta) return delta_state(in.query, in.key, in.value, *in.beta, in.log_key_gate, in.state, in.scale);
  return gated_state(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, in.state, in.scale, in.normalize);
}

// Values, the last state, and the gradients of a fixed loss on both: of tensors that are leaves.
std::vector<Tensor> results_of(const std::tuple<Tensor, Tensor>& out, const std::vector<Tensor>& leaves) {
  const auto& [values, state] = out;
  at::manual_seed(1);
  const Tensor loss = (values.to(at::kDouble) * at::randn(values.sizes(), at::kDouble)).sum() +
                      (state.to(at::kDouble) * at::randn(state.sizes(), at::kDouble)).sum();
  for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
  loss.backward();
  std::vector<Tensor> results{values.detach(), state.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

struct Problem {
  StateTensors tensors;
  std::vector<Tensor> leaves;
  OptionalTensor of(Input input) {
    leaves.push_back(tensors.at(input).detach().requires_grad_());
    return leaves.back();
  }
};

// Calls function(inputs, leaves) for each form of a call, of 41 rows and 22 columns.
template <typename Function>
void for_every_form(Dtype dtype, const Function& function) {
  struct Form {
    const char* name;
    bool key_gate, head_gate, value_gate, beta, state, normalize;
  };
  const Form forms[] = {{"no gate", false, false, false, false, false, false},
                        {"a gate a token", false, true, false, false, true, false},
                        {"a gate a row", true, false, false, false, true, false},
                        {"both gates", true, false, true, false, true, false},
                        {"normalized", false, true, false, false, true, true},
                        {"normalized from zeros", false, false, false, false, false, true},
                        {"delta", false, false, false, true, false, false},
                        {"delta with a gate a token", false, true, false, true, true, false},
                        {"delta with a gate a row", true, false, false, true, true, false}};
  for (const Form& form : forms) {
    SCOPED_TRACE(std::string(form.name) + ", " + dtype_name(dtype));
    Problem problem{state_tensors(state_heads({2, 70, 2, 41, 22}, dtype, {"initial"}, 10), 2, dtype), {}};
    StateTensors& all = problem.tensors;
    for (const Input input : {Input::kQuery, Input::kKey}) all[input] = all[input].abs();
    all[Input::kInitialState] =
        form.normalize ? at::cat({all[Input::kInitialState], all[Input::kInitialNormalizer].unsqueeze(3)}, 3)
                       : all[Input::kInitialState];
    const OptionalTensor query = problem.of(Input::kQuery), key = problem.of(Input::kKey),
                         value = problem.of(Input::kValue), none;
    const OptionalTensor key_gate = form.key_gate    ? problem.of(Input::kLogKeyGate)
                                    : form.head_gate ? problem.of(Input::kLogForget)
                                                     : none,
                         value_gate = form.value_gate ? problem.of(Input::kLogValueGate) : none,
                         beta = form.beta ? problem.of(Input::kWriteStrength) : none,
                         state = form.state ? problem.of(Input::kInitialState) : none;
    const MatrixStateInputs in{*query, *key, *value, key_gate, value_gate, beta, state, 0.4, form.normalize};
    function(in, problem.leaves);
  }
}

TEST(StatePieces, HaveTheResultsAndGradientsOfTheWhole) {
  // Of 16 bits what each head may be off by on a GPU; here only the roundings of sums over pieces.
  const std::pair<Dtype, double> allowed[] = {
      {Dtype::kFloat64, 1e-12}, {Dtype::kFloat32, 1e-6}, {Dtype::kBFloat16, 5e-3}, {Dtype::kFloat16, 1e-3}};
  for (const auto& [dtype, share] : allowed)
    for_every_form(dtype, [share = share](const MatrixStateInputs& in, const std::vector<Tensor>& leaves) {
      const std::vector<Tensor> expected = results_of(whole(in), leaves);
      for (const StatePieces pieces : {StatePieces{1, 2}, {1, 3}, {2, 1}, {3, 2}, {5, 1}}) {
        if (pieces.rows > 1 && (in.beta || in.normalize)) continue;
        SCOPED_TRACE(std::to_string(pieces.rows) + " x " + std::to_string(pieces.columns));
        const std::vector<Tensor> found = results_of(in_pieces(pieces, in, whole), leaves);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].scalar_type(), expected[i].scalar_type()) << i;
          ASSERT_EQ(found[i].sizes(), expected[i].sizes()) << i;
          const Tensor wide = expected[i].to(at::kDouble);
          EXPECT_LE((found[i].to(at::kDouble) - wide).norm().item<double>(), share * wide.norm().item<double>()) << i;
        }
      }
    });
}

TEST(StatePieces, AreRunWithTheirSizes) {
  for_every_form(Dtype::kFloat64, [](const MatrixStateInputs& in, const std::vector<Tensor>&) {
    std::vector<std::string> sizes;
    const auto noted = [&](const MatrixStateInputs& piece) {
      sizes.push_back(std::to_string(piece.query.size(3)) + " x " + std::to_string(piece.value.size(3)));
      return whole(piece);
    };
    const c10::NoGradGuard no_gradient;
    in_pieces({1, 2}, in, noted);
    EXPECT_EQ(sizes, (std::vector<std::string>{"41 x 16", "41 x 6"}));
    sizes.clear();
    if (in.beta || in.normalize) EXPECT_THROW(in_pieces({2, 1}, in, noted), c10::Error);
    else {
      in_pieces({2, 2}, in, noted);
      EXPECT_EQ(sizes, (std::vector<std::string>{"24 x 16", "24 x 6", "17 x 16", "17 x 6"}));
    }
  });
}

TEST(StatePieces, TakeTheDtypesThatAutocastCasts) {
  const Tensor query = at::rand({1, 20, 2, 40}), value = at::rand({1, 20, 2, 24}).to(at::kHalf);
  const OptionalTensor none, gate = at::rand({1, 20, 2, 40}).log().to(at::kBFloat16);
  const MatrixStateInputs in{query, query, value, gate, none, none, none, 1, false};
  EXPECT_THROW(in_pieces({2, 3}, in, whole), c10::Error) << "without autocast the dtypes must be those of the operator";
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto [expected, expected_state] = whole(in);
  const auto [values, state] = in_pieces({2, 3}, in, whole);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(values.scalar_type(), at::kBFloat16);
  EXPECT_LT((values - expected).to(at::kDouble).norm().item<double>(),
            5e-3 * expected.to(at::kDouble).norm().item<double>());
  EXPECT_TRUE(state.allclose(expected_state, 1e-5));
}

TEST(StatePieces, MayHaveNoColumns) {
  const Tensor query = at::ones({2, 3, 2, 70}), value = at::ones({2, 3, 2, 0});
  const OptionalTensor none;
  const MatrixStateInputs in{query, query, value, none, none, none, none, 1, false};
  const auto [values, state] = in_pieces({2, 1}, in, whole);
  EXPECT_EQ(values.sizes(), value.sizes());
  EXPECT_EQ(state.sizes(), (at::IntArrayRef{2, 2, 70, 0}));
}

TEST(StatePieces, ReportAWrongArgumentAsTheWholeDoes) {
  const Tensor query = at::randn({1, 20, 2, 40}), value = at::randn({1, 20, 2, 40});
  const OptionalTensor none;
  const auto message_of = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const Tensor key = at::randn({1, 20, 2, 39});
  const MatrixStateInputs in{query, key, value, none, none, none, none, 1, false};
  EXPECT_EQ(message_of([&] { in_pieces({2, 2}, in, whole); }), message_of([&] { whole(in); }));
  EXPECT_NE(message_of([&] { whole(in); }), "no error");
}

}  // namespace
}  // namespace lethe

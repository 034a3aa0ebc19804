// The mixers beside attention, each against the reference's rule, which shares nothing with it but the weights.

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "experiments/models/fast_weights_layer.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/local_attention.hpp"
#include "experiments/models/not_finite.hpp"
#include "reference/additive_fast_weights.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/layers/sigmoid.hpp"
#include "reference/local_attention.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {

struct MixerCase {
  std::string name;
  ModelConfig model;
};
inline void PrintTo(const MixerCase& mixer, std::ostream* out) { *out << mixer.name; }

namespace {

using reference::Normalized;
using torch::Tensor;

// One layer in double: sums of 32 terms, a state of 17 tokens, and an ε of 1e-6 that the reference's norms don't have.
constexpr double kLayerBudget = 1e-10;

std::vector<MixerCase> every_state() {
  const auto with = [](ModelConfig model, auto change) {
    change(model);
    return model;
  };
  const auto norm = [](ModelConfig& m) { m.attention_norm = true; };
  const auto sum_norm = [](ModelConfig& m) { m.sum_norm = true; };
  std::vector<MixerCase> cases;
  for (const auto& [mixer, name] : {std::pair{Mixer::kAdditive, "additive"}, std::pair{Mixer::kGated, "gated"},
                                    std::pair{Mixer::kDelta, "delta"}, std::pair{Mixer::kDecay, "decay"}}) {
    cases.push_back({std::string(name) + ", linear", tiny_mixer(mixer, FeatureMap::kLinear)});
    cases.push_back({std::string(name) + ", ReLU", tiny_mixer(mixer, FeatureMap::kRelu)});
    if (mixer != Mixer::kDecay)
      cases.push_back({std::string(name) + ", ReLU, attention norm", with(tiny_mixer(mixer, FeatureMap::kRelu), norm)});
  }
  const ModelConfig delta = with(tiny_mixer(Mixer::kDelta, FeatureMap::kRelu), sum_norm);
  cases.push_back({"delta, ReLU, sum norm", delta});
  cases.push_back({"delta, ReLU, both norms", with(delta, norm)});
  cases.push_back(
      {"decay, linear, rotated", with(tiny_mixer(Mixer::kDecay, FeatureMap::kLinear), [](auto& m) { m.rope = true; })});
  cases.push_back(
      {"gated, ReLU, rotated", with(tiny_mixer(Mixer::kGated, FeatureMap::kRelu), [](auto& m) { m.rope = true; })});
  cases.push_back({"decay, linear, output gate and norm", with(tiny_mixer(Mixer::kDecay, FeatureMap::kLinear),
                                                               [](auto& m) { m.output_gate = m.output_norm = true; })});
  return cases;
}

Matrix<double> matrix_of(const Tensor& tensor) {
  const Tensor wide = tensor.detach().to(torch::kFloat64).contiguous();
  return Eigen::Map<const Matrix<double>>(wide.const_data_ptr<double>(), wide.dim() == 2 ? wide.size(0) : 1,
                                          wide.size(-1));
}

// A layer by itself, with weights that no initialisation has.
struct Layer {
  explicit Layer(const ModelConfig& model) : layer(root, "attn", model, torch::kCPU) {
    const torch::NoGradGuard no_gradient;
    torch::manual_seed(3);
    for (auto& parameter : root.named_parameters()) {
      Tensor& value = parameter.value();
      value.normal_(0, value.dim() == 2 ? 1 / std::sqrt(static_cast<double>(value.size(1))) : 0.3);
      // Every token has a feature that isn't zero, or the norms would divide by zero.
      if (parameter.key() == "attn.feature.bias") value.abs_().add_(1.5);
    }
  }

  Matrix<double> weight(const std::string& name) const { return matrix_of(root.named_parameters()["attn." + name]); }
  // Rows of head h of a matrix with `rows` rows a head, or columns of such a vector.
  Matrix<double> of_head(const std::string& name, Eigen::Index h, Eigen::Index rows) const {
    const Matrix<double> all = weight(name);
    if (all.rows() == 1) return all.middleCols(h * rows, rows);
    return all.middleRows(h * rows, rows);
  }
  Tensor values(const Tensor& x, AttentionTrace* trace = nullptr) const {
    const auto angles =
        rotation(x.size(1), layer.config.query_dim(), layer.config.rope_base, torch::dtype(torch::kFloat64));
    return layer.forward(x, angles, trace).detach();
  }

  torch::nn::Module root;
  FastWeightsLayer layer;
};

Matrix<double> log_gate(const Layer& layer, const std::string& name, Eigen::Index h, Eigen::Index rows,
                        const Matrix<double>& x) {
  const Matrix<double> logits = x * layer.of_head(name + ".weight", h, rows).transpose();
  return reference::layers::log_sigmoid<double>(logits.rowwise() + layer.of_head(name + ".bias", h, rows).row(0));
}

Output rule(const ModelConfig& model, const Head& head) {
  const Normalized normalized = model.attention_norm ? Normalized::kYes : Normalized::kNo;
  switch (model.mixer) {
    case Mixer::kAdditive: return reference::additive_fast_weights::recurrent(head, normalized);
    case Mixer::kGated: return reference::gated_fast_weights::recurrent(head, normalized);
    case Mixer::kDelta: return reference::delta_fast_weights::recurrent(head, normalized);
    default: return reference::decay_fast_weights::recurrent(head);
  }
}

// What the layer should give, and the states that it went through.
Matrix<double> expected_values(const Layer& layer, const Matrix<double>& x, double* largest_state = nullptr) {
  const ModelConfig& model = layer.layer.config;
  const Eigen::Index d = model.head_dim(), m = model.state_size, queries = model.query_dim();
  Matrix<double> all(x.rows(), model.width);
  for (Eigen::Index h = 0; h < model.heads; ++h) {
    Head head;
    head.query = x * layer.of_head("q_proj.weight", h, queries).transpose();
    head.key = x * layer.of_head("k_proj.weight", h, queries).transpose();
    head.value = x * layer.of_head("v_proj.weight", h, d).transpose();
    if (model.rope) {
      head.query = reference::layers::rotary_embedding<double>(head.query, 1, model.rope_base);
      head.key = reference::layers::rotary_embedding<double>(head.key, 1, model.rope_base);
    }
    if (model.feature_map == FeatureMap::kRelu) {
      auto map = reference::feature_map::relu(layer.of_head("feature.weight", h, m),
                                              layer.of_head("feature.bias", h, m).transpose());
      if (model.sum_norm) map = reference::feature_map::sum_normalized(map);
      head = reference::with_features(head, map);
    }
    const auto one_a_head = [&](const Matrix<double>& logits) { return Vector<double>(logits.col(0)); };
    if (model.mixer == Mixer::kGated)
      head.log_forget =
          one_a_head(reference::layers::log_sigmoid<double>(x * layer.of_head("gate_proj.weight", h, 1).transpose()));
    if (model.mixer == Mixer::kDelta) {
      const Matrix<double> logits = x * layer.of_head("gate_proj.weight", h, 1).transpose();
      head.write_strength = one_a_head(
          reference::layers::sigmoid<double>((logits.array() + layer.weight("gate_proj.bias")(0, h)).matrix()));
    }
    if (model.mixer == Mixer::kDecay) {
      head.log_key_gate = log_gate(layer, "key_gate_proj", h, m, x);
      head.log_value_gate = log_gate(layer, "value_gate_proj", h, d, x);
    }
    all.middleCols(h * d, d) = rule(model, head).values;
    if (!largest_state) continue;
    for (Eigen::Index t = 1; t <= x.rows(); ++t) {
      Head shorter = head;
      for (Matrix<double>* rows :
           {&shorter.query, &shorter.key, &shorter.value, &shorter.log_key_gate, &shorter.log_value_gate})
        if (rows->size() > 0) *rows = Matrix<double>(rows->topRows(t));
      *largest_state = std::max(*largest_state, rule(model, shorter).state.cwiseAbs().maxCoeff());
    }
  }
  if (model.output_norm) {
    const Matrix<double> weight = layer.weight("output_norm.weight");
    for (Eigen::Index h = 0; h < model.heads; ++h)
      all.middleCols(h * d, d) =
          reference::layers::rms_norm<double>(Matrix<double>(all.middleCols(h * d, d)),
                                              Vector<double>(weight.middleCols(h * d, d).transpose()), 1, kNormEpsilon);
  }
  if (model.output_gate)
    all.array() *= reference::layers::sigmoid<double>(x * layer.weight("ogate_proj.weight").transpose()).array();
  return all * layer.weight("o_proj.weight").transpose();
}

Tensor some_input(int64_t length) {
  torch::manual_seed(11);
  return torch::randn({2, length, 32}, torch::kFloat64);
}

class EveryState : public testing::TestWithParam<MixerCase> {};

TEST_P(EveryState, EqualsTheReferenceRule) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17), values = layer.values(x);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_LT(relative_error(matrix_of(values[b]), expected_values(layer, matrix_of(x[b]))), kLayerBudget);
}

TEST_P(EveryState, DiffersFromTheReferenceRuleWithAnyWeightChangedByATenth) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17);
  const Matrix<double> expected = expected_values(layer, matrix_of(x[0]));
  const torch::NoGradGuard no_gradient;
  for (auto& parameter : layer.root.named_parameters()) {
    Tensor first = parameter.value().flatten().narrow(0, 0, 1);
    first.add_(0.1);
    EXPECT_GT(relative_error(matrix_of(layer.values(x)[0]), expected), 3 * kLayerBudget) << parameter.key();
    first.sub_(0.1);
  }
}

TEST_P(EveryState, NeverLooksAhead) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17), values = layer.values(x);
  Tensor other = x.clone();
  other.narrow(1, 9, 1).add_(1);
  const Tensor changed = layer.values(other);
  EXPECT_LT(distance(changed.narrow(1, 0, 9), values.narrow(1, 0, 9)), 1e-12);
  EXPECT_GT(distance(changed.narrow(1, 9, 1), values.narrow(1, 9, 1)), 1e-3);
}

TEST_P(EveryState, HasAGradientInEveryWeightThatIsTheCentralDifference) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(9), direction = torch::randn({2, 9, 32}, torch::kFloat64);
  const auto loss = [&] {
    const auto angles =
        rotation(9, layer.layer.config.query_dim(), layer.layer.config.rope_base, torch::dtype(torch::kFloat64));
    return (layer.layer.forward(x, angles, nullptr) * direction).sum();
  };
  loss().backward();
  const torch::NoGradGuard no_gradient;
  constexpr double kStep = 1e-3;  // weights are float32: of a rounding of 1e-7 a share of 1e-4 is left
  for (auto& parameter : layer.root.named_parameters()) {
    const Tensor gradient = parameter.value().grad(), along = torch::randn_like(gradient);
    const Tensor before = parameter.value().clone();
    parameter.value().copy_(before + kStep * along);
    const Tensor forth = parameter.value().clone();
    const double upper = loss().item<double>();
    parameter.value().copy_(before - kStep * along);
    const Tensor taken = (forth - parameter.value()).to(torch::kFloat64);
    const double lower = loss().item<double>();
    parameter.value().copy_(before);
    const double expected = (gradient.to(torch::kFloat64) * taken).sum().item<double>();
    EXPECT_NEAR(upper - lower, expected,
                5e-3 * (std::abs(expected) + gradient.norm().item<double>() * taken.norm().item<double>()))
        << parameter.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryState, testing::ValuesIn(every_state()));

TEST(FastWeightsLayer, TellsItsLargestStateAndValue) {
  const Layer layer(tiny_mixer(Mixer::kDecay, FeatureMap::kLinear));
  const Tensor x = some_input(17).narrow(0, 0, 1);
  AttentionTrace trace;
  const Tensor with_trace = layer.values(x, &trace);
  EXPECT_TRUE(with_trace.equal(layer.values(x)));
  double largest = 0;
  expected_values(layer, matrix_of(x[0]), &largest);
  EXPECT_NEAR(trace.largest_state.item<double>(), largest, 1e-10 * largest);
  EXPECT_GT(trace.largest_value.item<double>(), 0);
}

TEST(FastWeightsLayer, CallsAnInputThatIsNotFiniteADivergence) {
  const Layer layer(tiny_mixer(Mixer::kGated, FeatureMap::kLinear));
  Tensor x = some_input(3);
  x[0][1][2] = NAN;
  EXPECT_THROW(layer.values(x), NotFinite);
}

TEST(FastWeightsLayer, WithAnEpsilonGivesZeroWhereNoFeatureIsThere) {
  ModelConfig model = tiny_mixer(Mixer::kAdditive, FeatureMap::kRelu);
  model.attention_norm = true;
  for (const double epsilon : {0.0, 1e-6}) {
    model.norm_epsilon = epsilon;
    const Layer layer(model);
    const torch::NoGradGuard no_gradient;
    layer.root.named_parameters()["attn.feature.bias"].fill_(-1e3);
    const Tensor values = layer.values(some_input(5));
    EXPECT_EQ(values.isnan().any().item<bool>(), epsilon == 0);
    if (epsilon > 0) {
      EXPECT_EQ(values.abs().max().item<double>(), 0);
    }
  }
}

TEST(LocalAttention, EqualsTheReferenceAtEveryLengthAndWindow) {
  for (const int64_t length : {1, 2, 7, 16, 17, 33})
    for (const int64_t window : {1, 2, 5, 16, 64}) {
      torch::manual_seed(length);
      const Tensor q = torch::randn({2, length, 3, 8}, torch::kFloat64), k = torch::randn_like(q),
                   v = torch::randn_like(q);
      const Tensor values = local_attention(q, k, v, window);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 3; ++h) {
          const auto rows = [&](const Tensor& x) { return matrix_of(x[b].select(1, h)); };
          const Head head{
              .query = rows(q), .key = rows(k), .value = rows(v), .log_forget = {}, .scale = 1 / std::sqrt(8.0)};
          const auto expected = reference::local_attention::recurrent(head, window).values;
          EXPECT_LT(relative_error(rows(values), expected), 1e-12) << length << " tokens, window " << window;
          if (length <= window + 1) continue;
          const auto wider = reference::local_attention::recurrent(head, window + 1).values;
          EXPECT_GT(relative_error(rows(values), wider), kClearlyWrong);
        }
    }
}

TEST(LocalAttention, InAModelIsAttentionWhereTheWindowHoldsTheText) {
  ModelConfig attention = tiny_model(named_architecture("transformer-llama")), local = attention;
  attention.compute_dtype = local.compute_dtype = "float64";
  local.mixer = Mixer::kLocal;
  local.window = 24;
  LanguageModel whole(attention), window(local);  // both initialized with seed 0
  torch::manual_seed(1);
  const Tensor tokens = torch::randint(257, {1, 24});
  EXPECT_LT(distance(whole->forward(tokens), window->forward(tokens)), 1e-12);
  const Tensor longer = torch::randint(257, {1, 40});
  EXPECT_GT(distance(whole->forward(longer), window->forward(longer)), 1e-6);
}

}  // namespace
}  // namespace lethe

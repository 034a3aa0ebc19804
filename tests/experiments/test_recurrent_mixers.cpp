// The published recurrent layers, each against its equation as plain loops in double, which shares only the weights with it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "experiments/models/language_model.hpp"
#include "tests/experiments/mixer_layer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe::recurrent {

using Real = Matrix<double>;
using Equation = std::function<Real(const Layer& layer, const Real& x)>;

struct RecurrentCase {
  std::string name;
  ModelConfig model;
  Equation equation;
};
inline void PrintTo(const RecurrentCase& one, std::ostream* out) { *out << one.name; }

namespace {

using torch::Tensor;
using Index = Eigen::Index;

constexpr double kLayerBudget = 1e-10;

double sigma(double u) { return 1 / (1 + std::exp(-u)); }
double silu(double u) { return u * sigma(u); }
double softplus(double u) { return std::log(1 + std::exp(u)); }

Real product(const Layer& layer, const std::string& name, const Real& x) { return x * layer.weight(name).transpose(); }

// The sum of a column's last four tokens times its weights, the newest with the last one, and its SiLU.
Real sums_of_four(const Layer& layer, const std::string& name, const Real& u) {
  const Real weight = layer.weight(name + ".weight");
  Real values(u.rows(), u.cols());
  for (Index t = 0; t < u.rows(); ++t)
    for (Index c = 0; c < u.cols(); ++c) {
      double sum = layer.has(name + ".bias") ? layer.weight(name + ".bias")(0, c) : 0;
      for (Index i = 0; i < 4; ++i)
        if (t - i >= 0) sum += weight(c, 3 - i) * u(t - i, c);
      values(t, c) = sum;
    }
  return values;
}
Real convolved(const Layer& layer, const std::string& name, const Real& u) {
  return sums_of_four(layer, name, u).unaryExpr(&silu);
}

// Columns of head h, `each` a head.
Real head(const Real& all, Index h, Index each) { return all.middleCols(h * each, each); }

// Each row over its length, with ε = 1e-6 below the root.
Real directions(Real rows) {
  for (Index t = 0; t < rows.rows(); ++t) rows.row(t) /= std::sqrt(rows.row(t).squaredNorm() + 1e-6);
  return rows;
}

// ELU + 1 of each row over its sum and 1e-6.
Real shares(Real rows) {
  for (Index t = 0; t < rows.rows(); ++t) {
    for (Index c = 0; c < rows.cols(); ++c) rows(t, c) = rows(t, c) > 0 ? rows(t, c) + 1 : std::exp(rows(t, c));
    rows.row(t) /= rows.row(t).sum() + 1e-6;
  }
  return rows;
}

// Each row over the root of its mean square, times a weight a column.
Real normed(Real rows, const Real& weight, double epsilon) {
  for (Index t = 0; t < rows.rows(); ++t) {
    const double size = std::sqrt(rows.row(t).squaredNorm() / static_cast<double>(rows.cols()) + epsilon);
    for (Index c = 0; c < rows.cols(); ++c) rows(t, c) *= weight(0, c) / size;
  }
  return rows;
}

// The values of S_t = diag(f_t) S_{t−1} + k_t v_tᵀ; with β, of S̄ + β_t k_t (v_t − S̄ᵀ k_t)ᵀ, S̄ = diag(f_t) S_{t−1}.
Real read(const Real& q, const Real& k, const Real& v, const Real& gate, double scale, const Real* beta = nullptr) {
  Real state = Real::Zero(k.cols(), v.cols()), values(v.rows(), v.cols());
  for (Index t = 0; t < v.rows(); ++t) {
    for (Index n = 0; n < k.cols(); ++n) state.row(n) *= gate(t, gate.cols() == 1 ? 0 : n);
    Real written = v.row(t);
    if (beta) written = (*beta)(t, 0) * (written - k.row(t) * state);
    state += k.row(t).transpose() * written;
    values.row(t) = scale * q.row(t) * state;
  }
  return values;
}

// W_o of the normed heads, gated where the layer has W_g.
Real output(const Layer& layer, const Real& x, const std::vector<Real>& heads) {
  const Index each = heads.front().cols();
  Real all(x.rows(), each * static_cast<Index>(heads.size()));
  for (size_t h = 0; h < heads.size(); ++h)
    all.middleCols(static_cast<Index>(h) * each, each) = normed(heads[h], layer.weight("o_norm.weight"), 1e-6);
  if (layer.has("g_proj.weight")) all.array() *= product(layer, "g_proj.weight", x).unaryExpr(&silu).array();
  return product(layer, "o_proj.weight", all);
}

// exp(−e^A Δ), Δ = softplus(u + b), of head h.
Real gate_of(const Layer& layer, const Real& steps, Index h) {
  return (-std::exp(layer.weight("A_log")(0, h)) * steps.col(h).array()).exp().matrix();
}
Real steps_of(const Layer& layer, Real logits) {
  logits.rowwise() += layer.weight("dt_bias").row(0);
  return logits.unaryExpr(&softplus);
}

Real mamba2(const Layer& layer, const Real& x) {
  const Index expansion = layer.options.at("expansion"), states = layer.options.at("state_size");
  const Index groups = layer.options.at("groups"), each = layer.model.head_dim();
  const Index inner = expansion * layer.model.width, heads = expansion * layer.model.heads;
  const Real all = convolved(layer, "conv1d", product(layer, "in_proj.xBC.weight", x));
  const Real steps = steps_of(layer, product(layer, "in_proj.dt.weight", x));
  Real values(x.rows(), inner);
  for (Index h = 0; h < heads; ++h) {
    const Index group = h / (heads / groups);
    const Real of_head = head(all, h, each), b = all.middleCols(inner + group * states, states),
               c = all.middleCols(inner + (groups + group) * states, states);
    Real written = of_head;
    for (Index t = 0; t < x.rows(); ++t) written.row(t) *= steps(t, h);
    values.middleCols(h * each, each) =
        read(c, b, written, gate_of(layer, steps, h), 1) + layer.weight("D")(0, h) * of_head;
  }
  values.array() *= product(layer, "in_proj.z.weight", x).unaryExpr(&silu).array();
  return product(layer, "out_proj.weight", normed(values, layer.weight("norm.weight"), 1e-5));
}

Real hgrn2(const Layer& layer, const Real& x) {
  const Index each = layer.model.head_dim();
  const Real q = product(layer, "q_proj.weight", x).unaryExpr(&silu), v = product(layer, "i_proj.weight", x);
  const Real f = product(layer, "f_proj.weight", x).unaryExpr(&sigma);
  Real values(x.rows(), layer.model.width);
  for (Index h = 0; h < layer.model.heads; ++h) {
    const Real forget = head(f, h, each), key = (1 - forget.array()).matrix();
    values.middleCols(h * each, each) =
        read(head(q, h, each), key, head(v, h, each), forget, std::pow(static_cast<double>(each), -0.5));
  }
  return output(layer, x, {values});
}

Real deltanet(const Layer& layer, const Real& x) {
  const bool sums = layer.options.at("sum_norm");
  const auto vectors = sums ? &sums_of_four : &convolved;
  const auto normed_rows = sums ? &shares : &directions;
  const Real q = vectors(layer, "q_conv1d", product(layer, "q_proj.weight", x));
  const Real k = vectors(layer, "k_conv1d", product(layer, "k_proj.weight", x));
  const Real v = convolved(layer, "v_conv1d", product(layer, "v_proj.weight", x));
  const Real beta = product(layer, "b_proj.weight", x).unaryExpr(&sigma);
  const Index heads = layer.model.heads, rows = k.cols() / heads;
  const bool forgets = layer.options.at("forget_gate");
  const Real steps = forgets ? steps_of(layer, product(layer, "a_proj.weight", x)) : Real();
  std::vector<Real> values;
  for (Index h = 0; h < heads; ++h) {
    const Real gate = forgets ? gate_of(layer, steps, h) : Real(Real::Ones(x.rows(), 1)), strength = beta.col(h);
    values.push_back(read(normed_rows(head(q, h, rows)), normed_rows(head(k, h, rows)), head(v, h, v.cols() / heads),
                          gate, std::pow(static_cast<double>(rows), -0.5), &strength));
  }
  return output(layer, x, values);
}

Real gla(const Layer& layer, const Real& x) {
  const Real q = product(layer, "q_proj.weight", x), k = product(layer, "k_proj.weight", x),
             v = product(layer, "v_proj.weight", x);
  Real logits = product(layer, "gk_proj.1.weight", product(layer, "gk_proj.0.weight", x));
  logits.rowwise() += layer.weight("gk_proj.1.bias").row(0);
  const double divisor = layer.options.at("gate_divisor");
  const Real gates = logits.unaryExpr([&](double u) { return std::pow(sigma(u), 1 / divisor); });
  const Index heads = layer.model.heads, rows = k.cols() / heads;
  std::vector<Real> values;
  for (Index h = 0; h < heads; ++h)
    values.push_back(read(head(q, h, rows), head(k, h, rows), head(v, h, v.cols() / heads), head(gates, h, rows),
                          std::pow(static_cast<double>(rows), -0.5)));
  return output(layer, x, values);
}

Real retnet(const Layer& layer, const Real& x) {
  const Real q = product(layer, "q_proj.weight", x), k = product(layer, "k_proj.weight", x),
             v = product(layer, "v_proj.weight", x);
  const Index heads = layer.model.heads, each = layer.model.head_dim();
  const bool rotates = layer.options.at("rope");
  const double base = layer.options.at("rope_base");
  const auto rotated = [&](Real rows) {
    const Index half = each / 2;
    for (Index t = 0; rotates && t < rows.rows(); ++t)
      for (Index i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t) * std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(each));
        const double a = rows(t, i), b = rows(t, i + half);
        rows(t, i) = a * std::cos(angle) - b * std::sin(angle);
        rows(t, i + half) = b * std::cos(angle) + a * std::sin(angle);
      }
    return rows;
  };
  std::vector<Real> values;
  for (Index h = 0; h < heads; ++h) {
    const Real decay = Real::Constant(x.rows(), 1, 1 - std::pow(2.0, -5 - static_cast<double>(h)));
    values.push_back(read(rotated(head(q, h, each)), rotated(head(k, h, each)), head(v, h, v.cols() / heads), decay,
                          std::pow(static_cast<double>(each), -0.5)));
  }
  return output(layer, x, values);
}

std::vector<RecurrentCase> recurrent_cases() {
  std::vector<RecurrentCase> cases;
  const auto add = [&](const char* name, const char* options, const Equation& equation) {
    cases.push_back({name + std::string(" ") + options, tiny_mixer(name, nlohmann::json::parse(options)), equation});
  };
  add("mamba2", R"({"norm_epsilon": 1e-5})", mamba2);
  add("mamba2", R"({"norm_epsilon": 1e-5, "expansion": 1, "groups": 2, "state_size": 5})", mamba2);
  add("hgrn2", "{}", hgrn2);
  add("deltanet", "{}", deltanet);
  add("deltanet", R"({"key_expansion": 0.75, "value_expansion": 1.5, "forget_gate": true, "output_gate": true})",
      deltanet);
  add("deltanet", R"({"sum_norm": true})", deltanet);
  add("deltanet", R"({"sum_norm": true, "key_expansion": 0.75, "forget_gate": true})", deltanet);
  add("gla", "{}", gla);
  add("gla", R"({"key_expansion": 1, "value_expansion": 0.5, "gate_rank": 3, "gate_divisor": 2})", gla);
  add("retnet", R"({"rope": true, "rope_base": 100})", retnet);
  add("retnet", R"({"value_expansion": 1})", retnet);
  return cases;
}

Tensor random_input(int64_t length) {
  torch::manual_seed(11);
  return torch::randn({2, length, 32}, torch::kFloat64);
}

class RecurrentMixer : public testing::TestWithParam<RecurrentCase> {};

TEST_P(RecurrentMixer, EqualsItsEquation) {
  const Layer layer(GetParam().model);
  const Tensor x = random_input(17), values = layer.values(x);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_LT(relative_error(matrix_of(values[b]), GetParam().equation(layer, matrix_of(x[b]))), kLayerBudget);
}

TEST_P(RecurrentMixer, DiffersFromItWithAnyWeightChangedByATenth) {
  const Layer layer(GetParam().model);
  const Tensor x = random_input(17);
  const Real expected = GetParam().equation(layer, matrix_of(x[0]));
  const torch::NoGradGuard no_gradient;
  for (const auto& parameter : layer.root.named_parameters()) {
    Tensor first = parameter.value().flatten().narrow(0, 0, 1);
    first.add_(0.1);
    EXPECT_GT(relative_error(matrix_of(layer.values(x)[0]), expected), 3 * kLayerBudget) << parameter.key();
    first.sub_(0.1);
  }
}

TEST_P(RecurrentMixer, HasTheGradientOfEveryWeightThatDifferencesMeasure) {
  const Layer layer(GetParam().model);
  const Tensor x = random_input(9), direction = torch::randn({2, 9, 32}, torch::kFloat64);
  const auto loss = [&] { return (layer.forward(x) * direction).sum(); };
  loss().backward();
  const torch::NoGradGuard no_gradient;
  for (auto& parameter : layer.root.named_parameters()) {
    const Tensor gradient = parameter.value().grad(), before = parameter.value().clone();
    const Tensor along = 1e-4 * torch::randn_like(gradient);
    parameter.value().copy_(before + along);
    const Tensor forth = parameter.value().clone();
    const double upper = loss().item<double>();
    parameter.value().copy_(before - along);
    const Tensor taken = (forth - parameter.value()).to(torch::kFloat64);
    const double lower = loss().item<double>();
    parameter.value().copy_(before);
    const double expected = (gradient.to(torch::kFloat64) * taken).sum().item<double>();
    EXPECT_NEAR(upper - lower, expected, 1e-4 * gradient.norm().item<double>() * taken.norm().item<double>())
        << parameter.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Published, RecurrentMixer, testing::ValuesIn(recurrent_cases()));

// ---- A text in pieces

class NamedModel : public testing::TestWithParam<std::string> {};

TEST_P(NamedModel, ContinuesATextTokenByTokenAsAWhole) {
  ModelConfig config = tiny_model(named_architecture(GetParam()));
  config.compute_dtype = "float64";
  LanguageModel model(config);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(2, 21), whole = model->forward(tokens);
  ASSERT_EQ(model->continues(), GetParam() != "segment");
  std::vector<Past> past;
  if (!model->continues()) {
    EXPECT_THROW(model->continued(tokens, past), std::logic_error);
    return;
  }
  int64_t read = 0;
  for (const int64_t piece : {1, 1, 9, 1, 2, 1, 6}) {
    const Tensor logits = model->continued(tokens.narrow(1, read, piece), past);
    EXPECT_LT(distance(logits, whole.narrow(1, read, piece)), 1e-10) << "from token " << read;
    read += piece;
  }
  EXPECT_EQ(read, 21);
  int64_t kept = 0, longer = 0;
  for (const Past& layer : past)
    for (const Tensor& tensor : layer.kept) kept += tensor.numel();
  model->continued(tokens, past);
  for (const Past& layer : past)
    for (const Tensor& tensor : layer.kept) longer += tensor.numel();
  EXPECT_EQ(longer == kept, config.past_is_bounded() && GetParam() != "local" && GetParam() != "samba");
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Architecture& row : named_architectures()) names.push_back(row.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Architectures, NamedModel, testing::ValuesIn(all_names()));

TEST(PastOfAWindow, IsNoLongerThanWhatItSees) {
  ModelConfig config = tiny_mixer("local", {{"window", 4}, {"rope", true}, {"kv_shift", true}});
  LanguageModel model(config);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(1, 20), whole = model->forward(tokens);
  std::vector<Past> past;
  for (int64_t t = 0; t < 20; ++t)
    EXPECT_LT(distance(model->continued(tokens.narrow(1, t, 1), past), whole.narrow(1, t, 1)), 1e-10);
  EXPECT_EQ(past[1].kept[1].size(1), 3);
}

// ---- Beginnings and refusals

TEST(Mamba2, BeginsWithStepsBetweenAThousandthAndATenth) {
  const ModelConfig config = tiny_model(named_architecture("mamba2"));
  LanguageModel model(config);
  const auto parameters = model->named_parameters();
  const Tensor bias = parameters["model.layers.0.attn.dt_bias"].detach(), step = torch::softplus(bias);
  EXPECT_GE(step.min().item<double>(), 0.999e-3);
  EXPECT_LE(step.max().item<double>(), 0.1001);
  EXPECT_LT(distance(parameters["model.layers.0.attn.A_log"].detach().exp(), torch::arange(1, 5)), 1e-5);
}

std::string refused(const char* mixer, const nlohmann::json& options) {
  try {
    tiny_mixer(mixer, options).check();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(RecurrentMixers, RefuseOptionsWithoutALayer) {
  EXPECT_EQ(refused("mamba2", {{"groups", 3}}), "groups: expected a divisor of the 4 inner heads, found 3");
  EXPECT_EQ(refused("mamba2", {{"expansion", 0}}), "expansion: expected 1 … 64, found 0");
  EXPECT_EQ(refused("deltanet", {{"key_expansion", 0.3}}),
            "key_expansion: expected a share of width 32 that 2 heads divide, at most 64, found 0.300000");
  EXPECT_EQ(refused("gla", {{"gate_divisor", 0}}), "gate_divisor: expected > 0 and finite, found 0.000000");
  EXPECT_EQ(refused("retnet", {{"value_expansion", -1}}),
            "value_expansion: expected a share of width 32 that 2 heads divide, at most 64, found -1.000000");
}

}  // namespace
}  // namespace lethe::recurrent

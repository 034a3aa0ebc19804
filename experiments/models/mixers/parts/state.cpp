#include "experiments/models/mixers/parts/state.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/unbounded_state.hpp"
#include "experiments/models/not_finite.hpp"
#include "optimized/torch/implementations.hpp"
#include "optimized/torch/matrix_state.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr int64_t kLargestState = 1 << 20;
constexpr int64_t kTracedStates = 256;  // at most this many along a text are read for the maximum

StateInputs piece(const StateInputs& in, int64_t begin, int64_t length) {
  const auto cut = [&](const Tensor& x) { return x.narrow(1, begin, length); };
  const auto cut_if = [&](const std::optional<Tensor>& x) { return x ? std::optional(cut(*x)) : std::nullopt; };
  return {
      cut(in.query),   cut(in.key),         cut(in.value),         cut_if(in.log_key_gate), cut_if(in.log_value_gate),
      cut_if(in.beta), cut_if(in.key_gate), cut_if(in.value_gate), cut_if(in.erased_key),   cut_if(in.erased_value)};
}

// z·q, [B,T,H,1]: the keys' sum up to each token of its sequence, read by the query. before: where given, the sum of the keys before, undefined for
// none; becomes that of all.
Tensor sum_of_keys(const Tensor& query, const Tensor& keys, const std::optional<Tensor>& cu_seqlens, Tensor* before) {
  if (cu_seqlens)
    return std::get<0>(recurrence({query, keys, torch::ones_like(keys.narrow(-1, 0, 1))}, std::nullopt, 1, cu_seqlens));
  Tensor sums = keys.cumsum(1);
  if (before && before->defined()) sums = sums + *before;
  if (before) *before = sums.narrow(1, sums.size(1) - 1, 1);
  return (sums * query).sum(-1, true);
}

// max |S_t| over the text's tokens, at most kTracedStates of them, of the first `columns` of the state.
Tensor largest_state(const StateInputs& inputs, int64_t columns) {
  const torch::NoGradGuard no_gradient;
  const int64_t length = inputs.query.size(1), stride = (length + kTracedStates - 1) / kTracedStates;
  std::optional<Tensor> state;
  Tensor largest = torch::zeros({}, inputs.query.options().dtype(torch::kFloat64));
  for (int64_t begin = 0; begin < length; begin += stride) {
    state = std::get<1>(recurrence(piece(inputs, begin, std::min(stride, length - begin)), state));
    largest = torch::maximum(largest, state->narrow(-1, 0, columns).abs().max().to(torch::kFloat64));
  }
  return largest;
}

// The inputs of the rule's recurrence. Numerator and denominator of the attention norm are unbounded sums, only their ratio is
// bounded, so they are wide.
StateInputs inputs_of(const StateProjections& projections, const StateRule& rule, const std::vector<Tensor>& product,
                      Rotations& rotations, int64_t first) {
  const torch::Dtype dtype = product[0].scalar_type(), wide = accumulation_dtype(dtype);
  const torch::Dtype state_dtype = rule.attention_norm ? wide : dtype;
  const auto features = [&](const Tensor& of) {
    Tensor u = projections.features(of, rotations, first);
    if (rule.sum_norm) u = sum_normalized(u, rule.norm_epsilon).to(dtype);
    return u.to(state_dtype);
  };
  StateInputs in;
  in.query = features(product[0]);
  in.key = features(product[1]);
  in.value = product[2].unflatten(-1, {projections.heads, -1}).to(state_dtype);
  return in;
}

}  // namespace

std::tuple<Tensor, Tensor> recurrence(const StateInputs& in, const std::optional<Tensor>& state, double scale,
                                      const std::optional<Tensor>& cu_seqlens) {
  if (in.erased_key) {  // the state is linear in what is written
    const auto of = [&](const Tensor& key, const Tensor& value, const std::optional<Tensor>& before) {
      return recurrence({in.query, key, value, in.log_key_gate, in.log_value_gate, in.beta, in.key_gate, in.value_gate},
                        before, scale, cu_seqlens);
    };
    const auto [o, left] = of(in.key, in.value, state);
    const auto [less, without] = of(*in.erased_key, *in.erased_value, std::nullopt);
    return {o - less, left - without};
  }
  if (in.key_gate)
    return unbounded_state(scale == 1 ? in.query : in.query * scale, in.key, in.value, *in.key_gate, *in.value_gate,
                           state, cu_seqlens);
  if (in.beta) return delta_state(in.query, in.key, in.value, *in.beta, in.log_key_gate, state, scale, cu_seqlens);
  return gated_state(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, state, scale, false, cu_seqlens);
}

StateTrace trace_of(const StateInputs& in, const Tensor& o, int64_t columns) {
  return {largest_state(in, columns), o.detach().abs().max().to(torch::kFloat64), in.log_key_gate, in.log_value_gate};
}

int64_t StateConfig::state_rows(const ModelConfig& model) const {
  if (feature_map == FeatureMap::kEluPlusOne) return model.head_dim();
  return feature_map == FeatureMap::kDpfp ? 2 * dpfp_nu * model.head_dim() : state_size;
}

void StateConfig::check(const ModelConfig& model, int64_t least) const {
  RotationConfig::check();
  const auto found = std::to_string(state_size);
  expect(!rope || model.head_dim() % 2 == 0, "rope", "an even head dim", std::to_string(model.head_dim()));
  expect(feature_map != FeatureMap::kDpfp || (dpfp_nu >= 1 && dpfp_nu <= 2 * model.head_dim()), "dpfp_nu",
         "1 … 2·head_dim = " + std::to_string(2 * model.head_dim()), std::to_string(dpfp_nu));
  expect(!reads_state_size() || (state_size >= least && state_size <= kLargestState), "state_size",
         std::to_string(least) + " … " + std::to_string(kLargestState), found);
  expect(reads_state_size() || state_rows(model) >= least, "heads", "fewer than width " + std::to_string(model.width),
         std::to_string(model.heads));
  expect(!rope || query_dim(model) % 2 == 0, "state_size", "an even number where queries are rotated", found);
  expect(feature_map != FeatureMap::kRandomFourier || state_size % 2 == 0, "state_size",
         "an even number with the feature map random_fourier, a sine and a cosine a direction", found);
}

void check_norm_epsilon(double epsilon) {
  expect(epsilon >= 0 && std::isfinite(epsilon), "norm_epsilon", "≥ 0 and finite", std::to_string(epsilon));
}

StateProjections::StateProjections(const Weights& weights, const ModelConfig& model, const StateConfig& own)
    : own(own), heads(model.heads), query_dim(own.query_dim(model)) {
  const int64_t width = model.width, rows = own.state_rows(model), head_dim = model.head_dim();
  query = weights.parameter("q_proj.weight", {heads * query_dim, width}, normal());
  key = weights.parameter("k_proj.weight", {heads * query_dim, width}, normal());
  value = weights.parameter("v_proj.weight", {width, width}, normal());
  if (own.feature_map == FeatureMap::kRelu) {
    feature = weights.parameter("feature.weight", {heads * rows, head_dim}, normal());
    feature_bias = weights.parameter("feature.bias", {heads * rows}, constant(0));
  }
  if (own.has_random_features()) {
    const int64_t halves = own.feature_map == FeatureMap::kRandomFourier ? 2 : 1;
    directions = weights.buffer("feature.directions", {rows / halves, head_dim}, normal(1));
  }
}

Tensor StateProjections::features(const Tensor& product, Rotations& rotations, int64_t first) const {
  Tensor u = product.unflatten(-1, {heads, query_dim});
  if (own.rope) u = rotate(u, rotations.of(product, query_dim, own.rope_base, first));
  const torch::Dtype dtype = u.scalar_type();
  switch (own.feature_map) {
    case FeatureMap::kRelu: {
      const Tensor weight = feature.to(dtype).unflatten(0, {heads, own.state_size});  // [H,m,D]
      const Tensor bias = feature_bias.to(dtype).view({heads, own.state_size});
      return (torch::einsum("bthd,hmd->bthm", {u, weight}) + bias).relu();
    }
    case FeatureMap::kEluPlusOne: return elu_plus_one(u);
    case FeatureMap::kDpfp: return dpfp(u, own.dpfp_nu);
    case FeatureMap::kPositiveRandom: return positive_random(u, directions);
    case FeatureMap::kRandomFourier: return random_fourier(u, directions);
    default: return u;
  }
}

MixerLayer state_layer(const Weights& weights, const StateProjections& projections, const StateRule& rule,
                       const OutputEnd& end) {
  std::vector<Tensor> matrices{projections.query, projections.key, projections.value, end.gate};
  matrices.insert(matrices.end(), rule.weights.begin(), rule.weights.end());
  const Product products = weights.product(matrices);
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    // The operator would reject NaN gates as a wrong call; here they mean that the training has diverged.
    if (x.is_cpu() && !torch::isfinite(x).all().item<bool>())
      throw NotFinite("activation: expected finite numbers, found others");
    const std::vector<Tensor> product = products.pieces(x);
    StateInputs in = inputs_of(projections, rule, product, rotations, past ? past->tokens : 0);
    const int64_t value_dim = in.value.size(-1);
    const Tensor keys = in.key;
    rule.gates(in, {product.begin() + 4, product.end()});

    // z is the state's column of a value of ones, or a separate sum.
    const bool column = rule.attention_norm && !rule.sums_keys;
    if (column) in.value = torch::cat({in.value, torch::ones_like(in.value.narrow(-1, 0, 1))}, -1);
    const bool continues = past && past->tokens > 0;
    const auto sequences = rotations.cu_seqlens();
    auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[0]) : std::nullopt, 1, sequences);  // [B,T,H,D]
    if (past) past->kept.resize(rule.attention_norm && !column ? 2 : 1), past->kept[0] = state;
    if (rule.attention_norm) {
      const Tensor weight =
          column ? o.narrow(-1, value_dim, 1) : sum_of_keys(in.query, keys, sequences, past ? &past->kept[1] : nullptr);
      o = (o.narrow(-1, 0, value_dim) / (weight + rule.norm_epsilon)).to(x.scalar_type());
    }
    if (trace) *trace = trace_of(in, o, value_dim);
    return end(o, product[3]);
  };
}

double state_flops(const ModelConfig& model, const StateConfig& own, double gates, int passes) {
  const double width = static_cast<double>(model.width), heads = static_cast<double>(model.heads);
  const double rows = static_cast<double>(own.state_rows(model)), head_dim = static_cast<double>(model.head_dim());
  const double projections = width * (2 * heads * static_cast<double>(own.query_dim(model)) + width);
  // Query and key both read W_φ or the directions; there are as many directions as features, or half as many.
  const double maps = 2 * heads * rows * head_dim;
  const double trained = own.feature_map == FeatureMap::kRelu ? maps : 0;
  double drawn = own.has_random_features() ? maps : 0;
  if (own.feature_map == FeatureMap::kRandomFourier) drawn /= 2;
  return 6 * (projections + OutputEnd::multiply_adds(model) + gates + trained + width * rows * passes) + 4 * drawn;
}

int64_t state_activation_bytes(const ModelConfig& model, const StateConfig& own, int64_t gates) {
  const int64_t features = own.feature_map == FeatureMap::kLinear ? 0 : 2 * model.heads * own.state_rows(model);
  const int64_t columns = 2 * model.heads * own.query_dim(model) + model.width + features + OutputEnd::columns(model);
  return columns * model.compute_bytes() + 2 * gates * 4;
}

std::string recurrence_on_hopper(const ModelConfig& model, const MatrixStateForm& form, int64_t heads, int64_t rows,
                                 int64_t columns, int64_t context_length, bool wide) {
  Dtype dtype = Dtype::kFloat32;
  for (const Dtype candidate : {Dtype::kFloat64, Dtype::kBFloat16, Dtype::kFloat16})
    if (dtype_name(candidate) == model.compute_dtype) dtype = candidate;
  if (wide && dtype != Dtype::kFloat64) dtype = Dtype::kFloat32;
  return on_every_gpu([&](int capability) {
    const Call call{.shape = {1, context_length, context_length, heads, heads, rows, columns},
                    .dtype = dtype,
                    .device = at::kCUDA,
                    .compute_capability = capability,
                    .form = form};
    return matrix_state_text(call);
  });
}

Swap state_swap(const ModelConfig&, const StateConfig& own) {
  return {.product = own.feature_map == FeatureMap::kLinear,
          .feature_map = own.feature_map == FeatureMap::kRelu ? "feature.weight" : ""};
}

}  // namespace lethe

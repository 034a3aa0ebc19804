#include "experiments/models/fast_weights_layer.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "experiments/models/features.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/matrix_state.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr int64_t kTracedStates = 256;  // at most this many along a text are looked at for the largest

// What a rule's recurrence reads; gates as natural logs, in float32 or wider.
struct StateInputs {
  Tensor query, key, value;                            // [B,T,H,m], [B,T,H,m], [B,T,H,D]
  std::optional<Tensor> log_key_gate, log_value_gate;  // [B,T,H] or [B,T,H,m], [B,T,H,D]
  std::optional<Tensor> beta;                          // [B,T,H]: the delta rule

  StateInputs piece(int64_t begin, int64_t length) const {
    const auto cut = [&](const Tensor& x) { return x.narrow(1, begin, length); };
    const auto cut_if = [&](const std::optional<Tensor>& x) { return x ? std::optional(cut(*x)) : std::nullopt; };
    return {cut(query), cut(key), cut(value), cut_if(log_key_gate), cut_if(log_value_gate), cut_if(beta)};
  }
};

std::tuple<Tensor, Tensor> run(const StateInputs& in, const std::optional<Tensor>& state) {
  if (in.beta) return delta_state(in.query, in.key, in.value, *in.beta, in.log_key_gate, state, 1.0);
  return gated_state(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, state, 1.0);
}

// max |S_t| over the text's tokens, at most kTracedStates of them, of the first `columns` of the state.
Tensor largest_state(const StateInputs& inputs, int64_t columns) {
  const torch::NoGradGuard no_gradient;
  const int64_t length = inputs.query.size(1), stride = (length + kTracedStates - 1) / kTracedStates;
  std::optional<Tensor> state;
  Tensor largest = torch::zeros({}, inputs.query.options().dtype(torch::kFloat64));
  for (int64_t begin = 0; begin < length; begin += stride) {
    state = std::get<1>(run(inputs.piece(begin, std::min(stride, length - begin)), state));
    largest = torch::maximum(largest, state->narrow(-1, 0, columns).abs().max().to(torch::kFloat64));
  }
  return largest;
}

}  // namespace

Tensor uniform_gate_bias(int64_t size, double n, torch::Generator generator) {
  const Tensor share = torch::rand({size}, generator, torch::dtype(torch::kFloat64)) * (1 - 2 / n) + 1 / n;
  return share.logit().to(torch::kFloat32);
}

double gate_range(const ModelConfig& config, int64_t gates) {
  return config.gate_range.value_or(static_cast<double>(gates));
}

FastWeightsLayer::FastWeightsLayer(torch::nn::Module& root, const std::string& path, const ModelConfig& config,
                                   torch::Device device)
    : config(config) {
  const auto add = [&](const std::string& name, torch::IntArrayRef sizes) {
    return add_parameter(root, path + "." + name, sizes, device);
  };
  const int64_t width = config.width, heads = config.heads, states = heads * config.state_rows();
  query = add("q_proj.weight", {heads * config.query_dim(), width});
  key = add("k_proj.weight", {heads * config.query_dim(), width});
  value = add("v_proj.weight", {width, width});
  if (config.feature_map == FeatureMap::kRelu) {
    feature = add("feature.weight", {states, config.head_dim()});
    feature_bias = add("feature.bias", {states});
  }
  if (config.has_random_features()) {
    const int64_t halves = config.feature_map == FeatureMap::kRandomFourier ? 2 : 1;
    directions =
        add_buffer(root, path + ".feature.directions", {config.state_rows() / halves, config.head_dim()}, device);
  }
  if (config.mixer == Mixer::kGated || config.corrects()) gate = add("gate_proj.weight", {heads, width});
  if (config.corrects()) gate_bias = add("gate_proj.bias", {heads});
  forget = ForgetGateWeights(root, path, config, device);
  if (config.mixer == Mixer::kDecay) {
    key_gate = add("key_gate_proj.weight", {states, width});
    key_gate_bias = add("key_gate_proj.bias", {states});
    value_gate = add("value_gate_proj.weight", {width, width});
    value_gate_bias = add("value_gate_proj.bias", {width});
  }
  if (config.output_gate) output_gate = add("ogate_proj.weight", {width, width});
  if (config.output_norm) output_norm = add("output_norm.weight", {width});
  output = add("o_proj.weight", {width, width});
}

Tensor FastWeightsLayer::mapped(const Tensor& u) const {
  const torch::Dtype dtype = u.scalar_type();
  switch (config.feature_map) {
    case FeatureMap::kRelu: {
      const Tensor weight = feature.to(dtype).unflatten(0, {config.heads, config.state_size});  // [H,m,D]
      const Tensor bias = feature_bias.to(dtype).view({config.heads, config.state_size});
      return (torch::einsum("bthd,hmd->bthm", {u, weight}) + bias).relu();
    }
    case FeatureMap::kEluPlusOne: return elu_plus_one(u);
    case FeatureMap::kDpfp: return dpfp(u, config.dpfp_nu);
    case FeatureMap::kPositiveRandom: return positive_random(u, directions);
    case FeatureMap::kRandomFourier: return random_fourier(u, directions);
    default: return u;
  }
}

Tensor FastWeightsLayer::forward(const Tensor& x, const Rotation& rotation, AttentionTrace* trace) const {
  const int64_t heads = config.heads, states = config.state_rows(), value_dim = config.head_dim();
  const torch::Dtype dtype = x.scalar_type(), wide = accumulation_dtype(dtype);
  // The operator would refuse gates that are no numbers as a wrong call; here they are a training that has diverged.
  if (x.is_cpu() && !torch::isfinite(x).all().item<bool>()) throw NotFinite("activation: expected finite numbers");

  // One product for everything that reads x: q | k | v | gates.
  const int64_t queries = heads * config.query_dim();
  std::vector<Tensor> weights{query, key, value};
  std::vector<int64_t> sizes{queries, queries, config.width};
  const auto add = [&](const Tensor& weight) {
    if (!weight.defined()) return;
    weights.push_back(weight);
    sizes.push_back(weight.size(0));
  };
  for (const Tensor* weight : {&gate, &forget.weight, &key_gate, &value_gate, &output_gate}) add(*weight);
  const auto products = torch::linear(x, torch::cat(weights).to(dtype)).split_with_sizes(sizes, -1);
  auto next = products.begin();

  const Tensor epsilon = torch::scalar_tensor(config.norm_epsilon, x.options().dtype(wide));
  // Numerator and denominator of the attention norm are sums that only their ratio keeps small.
  const torch::Dtype state_dtype = config.attention_norm ? wide : dtype;
  const auto features = [&](const Tensor& product) {  // φ, [B,T,H,m]
    Tensor u = product.unflatten(-1, {heads, config.query_dim()});
    if (config.rope) u = rotate(u, rotation);
    u = mapped(u);
    if (config.sum_norm) {
      const Tensor wide_u = u.to(wide);
      u = (wide_u / (wide_u.sum(-1, true) + epsilon)).to(dtype);
    }
    return u.to(state_dtype);
  };
  StateInputs in;
  in.query = features(*next++);
  in.key = features(*next++);
  in.value = (next++)->unflatten(-1, {heads, value_dim}).to(state_dtype);

  Tensor raw_key;  // of the delta rule's z, which has no gate
  switch (config.mixer) {
    case Mixer::kGated: {
      const Tensor logits = (next++)->to(wide);  // [B,T,H]
      in.log_key_gate = torch::log_sigmoid(logits);
      in.key = (in.key.to(wide) * torch::sigmoid(-logits).unsqueeze(-1)).to(in.key.scalar_type());
      break;
    }
    case Mixer::kDelta:
    case Mixer::kGatedDelta:
      in.beta = torch::sigmoid((next++)->to(wide) + gate_bias.to(wide));
      raw_key = in.key;
      break;
    case Mixer::kDecay:
      in.log_key_gate = torch::log_sigmoid((next++)->to(wide) + key_gate_bias.to(wide)).unflatten(-1, {heads, states});
      in.log_value_gate =
          torch::log_sigmoid((next++)->to(wide) + value_gate_bias.to(wide)).unflatten(-1, {heads, value_dim});
      break;
    default: break;
  }
  if (config.forgets_state()) {
    const Tensor logits = forget.weight.defined() ? *next++ : Tensor();  // [B,T,H]
    in.log_key_gate = forget.log_gate(logits, x.size(0), x.size(1), wide);
  }
  // z is the column that a value of ones makes; that of the delta rule has no gate and is summed apart.
  const bool column = config.attention_norm && config.mixer != Mixer::kDelta;
  if (column) in.value = torch::cat({in.value, torch::ones_like(in.value.narrow(-1, 0, 1))}, -1);
  Tensor o = std::get<0>(run(in, std::nullopt));  // [B,T,H,D]
  if (config.attention_norm) {
    // z·q, [B,T,H,1]
    const Tensor weight = column ? o.narrow(-1, value_dim, 1) : (raw_key.cumsum(1) * in.query).sum(-1, true);
    o = (o.narrow(-1, 0, value_dim) / (weight + epsilon)).to(dtype);
  }
  if (trace) {
    trace->largest_state = largest_state(in, value_dim);
    trace->largest_value = o.detach().abs().max().to(torch::kFloat64);
  }
  return mixed_output(o, config, output_norm, output_gate.defined() ? *next : Tensor(), output);
}

}  // namespace lethe

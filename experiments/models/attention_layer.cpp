#include "experiments/models/attention_layer.hpp"

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "experiments/models/local_attention.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace lethe {

using torch::Tensor;

namespace {

double machine_epsilon(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kBFloat16: return std::numeric_limits<c10::BFloat16>::epsilon();
    case torch::kFloat16: return std::numeric_limits<c10::Half>::epsilon();
    case torch::kFloat64: return std::numeric_limits<double>::epsilon();
    default: return std::numeric_limits<float>::epsilon();
  }
}

}  // namespace

Tensor mixed_output(Tensor o, const ModelConfig& config, const Tensor& output_norm, const Tensor& gate_logits,
                    const Tensor& output) {
  const torch::Dtype dtype = o.scalar_type(), wide = accumulation_dtype(dtype);
  if (config.output_norm) {
    o = rms_norm(o, output_norm.view({config.heads, config.head_dim()}), kNormEpsilon,
                 config.output_gate ? wide : dtype);
  }
  o = o.flatten(-2);
  if (config.output_gate) o = (o * gate_logits.to(wide).sigmoid()).to(dtype);
  return torch::linear(o, output.to(dtype));
}

AttentionLayer::AttentionLayer(torch::nn::Module& root, const std::string& path, const ModelConfig& config,
                               torch::Device device)
    : config(config) {
  const auto add = [&](const std::string& name, torch::IntArrayRef sizes) {
    return add_parameter(root, path + "." + name, sizes, device);
  };
  const int64_t width = config.width, heads = config.heads;
  const std::string inner = config.kv_shift ? ".linear.weight" : ".weight";
  query = add("q_proj.weight", {width, width});
  key = add("k_proj" + inner, {width, width});
  value = add("v_proj" + inner, {width, width});
  if (config.kv_shift) {
    key_shift = add("k_proj.shift_proj.weight", {heads, width});
    value_shift = add("v_proj.shift_proj.weight", {heads, width});
  }
  if (config.qk_norm != QkNorm::kNone) {
    const int64_t size = config.qk_norm == QkNorm::kShared ? config.head_dim() : width;
    query_norm = add("q_norm.weight", {size});
    key_norm = add("k_norm.weight", {size});
  }
  forget = ForgetGateWeights(root, path, config, device);
  if (config.output_gate) output_gate = add("ogate_proj.weight", {width, width});
  if (config.output_norm) output_norm = add("output_norm.weight", {width});
  output = add("o_proj.weight", {width, width});
}

Tensor AttentionLayer::logit_bound(torch::Dtype dtype) const {
  if (config.qk_norm == QkNorm::kNone) return {};
  const torch::NoGradGuard no_gradient;
  const auto largest = [&](const Tensor& weight) {  // γ of every head, [H]
    return config.qk_norm == QkNorm::kShared ? weight.abs().max().expand({config.heads})
                                             : weight.abs().view({config.heads, config.head_dim()}).amax(-1);
  };
  const double roundings = 1 + 4 * machine_epsilon(dtype);
  return largest(query_norm) * largest(key_norm) * (std::sqrt(static_cast<double>(config.head_dim())) * roundings);
}

Tensor AttentionLayer::forward(const Tensor& x, const Rotation& rotation, AttentionTrace* trace) const {
  const int64_t heads = config.heads, width = config.width;
  const torch::Dtype dtype = x.scalar_type();

  // One product for everything that reads x: q | k v | shifts | gates.
  std::vector<Tensor> weights{query, key, value};
  std::vector<int64_t> sizes{width, 2 * width};
  if (config.kv_shift) {
    weights.insert(weights.end(), {key_shift, value_shift});
    sizes.push_back(2 * heads);
  }
  if (config.forget_gate == ForgetGate::kFull) {
    weights.push_back(forget.weight);
    sizes.push_back(heads);
  }
  if (config.output_gate) {
    weights.push_back(output_gate);
    sizes.push_back(width);
  }
  const auto products = torch::linear(x, torch::cat(weights).to(dtype)).split_with_sizes(sizes, -1);
  auto next = products.begin();

  Tensor q = (next++)->unflatten(-1, {heads, config.head_dim()});       // [B,T,H,D]
  Tensor kv = (next++)->unflatten(-1, {2 * heads, config.head_dim()});  // [B,T,2H,D]
  if (config.kv_shift) kv = shift_by_one(kv, *next++);
  const auto k_and_v = kv.chunk(2, 2);
  Tensor k = k_and_v[0];
  const Tensor v = k_and_v[1];
  if (config.qk_norm != QkNorm::kNone) {
    const auto per_head = [&](const Tensor& weight) { return weight.view({-1, config.head_dim()}); };  // [1 or H, D]
    q = rms_norm(q, per_head(query_norm), kQkNormEpsilon, dtype);
    k = rms_norm(k, per_head(key_norm), kQkNormEpsilon, dtype);
  }
  if (config.rope) {
    q = rotate(q, rotation);
    k = rotate(k, rotation);
  }

  const Tensor forget_logits = config.forget_gate == ForgetGate::kFull ? *next++ : Tensor();  // [B,T,H]
  const Tensor o = config.mixer == Mixer::kLocal ? local_attention(q, k, v, config.window)
                                                 : attention(q, k, v, forget_logits, trace);
  return mixed_output(o, config, output_norm, config.output_gate ? *next : Tensor(), output);
}

Tensor AttentionLayer::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                                 AttentionTrace* trace) const {
  const torch::Dtype dtype = q.scalar_type(), wide = accumulation_dtype(dtype);
  const Tensor log_forget = config.forget_gate == ForgetGate::kNone
                                ? torch::zeros({q.size(0), q.size(1), config.heads}, q.options().dtype(wide))
                                : forget.log_gate(gate_logits, q.size(0), q.size(1), wide);  // [B,T,H]

  const auto tolerance = config.log_pruning_tolerance;
  const Tensor bound = tolerance || trace ? logit_bound(dtype) : Tensor();
  const auto bound_argument = bound.defined() ? std::optional<Tensor>(bound) : std::nullopt;
  Tensor o;  // [B,T,H,D]
  if (trace) {
    *trace = {q.detach(), k.detach(), v.detach(), log_forget.detach(), bound, {}, {}, {}};
    std::tie(o, std::ignore, trace->visited_pairs) =
        forgetting_attention_with_statistics(q, k, v, log_forget, std::nullopt, tolerance, bound_argument);
  } else {
    o = forgetting_attention(q, k, v, log_forget, std::nullopt, tolerance, bound_argument);
  }
  return o;
}

}  // namespace lethe

#include "experiments/models/mixers/retnet.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/expansion.hpp"
#include "experiments/models/mixers/parts/recurrent_end.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

using torch::Tensor;

namespace {

int64_t value_columns(const ModelConfig& model, const RetNetConfig& own) {
  return expanded(model, own.value_expansion);
}

void check_retnet(const ModelConfig& model, const RetNetConfig& own) {
  own.RotationConfig::check();
  expect(!own.rope || model.head_dim() % 2 == 0, "rope", "an even head dim", std::to_string(model.head_dim()));
  check_expansion("value_expansion", own.value_expansion, model);
}

// log γ_h.
Tensor log_decay(int64_t heads, const torch::TensorOptions& options) {
  const Tensor exponent = -5 - torch::arange(heads, options.dtype(torch::kFloat64));
  return torch::log1p(-torch::exp2(exponent)).to(options.dtype());
}

MixerLayer make_retnet(const ModelConfig& model, const RetNetConfig& own, const Weights& weights) {
  const int64_t width = model.width, heads = model.heads, dim = model.head_dim(), values = value_columns(model, own);
  const auto projection = [&](const char* name, int64_t columns) {
    return weights.parameter(name, {columns, width}, small_xavier(columns, width));
  };
  const Tensor query = projection("q_proj.weight", width), key = projection("k_proj.weight", width);
  const Tensor value = projection("v_proj.weight", values);
  const RecurrentEnd end(weights, width, heads, values / heads, true, small_xavier);
  const Product products = weights.product({query, key, value, end.gate});
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const bool continues = past && past->tokens > 0;
    const std::vector<Tensor> product = products.pieces(x);
    const auto rotated = [&](const Tensor& columns) {
      const Tensor u = columns.unflatten(-1, {heads, -1});
      return own.rope ? rotate(u, rotations.of(x, dim, own.rope_base, past ? past->tokens : 0)) : u;
    };
    const auto options = x.options().dtype(accumulation_dtype(x.scalar_type())).requires_grad(false);
    StateInputs in{rotated(product[0]), rotated(product[1]), product[2].unflatten(-1, {heads, -1}),
                   log_decay(heads, options).expand({x.size(0), x.size(1), heads})};
    const auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[0]) : std::nullopt, scale, rotations.cu_seqlens());
    if (past) past->kept = {state};
    if (trace) *trace = trace_of(in, o, o.size(-1));
    return end(o, product[3]);
  };
}

double retnet_flops(const ModelConfig& model, const RetNetConfig& own, int64_t) {
  const int64_t values = value_columns(model, own);
  return 6 * static_cast<double>(model.width * (2 * model.width + 3 * values) + 3 * values * model.head_dim());
}

int64_t retnet_bytes(const ModelConfig& model, const RetNetConfig& own) {
  // Queries and keys before and after the rotation; values, gate, o, its norm, and the gate's product.
  return (4 * model.width + 5 * value_columns(model, own)) * model.compute_bytes();
}

std::vector<Architecture> retnet_architectures() {
  RetNetConfig own;
  own.rope = true;
  own.rope_base = 10000;
  ModelConfig model = llama(own);
  model.mlp_ratio = 2;  // as many parameters as the paper's two matrices of 2·width
  return {{own.kName, model}};
}

}  // namespace

Mixer retnet_mixer() {
  Mixer row = row_of<RetNetConfig>();
  row.check = typed<RetNetConfig>(check_retnet);
  row.make = typed<RetNetConfig>(make_retnet);
  row.packs = true;
  row.flops = typed<RetNetConfig>(retnet_flops);
  row.activation_bytes = typed<RetNetConfig>(retnet_bytes);
  row.architectures = retnet_architectures;
  row.on_hopper = typed<RetNetConfig>([](const ModelConfig& model, const RetNetConfig& own, int64_t context_length) {
    return recurrence_on_hopper(model, RetNetConfig::kForm, model.heads, model.head_dim(),
                                value_columns(model, own) / model.heads, context_length);
  });
  row.state_rows = typed<RetNetConfig>([](const ModelConfig& model, const RetNetConfig&) { return model.head_dim(); });
  row.past_is_bounded = true;
  return row;
}

}  // namespace lethe

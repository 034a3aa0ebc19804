#include "experiments/models/mixers/gla.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/expansion.hpp"
#include "experiments/models/mixers/parts/recurrent_end.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

using torch::Tensor;

namespace {

ExpandedColumns columns_of(const ModelConfig& model, const GlaConfig& own) {
  return {expanded(model, own.key_expansion), expanded(model, own.value_expansion)};
}

void check_gla(const ModelConfig& model, const GlaConfig& own) {
  constexpr int64_t kLargestRank = 1 << 20;
  check_expansion("key_expansion", own.key_expansion, model);
  check_expansion("value_expansion", own.value_expansion, model);
  expect(own.gate_rank >= 1 && own.gate_rank <= kLargestRank, "gate_rank", "1 … 1048576",
         std::to_string(own.gate_rank));
  expect(own.gate_divisor > 0 && std::isfinite(own.gate_divisor), "gate_divisor", "> 0 and finite",
         std::to_string(own.gate_divisor));
}

MixerLayer make_gla(const ModelConfig& model, const GlaConfig& own, const Weights& weights) {
  const int64_t width = model.width, heads = model.heads;
  const auto [keys, values] = columns_of(model, own);
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
    return weights.parameter(name, {rows, columns}, normal());
  };
  const Tensor query = matrix("q_proj.weight", keys, width), key = matrix("k_proj.weight", keys, width);
  const Tensor value = matrix("v_proj.weight", values, width), down = matrix("gk_proj.0.weight", own.gate_rank, width);
  const Product up = weights.product({matrix("gk_proj.1.weight", keys, own.gate_rank)});
  const Tensor bias = weights.parameter("gk_proj.1.bias", {keys}, constant(0));
  const RecurrentEnd end(weights, width, heads, values / heads, true, usual);
  const Product products = weights.product({query, key, value, end.gate, down});
  const double scale = 1 / std::sqrt(static_cast<double>(keys / heads)), divisor = own.gate_divisor;
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const torch::Dtype wide = accumulation_dtype(x.scalar_type());
    const bool continues = past && past->tokens > 0;
    const std::vector<Tensor> product = products.pieces(x);
    const auto of_heads = [&](const Tensor& columns) { return columns.unflatten(-1, {heads, -1}); };
    const Tensor logits = up(product[4].contiguous()).to(wide) + bias.to(wide);
    StateInputs in{of_heads(product[0]), of_heads(product[1]), of_heads(product[2]),
                   of_heads(torch::log_sigmoid(logits) / divisor)};
    const auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[0]) : std::nullopt, scale, rotations.cu_seqlens());
    if (past) past->kept = {state};
    if (trace) *trace = trace_of(in, o, o.size(-1));
    return end(o, product[3]);
  };
}

double gla_flops(const ModelConfig& model, const GlaConfig& own, int64_t) {
  const auto [keys, values] = columns_of(model, own);
  const int64_t projections = model.width * (2 * keys + 3 * values + own.gate_rank) + own.gate_rank * keys;
  return 6 * static_cast<double>(projections + 3 * values * (keys / model.heads));
}

int64_t gla_bytes(const ModelConfig& model, const GlaConfig& own) {
  const auto [keys, values] = columns_of(model, own);
  // Products, the gate's logits, o and its norm, the gate's product; logits and gates in float32.
  const int64_t columns = 3 * keys + 5 * values + own.gate_rank;
  return columns * model.compute_bytes() + 2 * keys * 4;
}

std::vector<Architecture> gla_architectures() { return {{GlaConfig::kName, llama(GlaConfig())}}; }

}  // namespace

Mixer gla_mixer() {
  Mixer row = row_of<GlaConfig>();
  row.check = typed<GlaConfig>(check_gla);
  row.make = typed<GlaConfig>(make_gla);
  row.packs = true;
  row.flops = typed<GlaConfig>(gla_flops);
  row.activation_bytes = typed<GlaConfig>(gla_bytes);
  row.architectures = gla_architectures;
  row.on_hopper = typed<GlaConfig>([](const ModelConfig& model, const GlaConfig& own, int64_t context_length) {
    const auto [keys, values] = columns_of(model, own);
    return recurrence_on_hopper(model, GlaConfig::kForm, model.heads, keys / model.heads, values / model.heads,
                                context_length);
  });
  row.state_rows = typed<GlaConfig>(
      [](const ModelConfig& model, const GlaConfig& own) { return columns_of(model, own).keys / model.heads; });
  row.past_is_bounded = true;
  return row;
}

}  // namespace lethe

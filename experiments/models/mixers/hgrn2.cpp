#include "experiments/models/mixers/hgrn2.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/recurrent_end.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

using torch::Tensor;

namespace {

MixerLayer make_hgrn2(const ModelConfig& model, const Hgrn2Config&, const Weights& weights) {
  const int64_t width = model.width, heads = model.heads;
  const auto square = [&](const char* name) {
    return weights.parameter(name, {width, width}, small_xavier(width, width));
  };
  const Tensor query = square("q_proj.weight"), forget = square("f_proj.weight"), value = square("i_proj.weight");
  const RecurrentEnd end(weights, width, 1, width, false, small_xavier);
  const Product products = weights.product({query, forget, value});
  const double scale = 1 / std::sqrt(static_cast<double>(model.head_dim()));
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const torch::Dtype dtype = x.scalar_type();
    const bool continues = past && past->tokens > 0;
    const std::vector<Tensor> product = products.pieces(x);
    const auto of_heads = [&](const Tensor& columns) { return columns.unflatten(-1, {heads, -1}); };
    const Tensor logits = of_heads(product[1]).to(accumulation_dtype(dtype));
    StateInputs in{of_heads(torch::silu(product[0])), torch::sigmoid(-logits).to(dtype), of_heads(product[2]),
                   torch::log_sigmoid(logits)};
    const auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[0]) : std::nullopt, scale, rotations.cu_seqlens());
    if (past) past->kept = {state};
    if (trace) *trace = trace_of(in, o, o.size(-1));
    return end(o, {});
  };
}

double hgrn2_flops(const ModelConfig& model, const Hgrn2Config&, int64_t) {
  return 6 * static_cast<double>(model.width * (4 * model.width + 3 * model.head_dim()));
}

int64_t hgrn2_bytes(const ModelConfig& model, const Hgrn2Config&) {
  // Products, silu(q), key, o and its norm; logits and gates in float32.
  return model.width * (7 * model.compute_bytes() + 2 * 4);
}

std::vector<Architecture> hgrn2_architectures() { return {{Hgrn2Config::kName, llama(Hgrn2Config())}}; }

}  // namespace

Mixer hgrn2_mixer() {
  Mixer row = row_of<Hgrn2Config>();
  row.check = [](const ModelConfig&, const std::any&) {};
  row.make = typed<Hgrn2Config>(make_hgrn2);
  row.packs = true;
  row.flops = typed<Hgrn2Config>(hgrn2_flops);
  row.activation_bytes = typed<Hgrn2Config>(hgrn2_bytes);
  row.architectures = hgrn2_architectures;
  row.on_hopper = [](const ModelConfig& model, const std::any&, int64_t context_length) {
    return recurrence_on_hopper(model, Hgrn2Config::kForm, model.heads, model.head_dim(), model.head_dim(),
                                context_length);
  };
  row.state_rows = [](const ModelConfig& model, const std::any&) { return model.head_dim(); };
  row.past_is_bounded = true;
  return row;
}

}  // namespace lethe

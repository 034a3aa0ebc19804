#include "experiments/models/mixers/deltanet.hpp"

#include <cmath>
#include <tuple>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/expansion.hpp"
#include "experiments/models/mixers/parts/features.hpp"
#include "experiments/models/mixers/parts/recurrent_end.hpp"
#include "experiments/models/mixers/parts/short_convolution.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/mixers/parts/time_step.hpp"

namespace lethe {

using torch::Tensor;

namespace {

ExpandedColumns columns_of(const ModelConfig& model, const DeltaNetConfig& own) {
  return {expanded(model, own.key_expansion), expanded(model, own.value_expansion)};
}

void check_deltanet(const ModelConfig& model, const DeltaNetConfig& own) {
  check_expansion("key_expansion", own.key_expansion, model);
  check_expansion("value_expansion", own.value_expansion, model);
}

// A rate is U(0, 16), whose logarithm is kept.
void draw_rates(Tensor& value, const torch::Generator& generator) {
  value.copy_(torch::empty(value.sizes(), torch::kFloat64).uniform_(0, 16, generator).clamp_min(1e-4).log());
}

// φ(u) of each head over its sum, in the dtype of u [B,T,H·K].
Tensor unit_sums(const Tensor& u, int64_t heads) {
  constexpr double kEpsilon = 1e-6;  // as of lengths
  return sum_normalized(elu_plus_one(u.unflatten(-1, {heads, -1})), kEpsilon).to(u.scalar_type());
}

MixerLayer make_deltanet(const ModelConfig& model, const DeltaNetConfig& own, const Weights& weights) {
  const int64_t width = model.width, heads = model.heads;
  const auto [keys, values] = columns_of(model, own);
  const auto projection = [&](const char* name, int64_t columns) {
    return weights.parameter(name, {columns, width}, small_xavier(columns, width));
  };
  const Tensor query = projection("q_proj.weight", keys), key = projection("k_proj.weight", keys);
  const Tensor value = projection("v_proj.weight", values), write = projection("b_proj.weight", heads);
  const ShortConvolution of_query(weights, "q_conv1d", keys, false, !own.sum_norm),
      of_key(weights, "k_conv1d", keys, false, !own.sum_norm), of_value(weights, "v_conv1d", values, false);
  const Tensor forget = own.forget_gate ? projection("a_proj.weight", heads) : Tensor();
  const auto time_step =
      own.forget_gate ? std::optional<TimeStep>(std::in_place, weights, heads, draw_rates) : std::nullopt;
  const RecurrentEnd end(weights, width, heads, values / heads, own.output_gate, small_xavier);
  const Product products = weights.product({query, key, value, end.gate, write, forget});
  const double scale = 1 / std::sqrt(static_cast<double>(keys / heads));
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const torch::Dtype wide = accumulation_dtype(x.scalar_type());
    const bool continues = past && past->tokens > 0;
    if (past) past->kept.resize(4);  // the convolutions' tokens, the state
    const std::vector<Tensor> product = products.pieces(x);
    const auto convolved = [&](const ShortConvolution& convolution, size_t i) {
      return convolution(product[i], rotations.packed, past ? &past->kept[i] : nullptr);
    };
    StateInputs in;
    const Tensor query_sums = convolved(of_query, 0), key_sums = convolved(of_key, 1);
    std::tie(in.query, in.key) = own.sum_norm ? std::pair(unit_sums(query_sums, heads), unit_sums(key_sums, heads))
                                              : unit_lengths(query_sums, key_sums, heads);
    in.value = convolved(of_value, 2).unflatten(-1, {heads, -1});
    in.beta = torch::sigmoid(product[4].to(wide));  // [B,T,H]
    if (time_step) in.log_key_gate = time_step->of(product[5]).log_gate;
    const auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[3]) : std::nullopt, scale, rotations.cu_seqlens());
    if (past) past->kept[3] = state;
    if (trace) *trace = trace_of(in, o, o.size(-1));
    return end(o, product[3]);
  };
}

double deltanet_flops(const ModelConfig& model, const DeltaNetConfig& own, int64_t) {
  const auto [keys, values] = columns_of(model, own);
  const int64_t gates = model.heads * (1 + own.forget_gate);
  const int64_t projections = model.width * (2 * keys + values * (2 + own.output_gate) + gates);
  const int64_t convolutions = ShortConvolution::kWidth * (2 * keys + values);
  const int64_t state = values * (keys / model.heads) * (3 + own.forget_gate);
  return 6 * static_cast<double>(projections + convolutions + state);
}

int64_t deltanet_bytes(const ModelConfig& model, const DeltaNetConfig& own) {
  const auto [keys, values] = columns_of(model, own);
  // Of queries and keys the product, the convolution and its direction; of values the first two, o and its norm; the gate and its product.
  const int64_t columns = 6 * keys + values * (4 + 2 * own.output_gate) + model.heads * (1 + own.forget_gate);
  // With the sum norm also, in float32, what convolutions give, both sides of φ, and φ.
  return columns * model.compute_bytes() + 4 * (model.heads * (1 + 2 * own.forget_gate) + 8 * keys * own.sum_norm);
}

std::vector<Architecture> deltanet_architectures() {
  DeltaNetConfig gated;
  gated.key_expansion = 0.75;
  gated.value_expansion = 1.5;
  gated.forget_gate = gated.output_gate = true;
  return {{"deltanet", llama(DeltaNetConfig())}, {"gated-deltanet", llama(gated)}};
}

}  // namespace

Mixer deltanet_mixer() {
  Mixer row = row_of<DeltaNetConfig>();
  row.check = typed<DeltaNetConfig>(check_deltanet);
  row.make = typed<DeltaNetConfig>(make_deltanet);
  row.packs = true;
  row.flops = typed<DeltaNetConfig>(deltanet_flops);
  row.activation_bytes = typed<DeltaNetConfig>(deltanet_bytes);
  row.architectures = deltanet_architectures;
  row.on_hopper =
      typed<DeltaNetConfig>([](const ModelConfig& model, const DeltaNetConfig& own, int64_t context_length) {
        const auto [keys, values] = columns_of(model, own);
        return recurrence_on_hopper(model, own.form(), model.heads, keys / model.heads, values / model.heads,
                                    context_length);
      });
  row.state_rows = typed<DeltaNetConfig>(
      [](const ModelConfig& model, const DeltaNetConfig& own) { return columns_of(model, own).keys / model.heads; });
  row.past_is_bounded = true;
  return row;
}

}  // namespace lethe

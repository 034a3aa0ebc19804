#include "experiments/models/mixers/mamba2.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/models/mixers/parts/short_convolution.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/mixers/parts/time_step.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe {

using torch::Tensor;

int64_t Mamba2Config::inner(const ModelConfig& model) const { return expansion * model.width; }
int64_t Mamba2Config::heads(const ModelConfig& model) const { return expansion * model.heads; }
int64_t Mamba2Config::convolved(const ModelConfig& model) const { return inner(model) + 2 * groups * state_size; }

namespace {

constexpr int64_t kMostExpansion = 64, kMostStateRows = 1 << 16;

void check_mamba2(const ModelConfig& model, const Mamba2Config& own) {
  expect(own.expansion >= 1 && own.expansion <= kMostExpansion, "expansion", "1 … 64", std::to_string(own.expansion));
  expect(own.state_size >= 1 && own.state_size <= kMostStateRows, "state_size", "1 … 65536",
         std::to_string(own.state_size));
  expect(own.groups >= 1 && own.heads(model) % own.groups == 0, "groups",
         "a divisor of the " + std::to_string(own.heads(model)) + " inner heads", std::to_string(own.groups));
  check_norm_epsilon(own.norm_epsilon);
}

int64_t input_columns(const ModelConfig& model, const Mamba2Config& own) {
  return own.inner(model) + own.convolved(model) + own.heads(model);
}

// A layer's share of the residual stream at the beginning: Torch's linear layer over √(branches).
Initial initial_output(const ModelConfig& model, int64_t columns) {
  const double branches = static_cast<double>(model.layers * (model.mlp_width() > 0 ? 2 : 1));
  return uniform(1 / std::sqrt(static_cast<double>(columns) * branches));
}

MixerLayer make_mamba2(const ModelConfig& model, const Mamba2Config& own, const Weights& weights) {
  const int64_t width = model.width, inner = own.inner(model), heads = own.heads(model);
  const int64_t shared = own.groups * own.state_size, convolved = own.convolved(model);
  const auto projection = [&](const char* name, int64_t columns) {
    return weights.parameter(name, {columns, width}, uniform(1 / std::sqrt(static_cast<double>(width))));
  };
  const Product input =
      weights.product({projection("in_proj.z.weight", inner), projection("in_proj.xBC.weight", convolved),
                       projection("in_proj.dt.weight", heads)});
  const ShortConvolution convolution(weights, "conv1d", convolved, true);
  const TimeStep time_step(weights, heads, [](Tensor& value, const torch::Generator&) {
    value.copy_(torch::arange(1, value.numel() + 1, torch::kFloat64).log());
  });
  const Tensor skip = weights.parameter("D", {heads}, constant(1));
  const Tensor norm = weights.parameter("norm.weight", {inner}, constant(1));
  const Product output =
      weights.product({weights.parameter("out_proj.weight", {width, inner}, initial_output(model, inner))});
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const torch::Dtype dtype = x.scalar_type(), wide = accumulation_dtype(dtype);
    const bool continues = past && past->tokens > 0;
    if (past) past->kept.resize(2);  // the convolution's tokens, the state
    const std::vector<Tensor> columns = input.pieces(x);
    const Tensor convolved = convolution(columns[1], rotations.packed, past ? &past->kept[0] : nullptr);
    const auto all = split_columns(convolved, {inner, shared, shared});
    const auto of_heads = [&](const Tensor& of_groups) {  // [B,T,G·N] → [B,T,H,N]
      const Tensor groups = of_groups.unflatten(-1, {own.groups, 1, own.state_size});
      return groups.expand({-1, -1, -1, heads / own.groups, -1}).flatten(2, 3);
    };
    const auto [size, log_gate] = time_step.of(columns[2]);
    StateInputs in{of_heads(all[2]), of_heads(all[1]), scaled_heads(all[0], size), log_gate};
    const auto [o, state] =
        recurrence(in, continues ? std::optional(past->kept[1]) : std::nullopt, 1, rotations.cu_seqlens());
    if (past) past->kept[1] = state;
    if (trace) *trace = trace_of(in, o, o.size(-1));
    const Tensor gated = gated_skip(o, all[0], skip.to(wide), columns[0]);
    return output(std::get<0>(add_rms_norm(gated, std::nullopt, norm.to(wide), own.norm_epsilon, dtype)));
  };
}

double mamba2_flops(const ModelConfig& model, const Mamba2Config& own, int64_t) {
  const auto inner = static_cast<double>(own.inner(model));
  const double projections =
      static_cast<double>(model.width) * (static_cast<double>(input_columns(model, own)) + inner);
  const auto convolution = static_cast<double>(own.convolved(model) * ShortConvolution::kWidth);
  return 6 * (projections + convolution + 3 * inner * static_cast<double>(own.state_size));
}

int64_t mamba2_bytes(const ModelConfig& model, const Mamba2Config& own) {
  // The products, the convolution's result, keys and queries of all heads, and six arrays of the inner width from the values on.
  const int64_t columns =
      input_columns(model, own) + own.convolved(model) + 2 * own.heads(model) * own.state_size + 6 * own.inner(model);
  return columns * model.compute_bytes() + 3 * own.heads(model) * 4;
}

std::vector<Architecture> mamba2_architectures() {
  ModelConfig alone = llama(Mamba2Config());
  alone.mlp_ratio = 0;
  LocalConfig window;
  window.rope = true;
  window.qk_norm = QkNorm::kNone;
  window.kv_shift = false;
  window.window = 2048;
  AttentionConfig fox;
  fox.qk_norm = QkNorm::kNone;
  fox.kv_shift = false;
  // Samba, with Mamba-2 in the place of Mamba; and FoX in the place of its window.
  return {{"mamba2", alone},
          {"samba", llama(std::vector<MixerConfig>{Mamba2Config(), window})},
          {"mamba2-fox", llama(std::vector<MixerConfig>{Mamba2Config(), fox})}};
}

}  // namespace

Mixer mamba2_mixer() {
  Mixer row = row_of<Mamba2Config>();
  row.check = typed<Mamba2Config>(check_mamba2);
  row.make = typed<Mamba2Config>(make_mamba2);
  row.packs = true;
  row.flops = typed<Mamba2Config>(mamba2_flops);
  row.activation_bytes = typed<Mamba2Config>(mamba2_bytes);
  row.architectures = mamba2_architectures;
  row.on_hopper = typed<Mamba2Config>([](const ModelConfig& model, const Mamba2Config& own, int64_t context_length) {
    return recurrence_on_hopper(model, Mamba2Config::kForm, own.heads(model), own.state_size, model.head_dim(),
                                context_length);
  });
  row.state_rows = typed<Mamba2Config>([](const ModelConfig&, const Mamba2Config& own) { return own.state_size; });
  row.past_is_bounded = true;
  return row;
}

}  // namespace lethe

#include "experiments/models/mixers/local.hpp"

#include <torch/types.h>

#include <algorithm>
#include <optional>

#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/mixers/parts/output_end.hpp"
#include "optimized/operators/checks.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace lethe {

using torch::Tensor;

Tensor local_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window,
                       const std::optional<Tensor>& cu_seqlens) {
  const Tensor open = torch::zeros({query.size(0), key.size(1), query.size(2)},
                                   query.options().dtype(accumulation_dtype(query.scalar_type())));
  return forgetting_attention(query, key, value, open, std::nullopt, std::nullopt, std::nullopt, window, cu_seqlens);
}

namespace {

constexpr int64_t kLargestWindow = int64_t{1} << 40;

void check_local(const ModelConfig& model, const LocalConfig& own) {
  own.check(model.head_dim());
  expect(own.window > 0 && own.window <= kLargestWindow, "window", "1 … " + std::to_string(kLargestWindow),
         std::to_string(own.window));
}

MixerLayer make_local(const ModelConfig& model, const LocalConfig& own, const Weights& weights) {
  const QueryKeyValue inputs(weights, model, own);
  const OutputEnd end(weights, model);
  const Product products =
      weights.product({inputs.query, inputs.key, inputs.value, end.gate, inputs.key_shift, inputs.value_shift});
  const int64_t window = own.window;
  return [=](const Tensor& x, Rotations& rotations, std::any*, Past* past) {
    const TokensAndShift given(x, own.kv_shift, past);
    const std::vector<Tensor> product = products.pieces(given.x);
    HeadInputs in =
        given.own(inputs.heads_of(inputs.products_of({product[0], product[1], product[2], product[4], product[5]},
                                                     rotations, {}, {}, given.first),
                                  rotations));
    if (past) continue_past(*past, x, {&in.key, &in.value}, window - 1);
    const auto sequences = rotations.cu_seqlens();
    return end(local_attention(in.query, in.key, in.value, window, sequences), given.own(product[3]));
  };
}

double local_flops(const ModelConfig& model, const LocalConfig& own, int64_t context_length) {
  const int64_t seen = std::min(2 * own.window, context_length);
  return 6 * (QueryKeyValue::multiply_adds(model, own) + OutputEnd::multiply_adds(model) +
              static_cast<double>(model.width * seen));
}

int64_t local_bytes(const ModelConfig& model, const LocalConfig& own) {
  return (QueryKeyValue::columns(model, own) + OutputEnd::columns(model)) * model.compute_bytes();
}

std::optional<Swap> local_swap(const ModelConfig&, const LocalConfig& own) {
  return !own.kv_shift && own.qk_norm == QkNorm::kNone ? std::optional(Swap{}) : std::nullopt;
}

std::vector<Architecture> local_architectures() {
  LocalConfig own;
  own.rope = true;
  own.qk_norm = QkNorm::kNone;
  own.kv_shift = false;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer local_mixer() {
  Mixer row = row_of<LocalConfig>();
  row.check = typed<LocalConfig>(check_local);
  row.make = typed<LocalConfig>(make_local);
  row.packs = true;
  row.flops = typed<LocalConfig>(local_flops);
  row.activation_bytes = typed<LocalConfig>(local_bytes);
  row.architectures = local_architectures;
  row.on_hopper = [](const ModelConfig& model, const std::any&, int64_t context_length) {
    return attention_on_hopper(model, context_length);
  };
  row.past_is_bounded = true;
  row.swap = typed<LocalConfig>(local_swap);
  return row;
}

}  // namespace lethe

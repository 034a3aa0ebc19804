#include "experiments/models/mixers/local.hpp"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/output_end.hpp"

namespace lethe {

using torch::Tensor;

Tensor local_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t window) {
  const int64_t length = query.size(1);
  const int64_t block = std::min(window, length), blocks = (length + block - 1) / block;
  const int64_t before = blocks > 1 ? block : 0;  // keys of the block before, where there is one

  // [B,H,N,block,D]; the last block is padded with tokens that no query of the text sees.
  const auto in_blocks = [&](const Tensor& x) {
    return torch::constant_pad_nd(x.transpose(1, 2), {0, 0, 0, blocks * block - length}).unflatten(2, {blocks, block});
  };
  // [B,H,N,before+block,D]
  const auto with_the_block_before = [&](const Tensor& x) {
    const Tensor own = in_blocks(x);
    if (before == 0) return own;
    const Tensor shifted = torch::constant_pad_nd(own.narrow(2, 0, blocks - 1), {0, 0, 0, 0, 1, 0});
    return torch::cat({shifted, own}, 3);
  };

  // Column c of a block is its position c − before; the first block has no keys before it.
  const auto options = query.options().dtype(torch::kInt64);
  const Tensor row = torch::arange(block, options).unsqueeze(1);
  const Tensor column = torch::arange(before + block, options).unsqueeze(0) - before;
  const Tensor visible = (column <= row).logical_and(column > row - window);  // [block, before+block]
  const Tensor first = torch::arange(blocks, options).view({blocks, 1, 1}) == 0;
  const Tensor hidden = visible.logical_and(first.logical_and(column < 0).logical_not()).logical_not();

  const Tensor q = in_blocks(query), k = with_the_block_before(key), v = with_the_block_before(value);
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  const Tensor logits = torch::matmul(q, k.transpose(-1, -2)).to(accumulation_dtype(query.scalar_type())) * scale;
  const Tensor weights = logits.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
  return torch::matmul(weights.to(query.scalar_type()), v).flatten(2, 3).narrow(2, 0, length).transpose(1, 2);
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
  return [=](const Tensor& x, Rotations& rotations, std::any*) {
    const std::vector<Tensor> product = products.pieces(x);
    const auto in = inputs.heads_of({product[0], product[1], product[2], product[4], product[5]}, rotations);
    return end(local_attention(in.query, in.key, in.value, window), product[3]);
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
  row.flops = typed<LocalConfig>(local_flops);
  row.activation_bytes = typed<LocalConfig>(local_bytes);
  row.architectures = local_architectures;
  row.swap = typed<LocalConfig>(local_swap);
  return row;
}

}  // namespace lethe

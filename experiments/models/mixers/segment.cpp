#include "experiments/models/mixers/segment.hpp"

#include <torch/types.h>

#include <algorithm>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/output_end.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace lethe {

using torch::Tensor;

namespace {

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  const Tensor open =
      torch::zeros({key.size(0), key.size(1), key.size(2)}, key.options().dtype(accumulation_dtype(key.scalar_type())));
  return forgetting_attention(query, key, value, open, 1.0);
}

}  // namespace

Tensor segment_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t segment) {
  const int64_t batch = query.size(0), length = query.size(1), size = std::min(segment, length);
  const int64_t count = (length + size - 1) / size;
  // [B,N,s,H,D]; the last segment is padded with tokens that no query of the text sees.
  const auto in_segments = [&](const Tensor& x) {
    return torch::constant_pad_nd(x, {0, 0, 0, 0, 0, count * size - length}).unflatten(1, {count, size});
  };
  // [B·(N−1),2s,H,D]
  const auto with_the_one_before = [&](const Tensor& x) {
    return torch::cat({x.narrow(1, 0, count - 1).detach(), x.narrow(1, 1, count - 1)}, 2).flatten(0, 1);
  };
  const Tensor wide = key.to(accumulation_dtype(key.scalar_type()));
  // Of a key that is all zero the direction is 0.
  const Tensor direction = (wide / wide.norm(2, -1, true).clamp_min(1e-12)).to(key.scalar_type());
  const Tensor q = in_segments(query), k = in_segments(direction), v = in_segments(value);
  const Tensor first = attention(q.select(1, 0), k.select(1, 0), v.select(1, 0));
  if (count == 1) return first;
  const Tensor others =
      attention(q.narrow(1, 1, count - 1).flatten(0, 1), with_the_one_before(k), with_the_one_before(v));
  return torch::cat({first, others.unflatten(0, {batch, count - 1}).flatten(1, 2)}, 1).narrow(1, 0, length);
}

namespace {

constexpr int64_t kLargestSegment = int64_t{1} << 40;

void check_segment(const ModelConfig& model, const SegmentConfig& own) {
  own.check(model.head_dim());
  expect(own.segment > 0 && own.segment <= kLargestSegment, "segment", "1 … " + std::to_string(kLargestSegment),
         std::to_string(own.segment));
}

MixerLayer make_segment(const ModelConfig& model, const SegmentConfig& own, const Weights& weights) {
  const QueryKeyValue inputs(weights, model, own);
  const OutputEnd end(weights, model);
  const Product products =
      weights.product({inputs.query, inputs.key, inputs.value, end.gate, inputs.key_shift, inputs.value_shift});
  const int64_t segment = own.segment;
  return [=](const Tensor& x, Rotations& rotations, std::any*) {
    const std::vector<Tensor> product = products.pieces(x);
    const auto in = inputs.heads_of(
        inputs.products_of({product[0], product[1], product[2], product[4], product[5]}, rotations), rotations);
    return end(segment_attention(in.query, in.key, in.value, segment), product[3]);
  };
}

double segment_flops(const ModelConfig& model, const SegmentConfig& own, int64_t context_length) {
  const int64_t seen = std::min(2 * own.segment, context_length);
  return 6 * (QueryKeyValue::multiply_adds(model, own) + OutputEnd::multiply_adds(model) +
              static_cast<double>(model.width * seen));
}

int64_t segment_bytes(const ModelConfig& model, const SegmentConfig& own) {
  return (QueryKeyValue::columns(model, own) + OutputEnd::columns(model)) * model.compute_bytes();
}

std::vector<Architecture> segment_architectures() {
  SegmentConfig own;
  own.rope = true;
  own.qk_norm = QkNorm::kNone;
  own.kv_shift = false;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer segment_mixer() {
  Mixer row = row_of<SegmentConfig>();
  row.check = typed<SegmentConfig>(check_segment);
  row.make = typed<SegmentConfig>(make_segment);
  row.flops = typed<SegmentConfig>(segment_flops);
  row.activation_bytes = typed<SegmentConfig>(segment_bytes);
  row.architectures = segment_architectures;
  return row;
}

}  // namespace lethe

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "optimized/operators/normalized_read.hpp"
#include "optimized/portable/operators.hpp"

namespace lethe::portable {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kChunk = 64;

Tensor by_time(const Tensor& tensor) { return tensor.to(at::kDouble).transpose(0, 1); }  // [T, B, H, ·]

// One token of every head: row is over the state's rows, column over its columns.
Tensor as_rows(const Tensor& row) { return row.unsqueeze(-1); }
Tensor as_columns(const Tensor& column) { return column.unsqueeze(-2); }
Tensor over_rows(const Tensor& matrix, const Tensor& row) { return matrix.mul(as_rows(row)).sum(-2); }
Tensor over_columns(const Tensor& matrix, const Tensor& column) { return matrix.mul(as_columns(column)).sum(-1); }

struct Tokens {
  Tensor query, key, value;               // [T, B, H, K], [T, B, H, K], [T, B, H, columns]
  Tensor key_gate, value_gate, strength;  // [T, B, H, K or 1], [T, B, H, V], [T, B, H, 1]; undefined where absent
  Tensor initial_state;                   // [B, H, K, columns]
  int64_t length;

  explicit Tokens(const MatrixStateInputs& in)
      : query(by_time(in.query)), key(by_time(in.key)), value(by_time(in.value)), length(in.query.size(1)) {
    if (in.normalize)
      value = at::cat({value, at::ones({value.size(0), value.size(1), value.size(2), 1}, value.options())}, 3);
    if (in.log_key_gate)
      key_gate = by_time(in.log_key_gate->dim() == 3 ? in.log_key_gate->unsqueeze(3) : *in.log_key_gate).exp();
    if (in.log_value_gate) value_gate = by_time(*in.log_value_gate).exp();
    if (in.beta) strength = by_time(in.beta->unsqueeze(3));
    initial_state = in.state ? in.state->to(at::kDouble)
                             : at::zeros({query.size(1), query.size(2), query.size(3), value.size(3)}, query.options());
  }

  Tensor faded(Tensor matrix, int64_t t) const {
    if (key_gate.defined()) matrix = matrix.mul(as_rows(key_gate[t]));
    return value_gate.defined() ? matrix.mul(as_columns(value_gate[t])) : matrix;
  }
  Tensor residual(const Tensor& decayed, int64_t t) const { return value[t].sub(over_rows(decayed, key[t])); }
  Tensor write(const Tensor& decayed, int64_t t) const {
    return strength.defined() ? residual(decayed, t).mul(strength[t]) : value[t];
  }
  Tensor written(const Tensor& decayed, int64_t t) const {
    return decayed.add(as_rows(key[t]).mul(as_columns(write(decayed, t))));
  }
};

// Sᵀq of every token [B, T, H, columns], and the last state.
std::tuple<Tensor, Tensor> read_state(const Tokens& tokens) {
  Tensor state = tokens.initial_state;
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < tokens.length; ++t) {
    state = tokens.written(tokens.faded(state, t), t);
    rows.push_back(over_rows(state, tokens.query[t]));
  }
  return {rows.empty() ? tokens.value.transpose(0, 1) : at::stack(rows, 1), state};
}

// The rows of one gradient, last token first.
struct Rows {
  std::vector<Tensor> rows;
  Tensor as(const Tensor& like) {
    if (rows.empty()) return at::zeros(like.sizes(), like.options());
    std::reverse(rows.begin(), rows.end());
    return at::stack(rows, 1).to(like.scalar_type()).reshape(like.sizes());
  }
  Tensor as(const OptionalTensor& like, const at::TensorOptions& options) {
    return like ? as(*like) : at::empty({0}, options);
  }
};

}  // namespace

MatrixStateOutputs matrix_state_forward(const MatrixStateInputs& in) {
  const at::ScalarType dtype = in.query.scalar_type();
  const auto [read, state] = read_state(Tokens(in));
  const Tensor values = in.normalize ? divide_by_normalizer(read) : read.mul(in.scale);
  // a copy: it may be the given state
  return {values.to(dtype).contiguous(), state.to(accumulation_dtype(dtype), false, true)};
}

MatrixStateGradients matrix_state_backward(const Tensor& grad_values, const Tensor& grad_state,
                                           const MatrixStateInputs& in) {
  const Tokens tokens(in);
  const Tensor d_read = by_time(in.normalize ? gradient_before_division(std::get<0>(read_state(tokens)), grad_values)
                                             : grad_values.to(at::kDouble).mul(in.scale));
  std::vector<Tensor> checkpoints;  // the state before every chunk
  Tensor state = tokens.initial_state;
  for (int64_t t = 0; t < tokens.length; ++t) {
    if (t % kChunk == 0) checkpoints.push_back(state);
    if (t / kChunk < (tokens.length - 1) / kChunk) state = tokens.written(tokens.faded(state, t), t);
  }
  Rows d_query, d_key, d_value, d_key_gate, d_value_gate, d_strength;
  Tensor d_state = gradient_or_zeros(grad_state, in).to(at::kDouble);
  for (int64_t chunk = static_cast<int64_t>(checkpoints.size()) - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(begin + kChunk, tokens.length);
    std::vector<Tensor> decayed;
    for (int64_t t = begin; t < end; ++t) {
      decayed.push_back(tokens.faded(t == begin ? checkpoints[chunk] : tokens.written(decayed.back(), t - 1), t));
    }
    for (int64_t t = end - 1; t >= begin; --t) {
      const Tensor& before = decayed[t - begin];
      d_query.rows.push_back(over_columns(tokens.written(before, t), d_read[t]));
      d_state = d_state.add(as_rows(tokens.query[t]).mul(as_columns(d_read[t])));
      Tensor d_k = over_columns(d_state, tokens.write(before, t)), d_write = over_rows(d_state, tokens.key[t]);
      if (in.beta) {
        d_strength.rows.push_back(d_write.mul(tokens.residual(before, t)).sum(-1));
        d_write = d_write.mul(tokens.strength[t]);  // now ∂v, and minus ∂(S̄ᵀ k)
        d_k = d_k.sub(over_columns(before, d_write));
        d_state = d_state.sub(as_rows(tokens.key[t]).mul(as_columns(d_write)));
      }
      d_key.rows.push_back(d_k);
      d_value.rows.push_back(d_write.narrow(-1, 0, in.value.size(3)));
      const Tensor d_log = d_state.mul(before);
      if (in.log_key_gate) d_key_gate.rows.push_back(in.log_key_gate->dim() == 3 ? d_log.sum({-2, -1}) : d_log.sum(-1));
      if (in.log_value_gate) d_value_gate.rows.push_back(d_log.sum(-2));
      d_state = tokens.faded(d_state, t);
    }
    checkpoints.pop_back();
  }
  const at::TensorOptions wide = in.query.options().dtype(accumulation_dtype(in.query.scalar_type()));
  return {d_query.as(in.query),
          d_key.as(in.key),
          d_value.as(in.value),
          d_key_gate.as(in.log_key_gate, wide),
          d_value_gate.as(in.log_value_gate, wide),
          d_strength.as(in.beta, wide),
          in.state ? d_state.to(in.state->scalar_type(), false, true) : at::empty({0}, wide)};
}

}  // namespace lethe::portable

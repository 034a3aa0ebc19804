#include "reference/layers/forgetting_layer.hpp"

#include <cmath>

#include "reference/expect.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/layers/head_dim.hpp"
#include "reference/layers/kv_shift.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/layers/sigmoid.hpp"

namespace lethe::reference::layers {
namespace {

// W x for every row x.
template <typename Scalar>
Matrix<Scalar> project(const char* name, const Matrix<Scalar>& input, const Matrix<Scalar>& weight,
                       Eigen::Index outputs) {
  expect_size(name, "rows", outputs, weight.rows());
  expect_size(name, "columns, one a column of the input,", input.cols(), weight.cols());
  return input * weight.transpose();
}

// log f [T, H].
template <typename Scalar>
Matrix<Scalar> log_forget_of(const Matrix<Scalar>& input, const ForgettingLayerWeights<Scalar>& weights,
                             Eigen::Index heads) {
  if (!weights.forget_bias) return Matrix<Scalar>::Zero(input.rows(), heads);
  expect_size("forget_bias", "entries, one a head", heads, weights.forget_bias->size());
  Matrix<Scalar> logits = weights.forget_bias->transpose().replicate(input.rows(), 1);
  if (weights.forget) logits += project("forget", input, *weights.forget, heads);
  return log_sigmoid(logits);
}

}  // namespace

template <typename Scalar>
Matrix<Scalar> forgetting_layer(const Matrix<Scalar>& input, const ForgettingLayerWeights<Scalar>& weights,
                                const ForgettingLayerShape& shape) {
  const Eigen::Index length = input.rows();
  const Eigen::Index width = input.cols();
  const Eigen::Index heads = shape.heads;
  const Eigen::Index head_dim = head_dim_of(width, heads);
  if (weights.forget && !weights.forget_bias) {
    throw std::invalid_argument("forget_bias: expected one beside forget, found none");
  }

  const auto shift = [&](const Matrix<Scalar>& projected, const std::optional<Matrix<Scalar>>& mix) -> Matrix<Scalar> {
    if (!mix) return projected;
    const Vector<Scalar> beginning = Vector<Scalar>::Zero(width);
    return kv_shift(projected, sigmoid(project("shift", input, *mix, heads)), beginning);
  };
  const auto norm = [&](const Matrix<Scalar>& rows, const std::optional<Vector<Scalar>>& weight,
                        double epsilon) -> Matrix<Scalar> {
    return weight ? rms_norm(rows, *weight, heads, static_cast<Scalar>(epsilon)) : rows;
  };
  const auto rotate = [&](const Matrix<Scalar>& rows) -> Matrix<Scalar> {
    return shape.rope_base ? rotary_embedding(rows, heads, *shape.rope_base) : rows;
  };

  const Matrix<Scalar> query =
      rotate(norm(project("query", input, weights.query, width), weights.query_norm, kQkNormEpsilon));
  const Matrix<Scalar> key = rotate(
      norm(shift(project("key", input, weights.key, width), weights.key_shift), weights.key_norm, kQkNormEpsilon));
  const Matrix<Scalar> value = shift(project("value", input, weights.value, width), weights.value_shift);
  const Matrix<Scalar> log_forget = log_forget_of(input, weights, heads);

  Matrix<Scalar> attended(length, width);
  for (Eigen::Index h = 0; h < heads; ++h) {
    const Eigen::Index first = h * head_dim;
    const BasicHead<Scalar> head{query.middleCols(first, head_dim), key.middleCols(first, head_dim),
                                 value.middleCols(first, head_dim), log_forget.col(h),
                                 1 / std::sqrt(static_cast<Scalar>(head_dim))};
    attended.middleCols(first, head_dim) = forgetting_attention::parallel(head).values;
  }

  Matrix<Scalar> gated = norm(attended, weights.output_norm, kNormEpsilon);
  if (weights.output_gate) {
    gated = gated.cwiseProduct(sigmoid(project("output_gate", input, *weights.output_gate, width))).eval();
  }
  return project("output", gated, weights.output, width);
}

template Matrix<double> forgetting_layer(const Matrix<double>&, const ForgettingLayerWeights<double>&,
                                         const ForgettingLayerShape&);
template Matrix<float> forgetting_layer(const Matrix<float>&, const ForgettingLayerWeights<float>&,
                                        const ForgettingLayerShape&);

}  // namespace lethe::reference::layers

#include "reference/gated_linear_attention.hpp"

#include <vector>

#include "reference/attention_norm.hpp"
#include "reference/chunks.hpp"
#include "reference/decay_bias.hpp"

namespace lethe::reference::gated_linear_attention {
namespace {

template <typename Scalar>
void check_gated(const BasicHead<Scalar>& head, Normalized normalized) {
  check_linear(head, normalized);
  expect_size("log_forget", "entries, one a key", head.key.rows(), head.log_forget.size());
  expect_log_gate("log_forget", head.log_forget, head.key.rows(), 1);
}

// F_ij = Π_{j < l ≤ i} f_l, where j = −1 is the position of the initial state.
template <typename Scalar>
class Decay {
 public:
  explicit Decay(const Vector<Scalar>& log_forget) : bias_(with_a_front(log_forget)) {}
  Scalar operator()(Eigen::Index i, Eigen::Index j) const { return std::exp(bias_(i + 1, j + 1)); }

 private:
  static Vector<Scalar> with_a_front(const Vector<Scalar>& log_forget) {
    Vector<Scalar> result = Vector<Scalar>::Zero(log_forget.size() + 1);
    result.tail(log_forget.size()) = log_forget;
    return result;
  }
  DecayBias<Scalar> bias_;
};

template <typename Scalar>
BasicOutput<Scalar> unnormalized_recurrent(const BasicHead<Scalar>& head) {
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    const Eigen::Index row = t - position_of(head, 0);  // of the query at position t; before 0 there is none
    output.state *= std::exp(head.log_forget[t]);
    output.state += head.key.row(t).transpose() * head.value.row(t);
    if (row >= 0) output.values.row(row) = head.scale * head.query.row(row) * output.state;
  }
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> unnormalized_parallel(const BasicHead<Scalar>& head) {
  const Eigen::Index first = position_of(head, 0), last = head.key.rows() - 1;
  const Decay<Scalar> decay(head.log_forget);
  const Matrix<Scalar> initial_state = state_or_zeros(head.initial_state, head);
  Matrix<Scalar> scores = causal<Scalar>(head.scale * head.query * head.key.transpose());  // [Tq,Tk]
  Matrix<Scalar> query = head.scale * head.query, key = head.key;  // as the initial and as the last state see them
  for (Eigen::Index row = 0; row < scores.rows(); ++row) {
    for (Eigen::Index j = 0; j <= first + row; ++j) scores(row, j) *= decay(first + row, j);
    query.row(row) *= decay(first + row, -1);
  }
  for (Eigen::Index j = 0; j <= last; ++j) key.row(j) *= decay(last, j);
  return {.values = scores * head.value + query * initial_state,
          .state = decay(last, -1) * initial_state + key.transpose() * head.value};
}

// Every state, the initial one first. [Tk + 1] of [K,V]
template <typename Scalar>
std::vector<Matrix<Scalar>> every_state(const BasicHead<Scalar>& head) {
  std::vector<Matrix<Scalar>> states{state_or_zeros(head.initial_state, head)};
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    states.push_back(std::exp(head.log_forget[t]) * states.back() + head.key.row(t).transpose() * head.value.row(t));
  }
  return states;
}

// ∂loss/∂(n, d) side by side, for o = n / d. [Tq,V+1]
template <typename Scalar>
Matrix<Scalar> gradient_before_division(const BasicHead<Scalar>& head, const std::vector<Matrix<Scalar>>& states,
                                        const Matrix<Scalar>& values_gradient) {
  const Eigen::Index value_dim = values_gradient.cols();
  Matrix<Scalar> result(values_gradient.rows(), value_dim + 1);
  for (Eigen::Index row = 0; row < result.rows(); ++row) {
    const Matrix<Scalar> sums = head.query.row(row) * states[position_of(head, row) + 1];  // [1,V+1]
    const Scalar weight = expect_weight(sums(0, value_dim), row);
    const auto value = sums.leftCols(value_dim) / weight;
    result.row(row).head(value_dim) = values_gradient.row(row) / weight;
    result(row, value_dim) = -values_gradient.row(row).dot(value.row(0)) / weight;
  }
  return result;
}

template <typename Scalar>
BasicGradients<Scalar> unnormalized_gradients(const BasicHead<Scalar>& head, const std::vector<Matrix<Scalar>>& states,
                                              const Matrix<Scalar>& values_gradient, Matrix<Scalar> state_gradient) {
  BasicGradients<Scalar> gradients;
  gradients.query.resizeLike(head.query);
  gradients.key.resizeLike(head.key);
  gradients.value.resizeLike(head.value);
  gradients.log_forget.resizeLike(head.log_forget);
  // [gradients]
  for (Eigen::Index t = head.key.rows() - 1; t >= 0; --t) {
    if (const Eigen::Index row = t - position_of(head, 0); row >= 0) {
      gradients.query.row(row) = head.scale * values_gradient.row(row) * states[t + 1].transpose();
      state_gradient += head.scale * head.query.row(row).transpose() * values_gradient.row(row);
    }
    gradients.key.row(t) = head.value.row(t) * state_gradient.transpose();
    gradients.value.row(t) = head.key.row(t) * state_gradient;
    state_gradient *= std::exp(head.log_forget[t]);  // now of the state before the write
    gradients.log_forget[t] = state_gradient.cwiseProduct(states[t]).sum();
  }
  // [/gradients]
  gradients.initial_state = state_gradient;
  return gradients;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized) {
  check_gated(head, normalized);
  return normalized_form(head, normalized, unnormalized_recurrent<Scalar>);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized) {
  check_gated(head, normalized);
  return normalized_form(head, normalized, unnormalized_parallel<Scalar>);
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length) {
  check_gated(head, normalized);
  return normalized_form(head, normalized, [=](const BasicHead<Scalar>& whole) {
    return in_chunks(whole, chunk_length, unnormalized_parallel<Scalar>);
  });
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient,
                                 const Vector<Scalar>& normalizer_gradient) {
  check_gated(head, normalized);
  check_output_gradients(head, values_gradient, state_gradient);
  Matrix<Scalar> of_state = state_or_zeros(state_gradient, head);
  if (normalized == Normalized::kNo) return unnormalized_gradients(head, every_state(head), values_gradient, of_state);

  const Eigen::Index value_dim = head.value.cols();
  of_state.conservativeResize(Eigen::NoChange, value_dim + 1);
  of_state.rightCols(1).setZero();
  if (normalizer_gradient.size() > 0) {
    expect_size("normalizer_gradient", "entries, one a column of key", head.key.cols(), normalizer_gradient.size());
    of_state.rightCols(1) = normalizer_gradient;
  }
  const BasicHead<Scalar> whole = with_normalizer_column(head);
  const std::vector<Matrix<Scalar>> states = every_state(whole);
  BasicGradients<Scalar> result =
      unnormalized_gradients(whole, states, gradient_before_division(whole, states, values_gradient), of_state);
  result.initial_normalizer = result.initial_state.rightCols(1);
  result.initial_state = result.initial_state.leftCols(value_dim).eval();
  result.value = result.value.leftCols(value_dim).eval();
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&, Normalized);
template BasicOutput<float> recurrent(const BasicHead<float>&, Normalized);
template BasicOutput<double> parallel(const BasicHead<double>&, Normalized);
template BasicOutput<float> parallel(const BasicHead<float>&, Normalized);
template BasicOutput<double> chunked(const BasicHead<double>&, Normalized, Eigen::Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Normalized, Eigen::Index);
template BasicGradients<double> gradients(const BasicHead<double>&, Normalized, const Matrix<double>&,
                                          const Matrix<double>&, const Vector<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, Normalized, const Matrix<float>&,
                                         const Matrix<float>&, const Vector<float>&);

}  // namespace lethe::reference::gated_linear_attention

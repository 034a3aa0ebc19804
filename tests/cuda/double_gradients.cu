#include "tests/cuda/double_gradients.hpp"

#include <algorithm>
#include <cmath>

#include "tests/cuda/device.hpp"

namespace lethe::testing {
namespace {

constexpr int kThreads = 256;

struct View {
  const double *query, *key, *value, *grad;  // [T, D]
  const double* prefix;                      // Σ_{l ≤ t} log f_l, in which a cut counts as 0
  const int *first, *last;                   // of the keys that a query sees; of the queries that see a key
  double scale;
  int dim;
  double *normalizer, *delta, *column_sums;             // [T]
  double *values, *grad_query, *grad_key, *grad_value;  // [T, D]
};

__device__ double dot(const double* a, const double* b, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ const double* row(const double* tensor, int t, const View& v) { return tensor + int64_t{t} * v.dim; }

__device__ double logit(const View& v, int i, int j) {
  return v.scale * dot(row(v.query, i, v), row(v.key, j, v), v.dim) + v.prefix[i] - v.prefix[j];
}
__device__ double grad_weight(const View& v, int i, int j) { return dot(row(v.grad, i, v), row(v.value, j, v), v.dim); }

__device__ double sum_over_block(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const double total = sums[0];
  __syncthreads();
  return total;
}

// log Σ exp and Σ P dP of query i. The logit of the diagonal keeps the exponentials in range.
__global__ void statistics(View v) {
  const int i = blockIdx.x;
  const double reference = logit(v, i, i);
  double sum = 0, weighted = 0;
  for (int j = v.first[i] + threadIdx.x; j <= i; j += kThreads) {
    const double weight = exp(logit(v, i, j) - reference);
    sum += weight;
    weighted += weight * grad_weight(v, i, j);
  }
  sum = sum_over_block(sum);
  weighted = sum_over_block(weighted);
  if (threadIdx.x == 0) {
    v.normalizer[i] = reference + log(sum);
    v.delta[i] = weighted / sum;
  }
}

// Σ P · `by_weight` and Σ dS · `by_gradient` over a row of pairs, or over a column, [D] each; returns Σ dS. Thread d sums dimension d.
__device__ double weighted_sums(const View& v, bool along_row, int line, int begin, int end, const double* by_weight,
                                const double* by_gradient, double* sum_of_weighted, double* sum_of_gradients) {
  __shared__ double weights[kThreads], gradients[kThreads];
  double weighted = 0, gradient = 0, total = 0;
  for (int at = begin; at < end; at += kThreads) {
    const int other = at + threadIdx.x, i = along_row ? line : other, j = along_row ? other : line;
    const bool inside = other < end;
    weights[threadIdx.x] = inside ? exp(logit(v, i, j) - v.normalizer[i]) : 0;
    gradients[threadIdx.x] = inside ? weights[threadIdx.x] * (grad_weight(v, i, j) - v.delta[i]) : 0;
    total += gradients[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < v.dim) {
      for (int n = 0; n < min(kThreads, end - at); ++n) {
        weighted += weights[n] * row(by_weight, at + n, v)[threadIdx.x];
        gradient += gradients[n] * row(by_gradient, at + n, v)[threadIdx.x];
      }
    }
    __syncthreads();
  }
  if (threadIdx.x < v.dim) {
    sum_of_weighted[int64_t{line} * v.dim + threadIdx.x] = weighted;
    sum_of_gradients[int64_t{line} * v.dim + threadIdx.x] = v.scale * gradient;
  }
  return sum_over_block(total);
}

__global__ void rows(View v) {
  weighted_sums(v, true, blockIdx.x, v.first[blockIdx.x], blockIdx.x + 1, v.value, v.key, v.values, v.grad_query);
}

__global__ void columns(View v) {
  const double sum = weighted_sums(v, false, blockIdx.x, blockIdx.x, v.last[blockIdx.x] + 1, v.grad, v.query,
                                   v.grad_value, v.grad_key);
  if (threadIdx.x == 0) v.column_sums[blockIdx.x] = sum;
}

}  // namespace

DoubleGradients double_gradients(const Problem& problem, const std::vector<double>& grad_values) {
  const int length = int(problem.shape.key_length), dim = int(problem.shape.key_dim);
  std::vector<double> sums(length);
  std::vector<int> first_key(length), last_query(length);
  for (int t = 0; t < length; ++t) {
    const bool cut = std::isinf(problem.log_forget[t]);
    sums[t] = (t > 0 ? sums[t - 1] : 0) + (cut ? 0 : problem.log_forget[t]);
    first_key[t] = cut ? t : t > 0 ? first_key[t - 1] : 0;
  }
  for (int t = length - 1; t >= 0; --t)
    last_query[t] = t + 1 == length || std::isinf(problem.log_forget[t + 1]) ? t : last_query[t + 1];

  const DeviceArray<double> query(problem.query), key(problem.key), value(problem.value), grad(grad_values),
      prefix(sums);
  const DeviceArray<int> first(first_key), last(last_query);
  const size_t elements = size_t(length) * dim;
  const DeviceArray<double> normalizer(length), delta(length), column_sums(length);
  const DeviceArray<double> values(elements), grad_query(elements), grad_key(elements), grad_value(elements);
  const View view{query.data(),  key.data(),        value.data(),    grad.data(),
                  prefix.data(), first.data(),      last.data(),     problem.scale,
                  dim,           normalizer.data(), delta.data(),    column_sums.data(),
                  values.data(), grad_query.data(), grad_key.data(), grad_value.data()};
  statistics<<<length, kThreads>>>(view);
  rows<<<length, kThreads>>>(view);
  columns<<<length, kThreads>>>(view);
  require(cudaGetLastError());
  std::vector<double> gate = column_sums.host();
  double suffix = 0;
  for (int t = length - 1; t >= 0; --t) {
    gate[t] = suffix -= gate[t];
    if (t == 0 || std::isinf(problem.log_forget[t])) gate[t] = 0;
  }
  return {values.host(), grad_query.host(), grad_key.host(), grad_value.host(), gate};
}

}  // namespace lethe::testing

#include "tests/cuda/gate_gradient.hpp"

#include "tests/cuda/device.hpp"

namespace lethe::testing {
namespace {

constexpr int kThreads = 256;

struct View {
  const double *query, *key, *value, *grad, *prefix;  // prefix: Σ_{l ≤ t} log f_l
  double scale;
  int length, key_dim, value_dim;
};

__device__ double dot(const double* a, const double* b, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ double logit(const View& v, int i, int j) {
  return v.scale * dot(v.query + int64_t{i} * v.key_dim, v.key + int64_t{j} * v.key_dim, v.key_dim) + v.prefix[i] -
         v.prefix[j];
}

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

// One CTA a row: log Σ exp and Σ P dP. The logit of the diagonal keeps the exponentials in range.
__global__ void rows(View v, double* normalizer, double* delta) {
  const int i = blockIdx.x;
  const double reference = logit(v, i, i);
  double sum = 0, weighted = 0;
  for (int j = threadIdx.x; j <= i; j += kThreads) {
    const double weight = exp(logit(v, i, j) - reference);
    sum += weight;
    weighted += weight * dot(v.grad + int64_t{i} * v.value_dim, v.value + int64_t{j} * v.value_dim, v.value_dim);
  }
  sum = sum_over_block(sum);
  weighted = sum_over_block(weighted);
  if (threadIdx.x == 0) {
    normalizer[i] = reference + log(sum);
    delta[i] = weighted / sum;
  }
}

__global__ void columns(View v, const double* normalizer, const double* delta, double* column_sums) {
  const int j = blockIdx.x;
  double sum = 0;
  for (int i = j + threadIdx.x; i < v.length; i += kThreads)
    sum += exp(logit(v, i, j) - normalizer[i]) *
           (dot(v.grad + int64_t{i} * v.value_dim, v.value + int64_t{j} * v.value_dim, v.value_dim) - delta[i]);
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) column_sums[j] = sum;
}

}  // namespace

std::vector<double> gate_gradient(const Problem& problem, const std::vector<double>& grad_values) {
  const Shape& s = problem.shape;
  std::vector<double> prefix(problem.log_forget);
  for (size_t t = 1; t < prefix.size(); ++t) prefix[t] += prefix[t - 1];
  const DeviceArray<double> query(problem.query), key(problem.key), value(problem.value), grad(grad_values),
      sums(prefix);
  const DeviceArray<double> normalizer(s.key_length), delta(s.key_length), column_sums(s.key_length);
  const View view{query.data(),  key.data(),        value.data(),   grad.data(),     sums.data(),
                  problem.scale, int(s.key_length), int(s.key_dim), int(s.value_dim)};
  rows<<<s.key_length, kThreads>>>(view, normalizer.data(), delta.data());
  columns<<<s.key_length, kThreads>>>(view, normalizer.data(), delta.data(), column_sums.data());
  require(cudaGetLastError());
  std::vector<double> gradient = column_sums.host();
  double suffix = 0;
  for (size_t t = gradient.size(); t-- > 0;) gradient[t] = suffix -= gradient[t];
  gradient[0] = 0;
  return gradient;
}

}  // namespace lethe::testing

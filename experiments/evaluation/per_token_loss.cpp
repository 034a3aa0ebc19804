#include "experiments/evaluation/per_token_loss.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace lethe {

using torch::Tensor;

double PerTokenLoss::perplexity(int64_t length) const {
  if (length < 1 || std::cmp_greater(length, loss.size())) {
    throw std::invalid_argument("length: expected 1 … " + std::to_string(loss.size()) + ", found " +
                                std::to_string(length));
  }
  return std::exp(std::accumulate(loss.begin(), loss.begin() + length, 0.0) / static_cast<double>(length));
}

std::vector<double> PerTokenLoss::smoothed(int64_t window) const {
  if (window < 1 || window % 2 == 0) {
    throw std::invalid_argument("window: expected an odd number > 0, found " + std::to_string(window));
  }
  const auto length = std::ssize(loss);
  std::vector<double> sums(loss.size() + 1, 0.0);
  std::partial_sum(loss.begin(), loss.end(), sums.begin() + 1);
  std::vector<double> means(loss.size());
  for (std::ptrdiff_t i = 0; i < length; ++i) {
    const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, i - window / 2);
    const std::ptrdiff_t end = std::min<std::ptrdiff_t>(length, i + window / 2 + 1);
    means[i] = (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  return means;
}

PerTokenLoss per_token_loss(LanguageModel& model, const Dataset& dataset, const std::string& split, int64_t length,
                            int64_t sequences) {
  const torch::NoGradGuard no_gradient;
  const int64_t count = std::min(sequences, dataset.sequence_count(split, length));
  if (length < 1 || count < 1) {
    throw std::invalid_argument("length: expected at least one sequence in " + split + ", found " +
                                std::to_string(dataset.tokens(split)) + " tokens for a length of " +
                                std::to_string(length));
  }
  const bool was_training = model->is_training();
  model->eval();
  const int64_t at_once = std::max<int64_t>(1, kEvaluationTokens / length);
  // Sums of deviations from the first batch's mean, so that squares lose no digits.
  Tensor centre, sum = torch::zeros({length}, torch::kFloat64), squares = torch::zeros_like(sum);
  for (int64_t first = 0; first < count; first += at_once) {
    const auto batch = dataset.sequences(split, first, std::min(at_once, count - first), length);
    const Tensor tokens = batch.tokens.to(model->device()), labels = batch.labels.to(model->device());
    const Tensor losses = model->losses(tokens, labels).to(torch::kCPU, torch::kFloat64);  // [n, length]
    if (!centre.defined()) centre = losses.mean(0);
    const Tensor deviations = losses - centre;
    sum += deviations.sum(0);
    squares += deviations.square().sum(0);
  }
  model->train(was_training);

  const auto n = static_cast<double>(count);
  const Tensor mean = centre + sum / n;
  const Tensor error = ((squares - sum.square() / n).clamp_min(0) / (n - 1) / n).sqrt();
  const auto values = [](const Tensor& tensor) {
    return std::vector<double>(tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel());
  };
  return {values(mean), values(error), count};
}

}  // namespace lethe

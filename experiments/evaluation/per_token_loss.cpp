#include "experiments/evaluation/per_token_loss.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "experiments/evaluation/evaluation.hpp"

namespace lethe {

using torch::Tensor;

namespace {

std::vector<int64_t> octaves_of(int64_t length) {
  std::vector<int64_t> last;
  for (int64_t end = 1; end < length; end *= 2) last.push_back(end);
  last.push_back(length);
  return last;
}

// losses [length] of one sequence
std::vector<double> means_of(const Tensor& losses, const std::vector<int64_t>& octaves) {
  std::vector<double> means;
  int64_t begin = 0;
  for (const int64_t end : octaves) {
    means.push_back(losses.slice(0, begin, end).mean().item<double>());
    begin = end;
  }
  return means;
}

}  // namespace

double PerTokenLoss::perplexity(int64_t length) const {
  if (length < 1 || std::cmp_greater(length, loss.size())) {
    throw std::invalid_argument("length: expected 1 … " + std::to_string(loss.size()) + ", found " +
                                std::to_string(length));
  }
  return std::exp(std::accumulate(loss.begin(), loss.begin() + length, 0.0) / static_cast<double>(length));
}

namespace {

void expect_window(int64_t window) {
  if (window < 1 || window % 2 == 0)
    throw std::invalid_argument("window: expected an odd number > 0, found " + std::to_string(window));
}

}  // namespace

std::vector<double> PerTokenLoss::smoothed(int64_t window) const {
  expect_window(window);
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
                            int64_t sequences, const std::function<void(double)>& progress, bool packs_documents) {
  const torch::NoGradGuard no_gradient;
  const int64_t count = Pieces{split, length, sequences}.count(dataset);
  const bool was_training = model->is_training();
  model->eval();
  const int64_t at_once = std::max<int64_t>(1, kEvaluationTokens / length);
  // Sums of deviations from the first batch's mean, so that squares lose no digits to cancellation.
  Tensor centre, sum = torch::zeros({length}, torch::kFloat64), squares = torch::zeros_like(sum);
  PerTokenLoss found{.loss = {}, .standard_error = {}, .sequences = count, .octaves = octaves_of(length)};
  for (int64_t first = 0; first < count; first += at_once) {
    auto batch = dataset.sequences(split, first, std::min(at_once, count - first), length);
    if (packs_documents) batch = dataset.packed(std::move(batch));
    const Tensor tokens = batch.tokens.to(model->device()), labels = batch.labels.to(model->device());
    const Tensor starts = packs_documents ? batch.cu_seqlens.to(model->device()) : Tensor();
    const Tensor losses = model->losses(tokens, labels, starts).to(torch::kCPU, torch::kFloat64);  // [n, length]
    if (!centre.defined()) centre = losses.mean(0);
    const Tensor deviations = losses - centre;
    sum += deviations.sum(0);
    squares += deviations.square().sum(0);
    for (int64_t n = 0; n < losses.size(0); ++n) found.by_octave.push_back(means_of(losses[n], found.octaves));
    if (progress) progress(static_cast<double>(std::min(count, first + at_once)) / static_cast<double>(count));
  }
  model->train(was_training);

  const auto n = static_cast<double>(count);
  const Tensor mean = centre + sum / n;
  const Tensor error = ((squares - sum.square() / n).clamp_min(0) / (n - 1) / n).sqrt();
  const auto values = [](const Tensor& tensor) {
    return std::vector<double>(tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel());
  };
  found.loss = values(mean);
  found.standard_error = values(error);
  return found;
}

int64_t text_bytes(const Dataset& dataset, const std::string& split, int64_t length, int64_t sequences) {
  std::vector<int64_t> bytes_of_token;
  for (int64_t token = 0; token < dataset.vocabulary(); ++token)
    bytes_of_token.push_back(token == dataset.begin_token() ? 0 : std::ssize(dataset.decode({token})));
  const Tensor table = torch::tensor(bytes_of_token);
  const int64_t at_once = std::max<int64_t>(1, kEvaluationTokens / length);
  int64_t bytes = 0;
  for (int64_t first = 0; first < sequences; first += at_once) {
    const auto labels = dataset.sequences(split, first, std::min(at_once, sequences - first), length).labels;
    bytes += table.index_select(0, labels.flatten()).sum().item<int64_t>();
  }
  return bytes;
}

Evaluation per_token_loss_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& settings,
                      const std::function<void(double)>& progress) {
    Pieces pieces;
    int64_t window = 101;
    JsonReader reader(settings, "per_token_loss");
    pieces.read(reader);
    reader("window", window);
    reader.finish();
    expect_window(window);
    const PerTokenLoss found = per_token_loss(model, dataset, pieces.split, pieces.length, pieces.sequences, progress);
    const auto smoothed = found.smoothed(window);
    const auto record = [&](const char* metric, const char* unit, double value) {
      return record_of_model(model, found.sequences, pieces.length, metric, unit, value);
    };
    Evaluated result{{record("loss", "nats", found.mean()), record("perplexity", "1", found.perplexity(pieces.length))},
                     {}};
    const auto add = [&](const char* quantity, auto value_at) {
      for (int64_t i = 1; i <= pieces.length; ++i)
        result.points.push_back({.quantity = quantity, .x = static_cast<double>(i), .value = value_at(i)});
    };
    add("loss_at_position", [&](int64_t i) { return found.loss[i - 1]; });
    add("standard_error_at_position", [&](int64_t i) { return found.standard_error[i - 1]; });
    add("loss_smoothed_at_position", [&](int64_t i) { return smoothed[i - 1]; });
    double sum = 0;
    add("perplexity_at_position",
        [&](int64_t i) { return std::exp((sum += found.loss[i - 1]) / static_cast<double>(i)); });
    for (size_t sequence = 0; sequence < found.by_octave.size(); ++sequence)
      for (size_t octave = 0; octave < found.octaves.size(); ++octave)
        result.points.push_back({.quantity = "loss_of_sequence",
                                 .x = static_cast<double>(found.octaves[octave]),
                                 .y = static_cast<double>(sequence),
                                 .value = found.by_octave[sequence][octave]});
    return result;
  };
  return {"per_token_loss", "L(i), the mean loss of each position in nats, and the perplexity P(l) up to each", run};
}

}  // namespace lethe

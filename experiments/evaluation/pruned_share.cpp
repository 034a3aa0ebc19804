#include "experiments/evaluation/pruned_share.hpp"

#include <any>
#include <cmath>
#include <numeric>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/parallel.hpp"
#include "reference/computation_pruning.hpp"

namespace lethe {
namespace {

namespace pruning = reference::computation_pruning;

/// [T,D] of a float tensor as a matrix of doubles.
Matrix<double> matrix_of(const torch::Tensor& rows) {
  const torch::Tensor wide = rows.to(torch::kCPU, torch::kFloat64).contiguous();
  return Eigen::Map<const Matrix<double>>(wide.data_ptr<double>(), wide.size(0), wide.size(1));
}

/// The share of the causal pairs of a head with D_ij < δ.
double pruned_entries(const Vector<double>& log_forget, double threshold) {
  const int64_t length = log_forget.size();
  const reference::Blocks single{1, 1};
  const auto boundary = pruning::boundary_by_walk(log_forget, length, single, threshold);
  const auto pairs = static_cast<double>(length * (length + 1) / 2);
  return 1.0 - static_cast<double>(pruning::visited_pairs(length, length, single, boundary)) / pairs;
}

/// Fills a record's value, stddev and samples with the mean of independent values and their scatter.
void set_mean(Record& record, const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  record.samples = std::ssize(values);
  record.value = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - record.value) * (value - record.value);
  record.stddev = count < 2 ? 0 : std::sqrt(squares / (count - 1));
}

}  // namespace

LanguageModel with_attention(const LanguageModel& model, const std::function<void(AttentionConfig&)>& change) {
  const torch::NoGradGuard no_gradient;
  ModelConfig config = model->config();
  change(config.mixer.only<AttentionConfig>());
  LanguageModel copy(config, model->device());
  auto weights = copy->named_parameters();
  for (const auto& parameter : model->named_parameters()) weights[parameter.key()].copy_(parameter.value());
  copy->eval();
  return copy;
}

LanguageModel with_tolerance(const LanguageModel& model, std::optional<double> log_tolerance) {
  return with_attention(model, [&](AttentionConfig& attention) { attention.log_pruning_tolerance = log_tolerance; });
}

std::vector<AttentionTrace> traced(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequence,
                                   const std::string& split) {
  const torch::NoGradGuard no_gradient;
  std::vector<std::any> layers;
  model->forward(dataset.sequences(split, sequence, 1, length).tokens.to(model->device()), &layers);
  std::vector<AttentionTrace> traces;
  for (const std::any& layer : layers) traces.push_back(std::any_cast<const AttentionTrace&>(layer));
  return traces;
}

Head traced_head(const AttentionTrace& layer, int64_t head) {
  const auto of_head = [&](const torch::Tensor& tensor) { return matrix_of(tensor.select(2, head).squeeze(0)); };
  const Matrix<double> log_forget = matrix_of(layer.log_forget.select(2, head).squeeze(0).unsqueeze(1));
  return {.query = of_head(layer.query),
          .key = of_head(layer.key),
          .value = of_head(layer.value),
          .log_forget = log_forget.col(0),
          .scale = 1.0 / std::sqrt(static_cast<double>(layer.query.size(3)))};
}

double traced_threshold(const AttentionTrace& layer, int64_t head, double log_tolerance) {
  return pruning::threshold(layer.logit_bound[head].item<double>(), layer.key.size(1), log_tolerance);
}

std::vector<HeadShare> head_shares(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequences,
                                   const std::string& split, const std::function<void(double)>& progress) {
  const auto log_tolerance = model->config().mixer.only<AttentionConfig>().log_pruning_tolerance;
  expect(log_tolerance.has_value(), "log_pruning_tolerance", "a model that prunes", "none");
  const auto [layers, heads] = std::pair(model->config().layers, model->config().heads);
  std::vector<HeadShare> shares(static_cast<size_t>(layers * heads));
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const auto trace = traced(model, dataset, length, sequence, split);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const AttentionTrace& seen = trace[static_cast<size_t>(layer)];
      const double pairs = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
      const Matrix<double> log_forget = matrix_of(seen.log_forget.squeeze(0)), visited = matrix_of(seen.visited_pairs),
                           bounds = matrix_of(seen.logit_bound.unsqueeze(0));
      at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t head = begin; head < end; ++head) {
          HeadShare& share = shares[static_cast<size_t>(layer * heads + head)];
          share.layer = layer;
          share.head = head;
          share.blocks.push_back(1.0 - visited(0, head) / pairs);
          const double threshold = pruning::threshold(bounds(0, head), length, *log_tolerance);
          share.entries.push_back(pruned_entries(log_forget.col(head), threshold));
        }
      });
    }
    if (progress) progress(static_cast<double>(sequence + 1) / static_cast<double>(sequences));
  }
  return shares;
}

std::vector<double> over_heads(const std::vector<HeadShare>& shares, std::vector<double> HeadShare::*kind) {
  std::vector<double> means((shares.front().*kind).size(), 0.0);
  for (const HeadShare& share : shares)
    for (size_t sequence = 0; sequence < means.size(); ++sequence)
      means[sequence] += (share.*kind)[sequence] / static_cast<double>(shares.size());
  return means;
}

Evaluation pruned_share_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& settings,
                      const std::function<void(double)>& progress) {
    Pieces pieces;
    JsonReader reader(settings, "pruned_share");
    pieces.read(reader);
    reader.finish();
    Evaluated result;
    for (const HeadShare& share :
         head_shares(model, dataset, pieces.length, pieces.count(dataset), pieces.split, progress))
      for (const auto& [implementation, values] :
           {std::pair("lethe", share.blocks), std::pair("single pairs", share.entries)}) {
        Record record = record_of_model(model, 1, pieces.length, "pruned_share", "1", 0);
        record.variant = share.name();
        record.implementation = implementation;
        set_mean(record, values);
        result.records.push_back(record);
      }
    return result;
  };
  return {"pruned_share", "Shares of the causal pairs that pruning skips in each head", run};
}

}  // namespace lethe

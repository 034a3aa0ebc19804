#include "experiments/evaluation/evaluation.hpp"

#include <algorithm>
#include <stdexcept>

#include "experiments/listed.hpp"

namespace lethe {

#define LETHE_EVALUATION(name) Evaluation name##_evaluation();
#include "experiments/evaluation/rows.inc"
#undef LETHE_EVALUATION

const std::vector<Evaluation>& evaluations() {
#define LETHE_EVALUATION(name) name##_evaluation(),
  static const std::vector<Evaluation> table = {
#include "experiments/evaluation/rows.inc"
  };
#undef LETHE_EVALUATION
  return table;
}

const Evaluation& evaluation_named(const std::string& name) {
  for (const Evaluation& row : evaluations())
    if (row.name == name) return row;
  throw std::invalid_argument("evaluation: expected one of " + listed(evaluations(), &Evaluation::name) + ", found " +
                              name);
}

double Evaluated::value(const std::string& metric) const {
  const auto is_it = [&](const Record& record) { return record.metric == metric; };
  if (const auto found = std::ranges::count_if(records, is_it); found != 1)
    throw std::invalid_argument("metric: expected one record of " + metric + ", found " + std::to_string(found));
  return std::ranges::find_if(records, is_it)->value;
}

std::vector<double> Evaluated::curve(const std::string& quantity) const {
  std::vector<double> values;
  for (const Point& point : points)
    if (point.quantity == quantity) values.push_back(point.value);
  return values;
}

int64_t Pieces::count(const Dataset& dataset) const {
  const int64_t count = length < 1 ? 0 : std::min(sequences, dataset.sequence_count(split, length));
  if (count < 1)
    throw std::invalid_argument("length: expected at least one sequence in " + split + ", found " +
                                std::to_string(dataset.tokens(split)) + " tokens for a length of " +
                                std::to_string(length));
  return count;
}

Record record_of_model(const LanguageModel& model, int64_t sequences, int64_t length, const std::string& metric,
                       const std::string& unit, double value) {
  const ModelConfig& config = model->config();
  return {.implementation = "lethe",
          .device = model->device().str(),
          .dtype = config.compute_dtype,
          .batch = sequences,
          .length = length,
          .heads = config.heads,
          .key_dim = config.head_dim(),
          .value_dim = config.head_dim(),
          .metric = metric,
          .unit = unit,
          .value = value,
          .samples = sequences};
}

}  // namespace lethe

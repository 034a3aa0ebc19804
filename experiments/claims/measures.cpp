#include "experiments/claims/measures.hpp"

namespace lethe {

Evaluated evaluate(const Study& study, LanguageModel& model, int64_t length) {
  return evaluate(study, model, length, study.settings.at("evaluation").at("tokens").get<int64_t>() / length);
}

Evaluated evaluate(const Study& study, LanguageModel& model, int64_t length, int64_t sequences) {
  return evaluation_named("per_token_loss")
      .run(model, study.dataset, {{"length", length}, {"sequences", sequences}}, {});
}

std::vector<Point> loss_curve(const Run& run, const Evaluated& found) {
  std::vector<Point> curve;
  for (const Point& point : found.points) {
    if (point.quantity != "loss_at_position") continue;
    curve.push_back(point);
    curve.back().variant = run.label;
    curve.back().seed = run.training.seed;
  }
  return curve;
}

std::vector<Record> records_of(const Study& study, const Run& run, const Evaluated& found) {
  std::vector<Record> records = found.records;
  for (Record& record : records) {
    record.experiment = study.experiment.paper;
    record.claim = study.experiment.claim;
    record.device = run.training.device;
    record.seed = run.training.seed;
    if (record.variant.empty()) record.variant = run.label;
  }
  return records;
}

}  // namespace lethe

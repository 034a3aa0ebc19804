#pragma once
// The runs of a claim, computed from its settings, and the columns of a record, filled from a run.

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// One run of a scale: the switches of `architecture`, sized by settings["model"], trained by settings["training"].
///
/// reads   settings: members of ModelConfig under "model", of TrainingConfig under "training"; vocabulary, of the data set
Run make_run(const std::string& label, const ModelConfig& architecture, const nlohmann::json& settings,
             int64_t vocabulary, uint64_t seed);

/// A named architecture without a size: a row of a paper's table.
struct Row {
  std::string name;
  ModelConfig architecture;
};

/// "label, context T, seed S"
std::string described(const Run& run);

/// Runs of a row with the seeds 0 … count − 1.
std::vector<Run> runs_of(const Row& row, const nlohmann::json& settings, int64_t vocabulary, int64_t seeds);

/// The seeds of a row: settings["row_seeds"][row], else settings["row_seeds"]["others"], else `otherwise`. With 0 the scale doesn't train the row.
int64_t seeds_of(const nlohmann::json& settings, const std::string& row, int64_t otherwise);

/// "row at T": a row by its training context.
std::string row_at(const std::string& row, int64_t context);

/// The seeds of a row at a training context: settings["row_seeds"][row_at(row, context)], else `otherwise`.
int64_t seeds_at(const nlohmann::json& settings, const std::string& row, int64_t context, int64_t otherwise);

/// A record of a run with its key columns filled: batch and length of the measurement, heads and dimensions of the model.
Record record_of(const Experiment& experiment, const Run& run, int64_t batch, int64_t length, const std::string& metric,
                 const std::string& unit, double value);

/// Fills artefact, commit and machine of the records: of the run that a record names as its artefact, else of that which has its variant, seed and
/// length as far as the runs differ in them, from its done.json. What no single run made keeps its columns.
void fill_origins(std::vector<Record>& records, const std::vector<Artefact>& trained);

/// The loss after every step of a run's training, as points over tokens.
std::vector<Point> training_curve(const Run& run, const Artefact& artefact);

/// The paper's own number of a row.
///
/// throws  std::invalid_argument where paper.csv has none or several of that variant and metric
double paper_value(const Study& study, const std::string& variant, const std::string& metric);

}  // namespace lethe

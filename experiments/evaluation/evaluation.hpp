#pragma once
// The table of measurements of a trained model on a data set: one row each, called by `lethe evaluate` and by the claims.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/json_members.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/record.hpp"

namespace lethe {

/// The findings of an evaluation, in the columns of every record; the caller fills experiment, claim and seed.
struct Evaluated {
  std::vector<Record> records;
  /// Curves. A quantity "loss_at_position" is the loss over the position; quantities of one x have the same x. Points with a y are raw: of
  /// a repeat y, or entries of a matrix.
  std::vector<Point> points;
  std::vector<std::string> notes = {};  ///< lines for people, e.g. what could not be measured, and why

  /// The value of a metric that has one record.
  ///
  /// throws  std::invalid_argument where no record or several have that metric
  double value(const std::string& metric) const;
  /// The values of a quantity in the order of its points.
  std::vector<double> curve(const std::string& quantity) const;
};

/// A row: one measurement of a model.
struct Evaluation {
  std::string name;   ///< "per_token_loss"
  std::string title;  ///< "L(i), the loss of each position"

  /// Measures `model` on `dataset`, without gradients and in evaluation mode; the model's mode is restored.
  ///
  /// reads   settings: the row's members, Pieces among them; progress: called with the share that is done, may be empty
  /// throws  std::invalid_argument "name: expected …, found …" for a key that the row doesn't read, a value of another type, a split
  ///         without one piece of that length, or a model that the row can't measure
  Evaluated (*run)(LanguageModel& model, const Dataset& dataset, const nlohmann::json& settings,
                   const std::function<void(double)>& progress);

  int version = 1;  ///< raised where its numbers change

  /// Of a row that reads something else than Pieces: its settings in the command, for models trained on sequences of that length.
  nlohmann::json (*own_settings)(int64_t training_length) = nullptr;
};

/// All evaluations, in the order of the CMake file.
const std::vector<Evaluation>& evaluations();

/// The row of that name.
///
/// throws  std::invalid_argument naming the existing rows
const Evaluation& evaluation_named(const std::string& name);

/// The text of an evaluation: the first `sequences` pieces of `length` tokens of a split.
struct Pieces {
  std::string split = "valid";
  int64_t length = 0;
  int64_t sequences = 64;  ///< at most

  void read(JsonReader& reader) {
    reader("split", split);
    reader("length", length);
    reader("sequences", sequences);
  }

  /// The number of these pieces in the data set, at most `sequences`.
  ///
  /// throws  std::invalid_argument where it has none
  int64_t count(const Dataset& dataset) const;
};

/// A record of `sequences` pieces of `length` tokens with the model's columns filled.
Record record_of_model(const LanguageModel& model, int64_t sequences, int64_t length, const std::string& metric,
                       const std::string& unit, double value);

}  // namespace lethe

#pragma once
// The raw measurements of an evaluation, on disk as they are made: an interrupted call goes on after them.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// A file of JSON lines: the first says what was measured, each other is a measurement and has the members `key`, which no two share.
///
/// A line is appended at once, with all its bytes. What a killed call left of its last line is removed by the next call.
class Journal {
 public:
  /// Reads the measurements of an earlier call, or begins a file.
  ///
  /// reads    path: empty: nothing is written; about: what is measured, see about_measuring
  /// throws   std::invalid_argument "<path>: expected …, found …" for a file of something else or a damaged line, with its number;
  ///          std::runtime_error naming the file where it can't be written, or another call writes it
  Journal(const std::filesystem::path& path, const nlohmann::json& about, std::vector<std::string> key);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// The measurement with those members, or null.
  const nlohmann::json* find(const nlohmann::json& key) const;

  /// Keeps a measurement and appends it to the file. A number that isn't finite is null there.
  void add(const nlohmann::json& measurement);

 private:
  std::string key_of(const nlohmann::json& measurement) const;
  void read(const std::filesystem::path& path, const nlohmann::json& about);

  std::filesystem::path path_;
  std::vector<std::string> key_;
  std::map<std::string, nlohmann::json> measurements_;
  int descriptor_ = -1;
};

/// The first line of a journal: evaluation and version, the settings but for `raw`, the hash of the weights, that of the data.
nlohmann::json about_measuring(const std::string& evaluation, int version, nlohmann::json settings,
                               const LanguageModel& model, const Dataset& dataset);

}  // namespace lethe

#pragma once
// log.jsonl: exactly one line for each step that the weights have seen.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace lethe {

/// A place between two lines, and all lines before it: h_n = SHA-256(h_{n−1} line_n), h_0 empty.
struct LogPosition {
  int64_t bytes = 0;
  std::string hash = {};
};

void to_json(nlohmann::json& json, const LogPosition& position);
void from_json(const nlohmann::json& json, LogPosition& position);

/// The log of a training in progress. Its memory doesn't grow with the steps.
class TrainingLog {
 public:
  /// Goes on at a position: lines after it, of steps that will be repeated, are dropped.
  ///
  /// throws  std::runtime_error naming the file where the lines before it are not those of the position
  TrainingLog(std::filesystem::path path, const LogPosition& at);

  void append(const nlohmann::json& line);

  /// Waits for the disk.
  ///
  /// returns  the position after the last line
  LogPosition sync();

  double seconds() const { return seconds_; }  ///< of training, of the last line; 0 without one
  double last_losses() const;                  ///< the mean of the last 20 lines; NaN without one

 private:
  void remember(const nlohmann::json& line);

  std::filesystem::path path_;
  LogPosition position_;
  std::deque<double> losses_;
  double seconds_ = 0;
  std::ofstream file_;
};

/// Compares the log of a training that is not finished with its newest checkpoint; what follows that place is not known. A
/// training that goes on meanwhile appends alone.
///
/// throws  std::runtime_error naming the log where its beginning is not that of the checkpoint, or an unusable checkpoint
void expect_log_of_checkpoint(const std::filesystem::path& folder);

/// The last line of a log with a step and a loss, from the file's last kilobytes: the log of a long training is long.
///
/// returns  an empty object where there is none
nlohmann::json last_logged(const std::filesystem::path& folder);

/// The lines of a log, in order. They are compared with done.json first, or with the checkpoint of a training that is not
/// finished, whose last line may be missing.
///
/// throws  std::invalid_argument, std::runtime_error naming the file that is broken
void read_log(const std::filesystem::path& folder, const std::function<void(const nlohmann::json& line)>& visit);

}  // namespace lethe

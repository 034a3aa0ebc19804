#pragma once
// The options that describe a run, the same for every subcommand that takes one.

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// Members of a run by name, as people type them: their name in ModelConfig, in the options of its mixers, where each that has
/// it takes it, or in TrainingConfig, and a value.
using Members = std::vector<std::pair<std::string, std::string>>;

/// `run` with these members set, then those of `settings`, each "key=value".
///
/// throws  std::invalid_argument for an unknown member, or a value of the wrong type
Run with_members(Run run, const Members& members, const std::vector<std::string>& settings);

/// A run from a file, from a named architecture and size, and from single members set over them, in this order.
class RunOptions {
 public:
  /// Adds run.json, --architecture, --size, --label, an option for each member that is set often, and --set key=value.
  void add_to(CLI::App& command);

  /// The run that the options describe; its vocabulary is that of its tokenizer unless it was set.
  ///
  /// throws  std::invalid_argument for an unknown name or member, a value of the wrong type, or a run that can't be
  Run run() const;

 private:
  std::string file_, architecture_, size_, label_;
  Members members_;                    // of the named options
  std::vector<std::string> settings_;  // key=value
};

}  // namespace lethe

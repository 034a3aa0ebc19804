#pragma once
// The options of a run, the same for every subcommand that reads one.

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// Members of a run by name, as users type them: a name in ModelConfig, in the options of its mixers (every mixer with that option
/// is set) or in TrainingConfig, and a value.
using Members = std::vector<std::pair<std::string, std::string>>;

/// `run` with these members set, then those of `settings`, each "key=value".
///
/// throws  std::invalid_argument for an unknown member, or a value of the wrong type
Run with_members(Run run, const Members& members, const std::vector<std::string>& settings);

/// A run from a file, from a named architecture and size, and from single members set over them, in this order.
class RunOptions {
 public:
  /// Adds the input (a corpus or a run.json), --architecture, --size, --label, options for the members that are set often, and --set key=value.
  void add_to(CLI::App& command);

  /// The settings of --set by group, each with its type and default: the end of a command's help.
  static std::string settings();

  /// The run of the options; its vocabulary is that of its tokenizer unless it was set. Members that were not set follow from those that were, see
  /// defaults.hpp.
  ///
  /// reads   dataset: the prepared corpus, which lengths follow; null: not yet known
  ///         base: the run that the options change, in place of the default run; null: none
  /// throws  std::invalid_argument for an unknown name or member, a value of the wrong type, or an invalid run
  Run run(const Dataset* dataset = nullptr, const Run* base = nullptr) const;

  /// Whether the call names a corpus.
  bool names_corpus() const;

 private:
  std::string run_file() const;         // the input where it is a run, else empty
  std::set<std::string> given() const;  // the members that were set

  std::string input_, architecture_, size_, label_;
  Members members_;                    // set by the named options
  std::vector<std::string> settings_;  // key=value
};

}  // namespace lethe

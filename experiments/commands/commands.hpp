#pragma once
// The subcommands of lethe: each adds itself to the command line, and runs after the command line has been parsed.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// Options that all subcommands share.
struct Place {
  std::filesystem::path root;  ///< the working folder: artefacts/ with data, models and results
  std::string command_line;    ///< for the birth certificates of results
  int threads = 0;             ///< Torch's limit; 0: Torch's own choice

  std::filesystem::path data() const { return root / "artefacts" / "data"; }
  std::filesystem::path models() const { return root / "artefacts" / "models"; }
  std::filesystem::path results() const { return root / "artefacts" / "results"; }
  /// The claims and their configurations (experiments/papers), and the measurements that they judge: below the root where it is a
  /// checkout, else those that this program was built from.
  std::filesystem::path suite() const {
    return std::filesystem::exists(root / "experiments" / "papers") ? root : std::filesystem::path(LETHE_ROOT);
  }
};

/// Adds --scale, of the commands that read config.toml of the claims.
void add_scale(CLI::App& command, std::string& scale);
/// Adds --corpus, of the commands that can put claims on another text.
void add_corpus(CLI::App& command, std::string& corpus);

/// What claims call the corpus that was given, "" for their own: a path below the root by its way from there, whatever folder it was given from, so
/// that other machines call it alike; another path whole.
///
/// throws  std::invalid_argument where one of the claims trains on no text
std::string corpus_of(const std::string& given, const std::vector<Experiment>& selected, const std::string& scale,
                      const Place& place);

/// Adds the claims that a command works on: paper/claim, paper or claim; none: all.
void add_claims(CLI::App& command, std::vector<std::string>& claims);

// Errors are thrown, see main(): std::invalid_argument for a wrong call, any other exception for a failed run.
void add_list(CLI::App& app, const Place& place);
void add_run(CLI::App& app, const Place& place);
void add_judge(CLI::App& app, const Place& place);
void add_report(CLI::App& app, const Place& place);
void add_plot(CLI::App& app, const Place& place);
void add_train(CLI::App& app, const Place& place);
void add_convert(CLI::App& app, const Place& place);
void add_evaluate(CLI::App& app, const Place& place);
void add_export(CLI::App& app, const Place& place);
void add_generate(CLI::App& app, const Place& place);
void add_describe(CLI::App& app, const Place& place);
void add_bench(CLI::App& app, const Place& place);
void add_data(CLI::App& app, const Place& place);
void add_bundle(CLI::App& app, const Place& place);

}  // namespace lethe

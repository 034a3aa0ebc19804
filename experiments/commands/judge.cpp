#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "experiments/claims/judging.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/commands/bundle.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/folders.hpp"

namespace lethe {
namespace {

struct JudgeOptions {
  std::vector<std::string> experiments, bundles;
  std::string scale = "quick", corpus, results;
};

/// results/raw/<scale>-*.tar.xz of the checkout.
std::vector<std::string> committed_bundles(const Place& place, const std::string& scale) {
  std::vector<std::string> found;
  const std::filesystem::path raw = place.suite() / "results" / "raw";
  if (std::filesystem::is_directory(raw))
    for (const auto& entry : std::filesystem::directory_iterator(raw))
      if (const std::string name = entry.path().filename(); name.starts_with(scale + "-") && name.ends_with(".tar.xz"))
        found.push_back(entry.path());
  std::ranges::sort(found);
  if (found.empty())
    throw std::invalid_argument("bundles: expected " + (raw / (scale + "-NAME.tar.xz")).string() +
                                ", or some by --from, found none (lethe bundle --to writes one after lethe run)");
  return found;
}

void print(const Judged& judged) {
  if (!judged.lacks.empty()) {
    std::printf("%s: not judged: %s\n", judged.experiment.claim.c_str(), judged.lacks.c_str());
    return;
  }
  std::printf("%s: %s\n", judged.experiment.claim.c_str(), to_string(overall(judged.comparisons)).c_str());
  if (!judged.not_run.empty()) {
    std::printf("  not run yet:");
    for (const std::string& run : judged.not_run)
      std::printf("%s %s", &run == &judged.not_run.front() ? "" : ";", run.c_str());
    std::printf("\n");
  }
  for (const Comparison& c : judged.comparisons) {
    std::printf("  %-40s %s%s", to_string(c.verdict()).c_str(), c.headline ? "* " : "  ", c.statement.c_str());
    if (std::isfinite(c.measured)) std::printf(": %.4g ± %.2g %s", c.measured, c.band, c.unit.c_str());
    if (c.control) std::printf(" (%s: %.4g)", c.control->what.c_str(), c.control->measured);
    if (c.verdict() == Verdict::kInconclusive && !c.no_refutation.empty()) std::printf("; %s", c.no_refutation.c_str());
    for (const std::string& reason : {c.out_of_reach, c.open, c.lacks(), c.note})
      if (!reason.empty()) std::printf("; %s", reason.c_str());
    std::printf("\n");
  }
}

void judge_bundles(const JudgeOptions& options, const Place& place) {
  const auto selected = select_experiments(options.experiments);
  const std::string corpus = corpus_of(options.corpus, selected, options.scale, place);
  const ScratchFolder scratch;
  import_bundles(options.bundles.empty() ? committed_bundles(place, options.scale) : options.bundles, scratch.path());
  Context context;
  context.scale = options.scale;
  context.corpus = corpus;
  context.root = place.suite();
  context.results = (options.results.empty() ? place.results() : std::filesystem::absolute(options.results)) /
                    folder_of(scratch.path(), options.scale, corpus);
  expect_folder_to_write("results", context.results);
  context.threads = place.threads;
  context.command_line = place.command_line;
  for (const Judged& judged : judge_experiments(selected, context, scratch.path())) print(judged);
  std::printf("%s\n", context.results.c_str());
}

}  // namespace

void add_judge(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("judge", "Judge claims again from the raw numbers of bundles");
  auto options = std::make_shared<JudgeOptions>();
  add_claims(*command, options->experiments);
  command->add_option("--from", options->bundles, "Bundles")
      ->check(existing_file())
      ->default_str("results/raw/SCALE-*.tar.xz");
  add_scale(*command, options->scale);
  add_corpus(*command, options->corpus);
  command->add_option("--results", options->results, "The folder of results, one folder a machine below it")
      ->default_str("artefacts/results");
  command->footer(
      "The rules are those of this program; the numbers those that the models' machines measured. A line begins with "
      "the\n"
      "verdict; * is a headline. Neither corpus nor weights are needed.\n"
      "Examples:\n"
      "  lethe judge --scale gpu\n"
      "  lethe judge savings --scale gpu --from first.tar.xz second.tar.xz");
  command->callback([options, &place] { judge_bundles(*options, place); });
}

}  // namespace lethe

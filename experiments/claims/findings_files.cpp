#include "experiments/claims/findings_files.hpp"

#include "experiments/claims/runs.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {
namespace {

/// Why a statement that a machine can change is open, and what would decide it.
std::string undecided_words(const std::string& why, const Comparison& comparison) {
  const Verdict here = comparison.verdict();
  if (here == Verdict::kOutOfReach) return why;
  if (here != Verdict::kInconclusive)
    return why + "; here its band has a verdict, and from one machine no number of runs follows that decides it on all";
  return all_notes({why, comparison.open.empty() ? comparison.lacks() : comparison.open});
}

}  // namespace

void say_what_settings_say(const nlohmann::json& settings, std::vector<Comparison>& comparisons) {
  const std::string changed = settings.value("changed_after_a_run", "");
  const auto undecided = settings.value("undecided", nlohmann::json::object());
  for (Comparison& comparison : comparisons) {
    comparison.note = all_notes({comparison.note, changed});
    if (undecided.contains(comparison.statement))
      comparison.open = undecided_words(undecided.at(comparison.statement).get<std::string>(), comparison);
  }
}

void write_findings(const Study& study, Findings findings, const Context& context, const nlohmann::json& dataset,
                    const std::string& key, const std::vector<std::string>& not_run) {
  fill_origins(findings.records, study.trained);
  say_what_settings_say(study.settings, findings.comparisons);
  nlohmann::json runs = nlohmann::json::array();
  for (const Artefact& artefact : study.trained) {
    const auto done = read_sealed(artefact.folder / "done.json");
    runs.push_back({{"label", artefact.run.label},
                    {"seed", artefact.run.training.seed},
                    {"artefact", artefact.folder.filename()},
                    {"commit", done.at("commit")},
                    {"dirty", done.at("dirty")},
                    {"weights_sha256", done.value("weights_sha256", "unknown")}});
    if (done.at("commit") == "unknown" && done.contains("built")) runs.back()["built"] = done["built"];
  }
  const std::filesystem::path base = context.results / study.experiment.claim;
  if (!findings.points.empty()) write_points(base.string() + ".points.csv", findings.points);
  nlohmann::json details = {{"experiment", study.experiment.paper},
                            {"claim", study.experiment.claim},
                            {"title", claim_title(context.root, study.experiment)},
                            {"scale", context.scale},
                            {"threads", context.threads},
                            {"settings", study.settings},
                            {"dataset", dataset},
                            {"runs", runs},
                            {"comparisons", findings.comparisons},
                            {"verdict", to_string(overall(findings.comparisons))},
                            {"key", key}};
  if (!context.corpus.empty()) details["corpus"] = context.corpus;  // in place of the claim's own
  if (!not_run.empty()) details["not_run"] = not_run;
  write_records(base, findings.records, context.command_line, details);
}

}  // namespace lethe

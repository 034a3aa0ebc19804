#include "experiments/claims/judging.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "experiments/claims/findings_files.hpp"
#include "experiments/claims/runs.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"
#include "experiments/training/stored_artefact.hpp"

namespace lethe {
namespace {

/// What the runs of a claim need of their data.
struct Text {
  std::string hash;
  int64_t vocabulary = 0;
};
// By corpus and tokenizer: several where a corpus of one name had several contents.
using Texts = std::map<std::pair<std::string, std::string>, std::vector<Text>>;

std::vector<std::filesystem::path> folders_below(const std::filesystem::path& models) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(models)) folders.push_back(entry.path());
  std::ranges::sort(folders);
  return folders;
}

Texts texts_of(const std::filesystem::path& models) {
  Texts texts;
  for (const auto& folder : folders_below(models)) {
    const StoredArtefact stored = read_artefact(folder);
    if (!stored.broken.empty()) throw std::runtime_error(stored.broken);
    const Text text{stored.done.at("data"), stored.run.model.vocabulary};
    auto& known = texts[{stored.run.training.corpus, stored.run.training.tokenizer}];
    if (std::ranges::count(known, text.hash, &Text::hash) == 0) known.push_back(text);
  }
  return texts;
}

/// The claim's models of a text that have run, from the artefacts; `not_run` gets the others.
std::vector<Artefact> artefacts_on(const Text& text, const Experiment& experiment, const nlohmann::json& settings,
                                   const std::filesystem::path& models, std::vector<Run>& not_run) {
  std::vector<Artefact> artefacts;
  for (const Run& run : experiment.runs(settings, text.vocabulary)) {
    const auto folder = models / artefact_name(run, text.hash);
    if (is_finished(folder)) artefacts.push_back({folder, run});
    else not_run.push_back(run);
  }
  return artefacts;
}

/// The same of the text on which most have run; with settings["content"] of that text alone.
///
/// throws  std::invalid_argument where none has
std::vector<Artefact> artefacts_of(const Experiment& experiment, const nlohmann::json& settings, const Texts& texts,
                                   const std::filesystem::path& models, nlohmann::json& dataset,
                                   std::vector<Run>& not_run) {
  const std::string corpus = settings["training"].at("corpus"), tokenizer = settings["training"].at("tokenizer");
  const auto of_corpus = texts.find({corpus, tokenizer});
  if (of_corpus == texts.end()) throw std::invalid_argument("expected models of " + corpus + ", found none");
  const std::string content = settings.value("content", "");
  if (!content.empty() && std::ranges::count(of_corpus->second, content, &Text::hash) == 0)
    throw std::invalid_argument(corpus + ": expected models of the dataset " + content +
                                " of the corpus's index in experiments/data, found those of " +
                                listed(of_corpus->second, &Text::hash));
  std::vector<Artefact> artefacts;
  for (const Text& text : of_corpus->second) {
    if (!content.empty() && text.hash != content) continue;
    std::vector<Run> others;
    auto found = artefacts_on(text, experiment, settings, models, others);
    if (!dataset.is_null() && found.size() <= artefacts.size()) continue;
    artefacts = std::move(found), not_run = std::move(others);
    dataset = {{"name", std::filesystem::path(corpus).filename()}, {"content", text.hash}};
  }
  if (artefacts.empty())
    throw std::invalid_argument("expected one of " + std::to_string(not_run.size()) + " runs, the first " +
                                described(not_run.front()) + ", found none");
  return artefacts;
}

/// A statement on a row that has not run yet is open, not out of reach.
///
/// returns  whether one needs none of these rows, or there is no statement
bool keep_open(std::vector<Comparison>& comparisons, const std::vector<Run>& not_run) {
  bool others = comparisons.empty();
  for (Comparison& comparison : comparisons) {
    const bool absent = std::ranges::count(not_run, comparison.absent_row, &Run::label) > 0;
    others |= !absent;
    if (!absent) continue;
    comparison.out_of_reach.clear();
    comparison.open = comparison.absent_row + " has not run yet";
  }
  return others;
}

/// The findings by one training of each run. Where several made it, each with its own weights, a claim takes all of its numbers from the first that
/// was asked for all of them. A run of which none was is left out, and is one more of those that have not run.
///
/// throws  NotMeasured where no run is left
Findings measure_one_training_of_each(Study& study, std::vector<Run>& not_run) {
  std::vector<std::vector<std::filesystem::path>> others;  // not tried yet, and the first at the end
  for (const Artefact& artefact : study.trained) {
    others.push_back(other_trainings(artefact.folder));
    if (!others.back().empty()) others.back().push_back(artefact.folder);
  }
  const auto try_others = [&] {
    bool has_other = false;
    for (size_t a = 0; a < others.size(); ++a) {
      if (others[a].empty() || std::ranges::count(study.absent, study.trained[a].folder) == 0) continue;
      study.trained[a].folder = others[a].front();
      others[a].erase(others[a].begin());
      has_other = true;
    }
    study.absent.clear();
    return has_other;
  };
  const auto leave_out = [&](const std::vector<std::filesystem::path>& absent) {
    for (size_t a = study.trained.size(); a-- > 0;) {
      if (std::ranges::count(absent, study.trained[a].folder) == 0) continue;
      not_run.push_back(study.trained[a].run);
      study.trained.erase(study.trained.begin() + static_cast<ptrdiff_t>(a));
      others.erase(others.begin() + static_cast<ptrdiff_t>(a));
    }
    return !study.trained.empty();
  };
  while (true) {
    try {
      Findings findings = study.experiment.measure(study);
      if (!try_others()) return findings;
    } catch (const NotMeasured&) {
      const auto absent = study.absent;
      if (!try_others() && !leave_out(absent)) throw;
    }
  }
}

Judged judge_one(const Experiment& experiment, const Context& context, const std::filesystem::path& models,
                 const Texts& texts) {
  Judged judged{experiment, {}, {}, {}};
  nlohmann::json settings = claim_settings(context.root, experiment, context.scale, context.corpus);
  settings.erase("cost");
  const Dataset no_text;
  nlohmann::json dataset;
  std::vector<Run> not_run;
  Study study{.experiment = experiment,
              .settings = settings,
              .dataset = no_text,
              .data = {},
              .paper = read_paper(claim_folder(context.root, experiment) / "paper.csv"),
              .trained = {},
              .progress = [](double) {},
              .makes = false};
  try {
    if (settings.contains("data")) {
      study.data = context.root / settings["data"].get<std::string>();
      if (std::filesystem::exists(study.data))
        dataset = {{"name", settings["data"]}, {"content", sha256(read_whole(study.data))}};
    } else if (settings.contains("training")) {
      study.trained = artefacts_of(experiment, settings, texts, models, dataset, not_run);
    } else {
      throw std::invalid_argument("it measures the machine that it runs on: lethe run " + experiment.claim);
    }
    Findings findings = measure_one_training_of_each(study, not_run);
    if (!study.data.empty() && findings.records.empty())
      throw std::invalid_argument("expected measurements in " + settings["data"].get<std::string>() + ", found none");
    if (!keep_open(findings.comparisons, not_run))
      throw std::invalid_argument("expected the runs of a statement, found those of none; not run: " +
                                  described(not_run.front()));
    judged.comparisons = findings.comparisons;
    for (const Run& run : not_run) judged.not_run.push_back(described(run));
    write_findings(study, findings, context, dataset, "", judged.not_run);
  } catch (const NotMeasured&) {
    judged.lacks = "a measurement that it asks for is absent";
  } catch (const std::invalid_argument& error) {
    judged.lacks = error.what();
  } catch (const nlohmann::json::exception&) {
    judged.lacks = "expected the members that lethe writes, found one absent or another";
  }
  return judged;
}

}  // namespace

std::string folder_of(const std::filesystem::path& models, const std::string& scale, const std::string& corpus) {
  const auto folders = folders_below(models);
  if (folders.empty()) throw std::invalid_argument(models.string() + ": expected a model, found none");
  const nlohmann::json machine = read_sealed(folders.front() / "done.json").at("machine");
  return with_hyphens(machine.contains("gpu") ? machine["gpu"].at("name") : machine.at("name")) +
         suffix_of(scale, corpus);
}

std::vector<Judged> judge_experiments(const std::vector<Experiment>& selected, const Context& context,
                                      const std::filesystem::path& models) {
  const Texts texts = texts_of(models);
  std::vector<Judged> all;
  for (const Experiment& experiment : selected) all.push_back(judge_one(experiment, context, models, texts));
  return all;
}

}  // namespace lethe

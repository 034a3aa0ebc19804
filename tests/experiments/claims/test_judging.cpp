// Claims judged by a part of their runs, or by one of several trainings of a run, and trained and measured in part.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/judging.hpp"
#include "experiments/claims/runs.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

const char* kColumns =
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,"
    "stddev,samples,source,comparability\n";

/// One step of training of a row; rows differ in their seeds.
lethe::Run run_of(const std::string& row, uint64_t seed, const nlohmann::json& settings) {
  lethe::Run run = tiny_run();
  run.label = row;
  run.training.total_tokens = run.training.batch_tokens;
  run.training.warmup_tokens = 0;
  run.training.corpus = settings.at("training").at("corpus");
  run.training.seed = seed;
  return run;
}

std::vector<lethe::Run> trained_and_absent(const nlohmann::json& settings, int64_t) {
  return {run_of("trained", 0, settings), run_of("absent", 1, settings)};
}

/// The numbers of the rows that there are: a model's is 1.
Measurements numbers(const Study& study) {
  Measurements found;
  study.each([&](const Artefact& model) {
    for (const uint64_t seed : {0, 1, 2}) found.add(model.run.label, seed, 1);
  });
  return found;
}

Comparison headline(Comparison comparison) {
  comparison.headline = true;
  return comparison;
}

Comparison on_both(const Measurements& found) {
  return headline(found.compare("both", {{"trained", 1}, {"absent", -1}}, Expectation::positive()));
}

Findings measure_both(const Study& study) { return {{}, {}, {on_both(numbers(study))}}; }

Findings measure_one_and_both(const Study& study) {
  const Measurements found = numbers(study);
  return {{}, {}, {headline(found.compare("one", {{"trained", 1}}, Expectation::positive())), on_both(found)}};
}

std::vector<std::string> measured;  // the claims that were

Findings measure_and_tell(const Study& study) {
  measured.push_back(study.experiment.claim);
  return measure_both(study);
}

std::vector<lethe::Run> only_absent(const nlohmann::json& settings, int64_t) { return {run_of("absent", 1, settings)}; }

/// Asks its models for two measurements; a row's number is their sum.
Findings measure_sums(const Study& study) {
  Findings findings;
  study.each([&](const Artefact& model) {
    double sum = 0;
    for (const char* name : {"one", "two"}) sum += study.measured(model, {name}, {}, {}).get<double>();
    findings.records.push_back(record_of(study.experiment, model.run, 1, 32, "sum", "1", sum));
    findings.comparisons.push_back(
        headline({.statement = "sum", .expectation = Expectation::positive(), .measured = sum}));
  });
  return findings;
}

std::vector<lethe::Run> only_trained(const nlohmann::json& settings, int64_t) {
  return {run_of("trained", 0, settings)};
}

void write_measured(const fs::path& folder, const std::string& name, double value) {
  nlohmann::json file = {{"measure", name}, {"version", 1}, {"settings", nullptr}};
  const std::string stem = sha256(file.dump()).substr(0, 16);
  file["value"] = value;
  fs::create_directories(folder / "measured");
  write_sealed(folder / "measured" / (stem + ".json"), file);
}

class PartOfTheRuns : public TinyDatasetTest {
 protected:
  PartOfTheRuns() {
    context.root = context.artefacts = folder.path();
    context.results = folder.path() / "results";
  }

  Experiment claim(const std::string& name, decltype(Experiment::runs) runs, decltype(Experiment::measure) measure) {
    const Experiment made{"paper", name, runs, measure};
    const fs::path place = claim_folder(folder.path(), made);
    fs::create_directories(place);
    std::ofstream(place / "config.toml") << "[claim]\ntitle = \"A claim\"\n[quick.training]\ncorpus = \"" << corpus
                                         << "\"\ntokenizer = \"bytes\"\n";
    std::ofstream(place / "paper.csv") << kColumns;
    return made;
  }

  Judged judged(const Experiment& one) {
    trained(run_of("trained", 0, claim_settings(context.root, one, "quick")), dataset, models);
    return judge_experiments({one}, context, models).front();
  }

  std::string corpus = (folder.path() / "text").string();
  Context context;
};

TEST_F(PartOfTheRuns, JudgesNoClaimOfWhichNoStatementHasItsRuns) {
  const Judged found = judged(claim("both", trained_and_absent, measure_both));
  EXPECT_EQ(found.lacks, "expected the runs of a statement, found those of none; not run: absent, context 32, seed 1");
  EXPECT_TRUE(found.comparisons.empty());
  EXPECT_FALSE(fs::exists(context.results / "both.json"));
}

TEST_F(PartOfTheRuns, JudgesAClaimByAStatementThatHasItsRunsAndKeepsTheOthersOpen) {
  const Judged found = judged(claim("one", trained_and_absent, measure_one_and_both));
  EXPECT_EQ(found.lacks, "");
  ASSERT_EQ(found.comparisons.size(), 2u);
  EXPECT_EQ(found.comparisons[0].verdict(), Verdict::kTrendReproduced);
  EXPECT_EQ(found.comparisons[1].verdict(), Verdict::kInconclusive) << "not out of reach: it can run";
  EXPECT_EQ(found.comparisons[1].open, "absent has not run yet");
  const nlohmann::json certificate = read_json(context.results / "one.json");
  EXPECT_EQ(certificate.at("verdict"), to_string(Verdict::kInconclusive));
  EXPECT_EQ(certificate.at("not_run"), nlohmann::json::array({"absent, context 32, seed 1"}));
}

TEST_F(PartOfTheRuns, MeasuresNoClaimThatHasNoneOfThemAndWritesNone) {
  measured.clear();
  context.only = {"trained"};
  run_experiments({claim("one", trained_and_absent, measure_and_tell), claim("none", only_absent, measure_and_tell)},
                  context);
  EXPECT_EQ(measured, std::vector<std::string>{"one"});
  EXPECT_FALSE(fs::exists(context.results));
}

TEST_F(PartOfTheRuns, MeasuresWhatNeedsNoTrainingThatFailed) {
  measured.clear();
  const Experiment broken = claim("none", only_absent, measure_and_tell),
                   also_broken = claim("both", trained_and_absent, measure_and_tell),
                   whole = claim("one", only_trained, measure_and_tell);
  std::vector<std::string> notices;
  context.progress = [&](const JobProgress& progress) {
    if (!progress.training.notice.empty()) notices.push_back(progress.training.notice);
  };
  const lethe::Run failing = only_absent(claim_settings(context.root, broken, "quick"), 0).front();
  fs::create_directories(models);
  std::ofstream(models / artefact_name(failing, dataset)) << "a file where the run's folder belongs";
  EXPECT_ANY_THROW(run_experiments({broken, also_broken, whole}, context));
  const auto tells = [](const std::string& notice) { return notice.starts_with("training absent"); };
  EXPECT_EQ(std::ranges::count_if(notices, tells), 1) << "tried once, and told";
  EXPECT_EQ(measured, std::vector<std::string>{"one"});
  EXPECT_TRUE(fs::exists(context.results / "one.json"));
  EXPECT_FALSE(fs::exists(context.results / "none.json"));
}

std::vector<lethe::Run> two_seeds(const nlohmann::json& settings, int64_t) {
  return {run_of("trained", 0, settings), run_of("trained", 1, settings)};
}

TEST_F(PartOfTheRuns, JudgesAClaimByTheRunsOfWhichItsNumbersAre) {
  const Experiment sums = claim("sums", two_seeds, measure_sums);
  const auto settings = claim_settings(context.root, sums, "quick");
  EXPECT_EQ(judged(sums).lacks, "a measurement that it asks for is absent");
  const fs::path other = trained(run_of("trained", 1, settings), dataset, models).folder;
  write_measured(other, "one", 1);
  EXPECT_EQ(judged(sums).lacks, "a measurement that it asks for is absent") << "half of a run is none";
  write_measured(other, "two", 2);
  const Judged found = judged(sums);
  ASSERT_EQ(found.lacks, "");
  ASSERT_EQ(found.comparisons.size(), 1u);
  EXPECT_EQ(found.comparisons.front().measured, 3);
  EXPECT_EQ(found.not_run, std::vector<std::string>{"trained, context 32, seed 0"});
}

/// A claim on another text than its own, of whose name experiments/data has an index.
class IndexedText : public PartOfTheRuns {
 protected:
  IndexedText() { context.corpus = text; }

  void write_index(const std::string& source, const std::string& content) {
    const fs::path place = folder.path() / "experiments" / "data";
    fs::create_directories(place);
    std::ofstream(place / "text.toml") << "[corpus]\ntext = \"" << source << "\"\n[content]\nbytes = \"" << content
                                       << "\"\n";
  }

  /// The message of a run of the claim on a corpus.
  std::string refusal(const std::string& of_corpus) {
    context.corpus = of_corpus;
    try {
      run_experiments({one}, context);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  }

  const std::string text = std::exchange(corpus, "bible"), another = std::string(64, '0');
  const Experiment one = claim("one", only_trained, measure_and_tell);
};

TEST_F(IndexedText, IsRefusedWhereItsHashIsAnother) {
  write_index(another, dataset.content_hash());
  for (const std::string& given : {text, dataset_folder.string()}) {
    const std::string message = refusal(given);
    EXPECT_TRUE(message.starts_with(given + ": expected the text " + another)) << message;
    EXPECT_TRUE(message.ends_with(", found " + dataset.source_hash())) << message;
  }
  EXPECT_FALSE(fs::exists(models)) << "before any training";
  const fs::path mine = folder.path() / "mine";
  fs::copy(text, mine, fs::copy_options::recursive);
  EXPECT_EQ(refusal(mine.string()), "no error") << "a text of one's own has another name";
}

TEST_F(IndexedText, IsJudgedByTheModelsOfItsDatasetAlone) {
  const auto lacks = [&] { return judge_experiments({one}, context, models).front().lacks; };
  write_index(dataset.source_hash(), dataset.content_hash());
  EXPECT_EQ(refusal(text), "no error");
  write_index(dataset.source_hash(), another);
  EXPECT_EQ(refusal(text), text + ": expected the dataset " + another +
                               " of the corpus's index in experiments/data, found " + dataset.content_hash());
  EXPECT_EQ(lacks(), text + ": expected models of the dataset " + another +
                         " of the corpus's index in experiments/data, found those of " + dataset.content_hash());
  write_index(dataset.source_hash(), dataset.content_hash());
  EXPECT_EQ(lacks(), "");
}

/// Of one run another training, elsewhere and with other weights.
class TwoTrainings : public PartOfTheRuns {
 protected:
  TwoTrainings() {
    first = trained(run_of("trained", 0, claim_settings(context.root, sums, "quick")), dataset, models).folder;
    second = first / "others" / "1" / first.filename();
    fs::create_directories(second);
    for (const char* file : {"run.json", "log.jsonl"}) fs::copy_file(first / file, second / file);
    nlohmann::json done = read_sealed(first / "done.json");
    done["commit"] = "c0ffee";
    done["weights_sha256"] = "other";
    write_sealed(second / "done.json", done);
  }

  const Experiment sums = claim("sums", only_trained, measure_sums);
  fs::path first, second;
};

TEST_F(TwoTrainings, GiveNumbersAndCommitOfTheOneThatWasAskedForAll) {
  write_measured(first, "one", 1);
  write_measured(second, "one", 10);
  write_measured(second, "two", 20);
  const Judged found = judged(sums);
  ASSERT_EQ(found.lacks, "");
  EXPECT_EQ(found.comparisons.front().measured, 30);
  const nlohmann::json of_run = read_json(context.results / "sums.json").at("runs").at(0);
  EXPECT_EQ(of_run.at("commit"), "c0ffee");
  EXPECT_EQ(of_run.at("weights_sha256"), "other");
  const Record record = read_records(context.results / "sums.csv").front();
  EXPECT_EQ(record.commit, "c0ffee");
  EXPECT_EQ(record.artefact, first.filename());
}

TEST_F(TwoTrainings, AreNotMixedWhereNeitherWasAskedForAll) {
  write_measured(first, "one", 1);
  write_measured(second, "two", 20);
  EXPECT_EQ(judged(sums).lacks, "a measurement that it asks for is absent");
  write_measured(first, "two", 2);
  EXPECT_EQ(judged(sums).comparisons.front().measured, 3) << "the first of those that were";
}

}  // namespace
}  // namespace lethe

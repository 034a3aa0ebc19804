// The registry of claims: every claim is complete at every scale, and the smallest scale runs from text to result.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = LETHE_SOURCE;
constexpr int64_t kBytes = 257;  // vocabulary of byte-level data

TEST(Registry, HasEveryFolderOnce) {
  std::multiset<fs::path> folders, rows;
  for (const auto& paper : fs::directory_iterator(kRoot / "experiments" / "papers"))
    if (paper.is_directory())
      for (const auto& claim : fs::directory_iterator(paper))
        if (fs::exists(claim.path() / "paper.csv")) folders.insert(claim.path());
  std::set<std::string> claims;
  for (const Experiment& experiment : experiments()) {
    rows.insert(claim_folder(kRoot, experiment));
    claims.insert(experiment.claim);
  }
  EXPECT_EQ(rows, folders);
  EXPECT_EQ(claims.size(), rows.size()) << "results are named after the claim alone";
}

TEST(Registry, SelectsByPaperByClaimAndByBoth) {
  EXPECT_EQ(select_experiments({}).size(), experiments().size());
  for (const Experiment& experiment : select_experiments({"forgetting_transformer"}))
    EXPECT_EQ(experiment.paper, "forgetting_transformer");
  EXPECT_GT(select_experiments({"forgetting_transformer"}).size(), 1u);
  EXPECT_EQ(select_experiments({"savings"}).size(), 1u);
  EXPECT_EQ(select_experiments({"savings", "adaptive_computation_pruning/savings"}).size(), 1u);
  EXPECT_THROW(select_experiments({"saving"}), std::invalid_argument);
}

TEST(Registry, HasADocumentedFolderAndPaperNumbersForEveryClaim) {
  for (const Experiment& experiment : experiments()) {
    const fs::path folder = claim_folder(kRoot, experiment);
    EXPECT_TRUE(fs::exists(folder / "README.md")) << folder;
    EXPECT_FALSE(claim_title(kRoot, experiment).empty()) << folder;
    for (const PaperRecord& number : read_paper(folder / "paper.csv")) {
      EXPECT_EQ(number.record.experiment, experiment.paper);
      EXPECT_EQ(number.record.claim, experiment.claim);
      EXPECT_FALSE(number.source.empty());
    }
  }
}

TEST(Scales, GiveSoundRunsAndTheirCost) {
  for (const char* scale : {"quick", "gpu", "paper", "smoke"}) {
    for (const Experiment& experiment : experiments()) {
      SCOPED_TRACE(experiment.name() + " at " + scale);
      EXPECT_FALSE(cost(kRoot, experiment, scale).empty());
      const auto settings = claim_settings(kRoot, experiment, scale);
      const auto runs = experiment.runs(settings, settings.contains("training") ? kBytes : 0);
      EXPECT_EQ(runs.empty(), !settings.contains("training"));
      for (const lethe::Run& run : runs) {
        EXPECT_NO_THROW(run.model.check()) << run.label;
        EXPECT_NO_THROW(run.training.check()) << run.label;
      }
    }
  }
}

TEST(Scales, ThatAreUnknownAreRefusedWithTheKnownOnes) {
  for (const std::string scale : {"huge", "claim"}) {
    try {
      claim_settings(kRoot, experiments().front(), scale);
      FAIL() << "nothing was thrown";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("quick"), std::string::npos) << error.what();
      EXPECT_TRUE(std::string(error.what()).ends_with("found " + scale)) << error.what();
    }
  }
}

TEST(Scales, LayAClaimsOwnSettingsOverThoseOfItsBase) {
  const auto claim = select_experiments({"length_extrapolation"}).front();
  const auto base = select_experiments({"ablations"}).front();
  const auto own = claim_settings(kRoot, claim, "quick"), of_base = claim_settings(kRoot, base, "quick");
  EXPECT_EQ(own.at("model"), of_base.at("model"));
  EXPECT_EQ(own.at("evaluation").at("tokens"), of_base.at("evaluation").at("tokens"));
  EXPECT_EQ(own.at("evaluation").at("length_factor"), 4);
  EXPECT_NE(own.at("cost"), of_base.at("cost"));
  EXPECT_FALSE(own.contains("base"));
}

/// The identity of a run's model.
std::string identity(const lethe::Run& run) {
  return nlohmann::json(run.model).dump() + nlohmann::json(run.training).dump();
}

// The message of the settings of a claim whose config.toml has this text; other.toml beside it is its own base.
std::string refusal_of_settings(const std::string& text) {
  const TemporaryFolder folder;
  const Experiment claim{.paper = "paper", .claim = "claim", .runs = nullptr, .measure = nullptr};
  const auto place = claim_folder(folder.path(), claim);
  std::filesystem::create_directories(place);
  std::ofstream(place / "config.toml") << text;
  std::ofstream(place / "other.toml") << "[quick]\nbase = \"../claim/other.toml\"\n";
  try {
    claim_settings(folder.path(), claim, "quick");
  } catch (const std::invalid_argument& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(place.string())) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Scales, ThatGoRoundOrDeepAreRefused) {
  const auto expect_words = [](const std::string& text, const char* words) {
    const std::string message = refusal_of_settings(text);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect_words("[quick]\nx = 1\n", "no error");
  expect_words("[quick]\nbase = \"config.toml\"\n",
               "base: expected a chain of at most 8 files without a cycle, found ");
  expect_words("[quick]\nbase = \"other.toml\"\n", "without a cycle");
  expect_words("[quick]\nbase = 7\n", "base: expected a path, found 7");
  expect_words("[quick]\nx = " + std::string(60, '[') + std::string(60, ']') + "\n", "no error");
  expect_words("[quick]\nx = " + std::string(100, '[') + std::string(100, ']') + "\n", "at most 64 levels");
  expect_words("[quick]\nx = " + std::string(100000, '[') + "\n", "config.toml: ");
  const auto dotted = [](int dots) {
    std::string key = "x";
    for (int dot = 0; dot < dots; ++dot) key += ".x";
    return "[quick]\n" + key + " = 1\n";
  };
  expect_words(dotted(2000), "at most 64 levels");
  expect_words(dotted(100000), "expected at most 2048 dots, found 100000");
}

TEST(Runs, AreSharedAmongTheClaimsOfAPaperAtQuickScale) {
  std::set<std::string> distinct;
  size_t asked = 0;
  for (const Experiment& experiment : select_experiments({"forgetting_transformer"}))
    for (const lethe::Run& run : experiment.runs(claim_settings(kRoot, experiment, "quick"), kBytes)) {
      distinct.insert(identity(run));
      ++asked;
    }
  // 14 rows, four of them with two more seeds, and two further kinds of gate in two architectures.
  EXPECT_EQ(distinct.size(), 14u + 4 * 2 + 2 * 2);
  EXPECT_GT(asked, distinct.size());
}

TEST(Runs, OfTable3AreFourteenDifferentModels) {
  std::set<std::string> architectures;
  for (const Row& row : table_3()) architectures.insert(nlohmann::json(row.architecture).dump());
  EXPECT_EQ(architectures.size(), 14u);
}

TEST(Runs, OfTable3HaveTheNumbersOfThePaper) {
  const auto claim = select_experiments({"ablations"}).front();
  std::set<std::string> rows;
  for (const PaperRecord& number : read_paper(claim_folder(kRoot, claim) / "paper.csv"))
    rows.insert(number.record.variant);
  for (const Row& row : table_3()) EXPECT_TRUE(rows.contains(row.name)) << row.name;
}

TEST(Measurements, CompareWeightedMeansWithTheBandOfTheRowsWithSeveralSeeds) {
  Measurements losses;
  const auto run = [](const char* label, ForgetGate gate) {
    ModelConfig model;
    model.mixer.only<AttentionConfig>().forget_gate = gate;
    return lethe::Run{label, model, {}};
  };
  const lethe::Run a = run("a", ForgetGate::kFull), b = run("b", ForgetGate::kFixed), c = run("c", ForgetGate::kNone);
  for (const double value : {1.0, 3.0}) losses.add(a, value);
  losses.add(b, 5.0);
  losses.add(c, 4.0);
  const Comparison comparison = losses.compare("b is worse than a", {{"b", 1}, {"a", -1}}, Expectation::positive());
  EXPECT_DOUBLE_EQ(comparison.measured, 3.0);
  EXPECT_DOUBLE_EQ(comparison.band, student_t(1) * std::sqrt(2.0) * std::sqrt(1.0 + 0.5));
  EXPECT_THROW(losses.compare("of nothing", {{"d", 1}}, Expectation::positive()), std::invalid_argument);

  // The noise of models without a gate is pooled separately: it is unknown until one of them has a second seed.
  const auto c_and_a = [&] {
    return losses.compare("c is worse than a", {{"c", 1}, {"a", -1}}, Expectation::positive());
  };
  EXPECT_EQ(c_and_a().band, std::numeric_limits<double>::infinity());
  losses.add(c, 24.0);
  // nearly all of it is c's: one degree of freedom
  EXPECT_DOUBLE_EQ(c_and_a().band, student_t(1) * std::sqrt(200.0 / 2 + 2.0 / 2));
}

}  // namespace
}  // namespace lethe

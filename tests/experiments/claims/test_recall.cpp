// The rule of the claim recall: a statement is open where one of its rows has not learned the task.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "experiments/claims/record_files.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

constexpr double kGuess = 2.0 / 64;     // of a vocabulary of 64, half of it values
constexpr double kOfContext = 1.0 / 8;  // a guess among the values of eight pairs

/// Shares of the queries that the stacks answer, on keys with one value and on keys with two, by the mixer under test.
using Scores = std::map<std::string, std::pair<double, double>>;

/// Every row learns the task, and all statements hold.
const Scores kAllLearn = {{"softmax", {1, 1}},
                          {"no positions", {0.8, 0.5}},
                          {"fox", {1, 0.9}},
                          {"additive 2", {0.3, 0}},
                          {"additive 4", {0.6, 0.4}},
                          {"gated_linear 2", {0.4, 0}},
                          {"gated_linear 4", {0.8, 0.7}},
                          {"deltanet 4", {0.9, 0.8}},
                          {"hgrn2", {0.7, 0}},
                          {"blind", {kGuess, 0}},
                          {"untrained", {0.02, 0}}};

/// The claim at the scale smoke; what its stacks answer is replaced in the files of their measurements.
class Recall : public ClaimStudy {
 protected:
  Recall() : ClaimStudy("recall") {
    settings.merge_patch({{"attention_rows", nlohmann::json::array({"FoX (Pro)"})},
                          {"seeds", 1},
                          {"task_rows", {"HGRN2", "Mamba-2 + FoX"}},
                          {"task", {{"pairs", 8}, {"vocabulary", 64}}}});
    train();
    experiment.measure(study);
    study.makes = false;
  }

  std::vector<Comparison> judged(const Scores& scores) {
    std::vector<std::filesystem::path> files;
    for (const Artefact& model : study.trained)
      for (const auto& entry : std::filesystem::directory_iterator(model.folder / "measured"))
        files.push_back(entry.path());
    int replaced = 0;
    for (const std::filesystem::path& path : files) {
      nlohmann::json file = read_sealed(path);
      const nlohmann::json& task = file.at("settings");
      if (file.at("measure") != "associative_recall" || !task.at("model").contains("mixer")) continue;
      const bool is_trained = task.at("steps") > 1;
      const auto [plain, updated] = scores.at(is_trained ? name_of(task.at("model").at("mixer").at(1)) : "untrained");
      for (nlohmann::json& curve : file.at("value").at("points")) {
        const bool of_updated = curve.at("quantity") == "updated_accuracy_at_seed";
        for (nlohmann::json& value : curve.at("value")) value = of_updated ? updated : plain;
      }
      write_sealed(path, file);
      ++replaced;
    }
    EXPECT_EQ(replaced, 16) << "ten rows without updates, and six with them";
    return experiment.measure(study).comparisons;
  }

  static std::string name_of(const nlohmann::json& mixer) {
    const std::string name = mixer.at("name");
    if (name == "local") return "blind";
    if (name == "hgrn2") return name;
    if (name == "attention" && mixer.at("forget_gate") != "none") return "fox";
    if (name == "attention") return mixer.at("rope") ? "softmax" : "no positions";
    if (name == "deltanet")
      return "deltanet " + std::to_string(std::lround(mixer.at("key_expansion").get<double>() * kHeadDim));
    return name + " " + mixer.at("state_size").dump();
  }

  static constexpr double kHeadDim = 16;
};

TEST_F(Recall, IsReproducedWhereEveryRowLearnsTheTask) {
  for (const Comparison& comparison : judged(kAllLearn))
    EXPECT_EQ(comparison.verdict(), Verdict::kReproduced) << comparison.statement;
}

TEST_F(Recall, WritesItsRecords) {
  const auto records = experiment.measure(study).records;
  const std::filesystem::path base = folder.path() / "recall";
  write_records(base, records, "lethe run recall");
  EXPECT_EQ(read_records(base.string() + ".csv").size(), records.size());
}

TEST_F(Recall, KeepsAStatementOpenWhereOneOfItsRowsHasNotLearnedTheTask) {
  Scores scores = kAllLearn;
  scores["gated_linear 2"].first = kOfContext + 0.04;
  scores["additive 4"].first = kGuess;
  const auto found = judged(scores);
  const Comparison& gated = one_of(found, "A larger state recalls more, gated");
  EXPECT_EQ(gated.verdict(), Verdict::kInconclusive) << "0.6 more, but than a guess of the context";
  EXPECT_EQ(gated.open, "Gated linear attention with state 2 has not learned the task in 2 steps");
  for (const char* begin : {"A larger state recalls more, linear", "A gate recalls the last", "A delta rule recalls",
                            "FoX recalls the last"})
    EXPECT_EQ(one_of(found, begin).open, "Linear attention with state 4 has not learned the task in 2 steps");
  EXPECT_EQ(one_of(found, "A larger state recalls more, linear").verdict(), Verdict::kInconclusive) << "not refuted";
  EXPECT_EQ(one_of(found, "A forget gate recalls the last").verdict(), Verdict::kReproduced);
  EXPECT_EQ(overall(found), Verdict::kInconclusive);
}

TEST_F(Recall, LetsFivePointsAboveAGuessOfTheContextCountAsLearned) {
  Scores scores = kAllLearn;
  scores["gated_linear 2"].first = kOfContext + 0.06;
  EXPECT_EQ(one_of(judged(scores), "A larger state recalls more, gated").verdict(), Verdict::kReproduced);
}

TEST_F(Recall, RefutesARowThatRecallsLessThanAGuess) {
  Scores scores = kAllLearn;
  scores["fox"].first = 0.01;
  const auto found = judged(scores);
  EXPECT_EQ(one_of(found, "FoX recalls more than a guess").verdict(), Verdict::kRefuted);
  EXPECT_EQ(one_of(found, "FoX recalls the last").verdict(), Verdict::kInconclusive);
  EXPECT_EQ(one_of(found, "HGRN2 of two layers recalls more").verdict(), Verdict::kReproduced);
  scores["hgrn2"].first = kGuess - 0.01;
  EXPECT_EQ(one_of(judged(scores), "HGRN2 of two layers recalls more").verdict(), Verdict::kRefuted);
}

TEST_F(Recall, RefutesTheClaimWhereAControlKnowsMoreThanAGuess) {
  for (const char* control : {"blind", "untrained"}) {
    Scores scores = kAllLearn;
    scores[control].first = kGuess + 0.04;
    EXPECT_EQ(overall(judged(scores)), Verdict::kRefuted) << control;
  }
}

}  // namespace
}  // namespace lethe

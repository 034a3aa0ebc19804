// The claims on single heads: per_head_savings beside untrained heads, and boundaries, whose shares count blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// A claim at the scale smoke with three seeds; the shares of its models' heads are replaced in the files of their measurements.
class PrunedHeads : public ClaimStudy {
 protected:
  explicit PrunedHeads(const std::string& claim) : ClaimStudy(claim) {
    settings["row_seeds"] = {{"studied", 3}};  // of one seed a difference has a band without end
    train();
    experiment.measure(study);
    study.makes = false;
  }

  /// Lets training leave a tenth of the blocks more than the untrained models do.
  void open_gates() {
    change_measured("pruned", [](const Artefact&, nlohmann::json& file) {
      for (nlohmann::json& share : file.at("value").at("blocks"))
        share = file.at("settings").contains("untrained") ? 0.97 : 0.87;
    });
  }

  /// Gives a model heads of these shares of the blocks.
  void set_blocks(const std::vector<double>& shares) {
    change_measured("pruned_share", [&](const Artefact&, nlohmann::json& file) {
      nlohmann::json& records = file.at("value").at("records");
      nlohmann::json record = records.front();
      record["implementation"] = "lethe";
      records = nlohmann::json::array();
      for (size_t head = 0; head < shares.size(); ++head) {
        record["variant"] = "layer 0 head " + std::to_string(head);
        record["value"] = shares[head];
        records.push_back(record);
      }
    });
  }
};

class PerHeadSavings : public PrunedHeads {
 protected:
  PerHeadSavings() : PrunedHeads("per_head_savings") { open_gates(); }

  /// Of models that have 30 local heads, the first of all, and 10 global ones, and before training heads of one share.
  std::vector<Comparison> judged(double before) {
    std::vector<double> shares(30, 0.96);
    shares.resize(40, 0.0);
    set_blocks(shares);
    change_measured("pruned_share_untrained", [&](const Artefact&, nlohmann::json& file) { file["value"] = std::vector<double>(40, before); });
    return experiment.measure(study).comparisons;
  }
};

TEST_F(PerHeadSavings, GetNoCreditForWhatUntrainedHeadsAreToo) {
  settings["controls_after_a_run"] = "another rule first";
  const auto found = judged(0.97);
  for (const char* begin : {"Most heads are local", "Few heads lie between", "The heads of the first two layers"}) {
    const Comparison& comparison = one_of(found, begin);
    EXPECT_TRUE(comparison.control_does_as_well()) << begin;
    EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive) << begin;
    EXPECT_EQ(comparison.note, "another rule first") << begin;
  }
  const Comparison& global = one_of(found, "Some heads are global");
  EXPECT_EQ(global.verdict(), Verdict::kReproduced);
  EXPECT_EQ(global.note, "");
  EXPECT_EQ(overall(found), Verdict::kInconclusive);
}

TEST_F(PerHeadSavings, AreReproducedWhereUntrainedHeadsAreNeither) {
  for (const Comparison& comparison : judged(0.3))
    EXPECT_EQ(comparison.verdict(), Verdict::kReproduced) << comparison.statement;
}

class Boundaries : public PrunedHeads {
 protected:
  Boundaries() : PrunedHeads("boundaries") { open_gates(); }

  /// Of models whose two heads have these shares of the blocks, another one of single pairs, and one of blocks before training.
  Findings judged(const std::vector<double>& of_blocks, double of_pairs, double before = 0.2) {
    set_blocks(of_blocks);
    change_measured("pruned_share_untrained", [&](const Artefact&, nlohmann::json& file) { file["value"] = std::vector<double>(2, before); });
    change_measured("boundaries", [&](const Artefact&, nlohmann::json& file) {
      for (nlohmann::json& head : file.at("value").at("heads")) head["pruned_share"] = of_pairs;
    });
    return experiment.measure(study);
  }
};

TEST_F(Boundaries, AreJudgedByBlocksWhateverThePairs) {
  settings["blocks_after_a_run"] = "pairs first";
  const auto found = judged({0.9, 0.01}, 0.4).comparisons;
  const Comparison &local = one_of(found, "The most local head"), &global = one_of(found, "The most global head");
  EXPECT_NEAR(local.measured, 0.4, 1e-12);
  EXPECT_EQ(local.verdict(), Verdict::kTrendReproduced);
  EXPECT_EQ(local.note, "pairs first");
  EXPECT_NEAR(global.measured, 0.01, 1e-12);
  EXPECT_EQ(global.verdict(), Verdict::kReproduced);
  EXPECT_TRUE(global.note.ends_with("; pairs first")) << global.note;
  EXPECT_EQ(local.unit, "share of the blocks above one half");
  EXPECT_EQ(global.unit, "share of the blocks");
}

TEST_F(Boundaries, GetNoCreditForAHeadThatIsNoMoreLocalThanBeforeTraining) {
  EXPECT_EQ(one_of(judged({0.9, 0.01}, 0.4, 0.97).comparisons, "The most local head").verdict(), Verdict::kInconclusive);
  EXPECT_EQ(one_of(judged({0.9, 0.01}, 0.4, 0.3).comparisons, "The most local head").verdict(),
            Verdict::kTrendReproduced);
}

TEST_F(Boundaries, AreRefutedByBlocksWhateverThePairs) {
  for (const double of_pairs : {0.0, 0.99}) {
    const auto found = judged({0.4, 0.2}, of_pairs).comparisons;
    EXPECT_EQ(one_of(found, "The most local head").verdict(), Verdict::kRefuted);
    EXPECT_EQ(one_of(found, "The most global head").verdict(), Verdict::kRefuted);
  }
}

TEST_F(Boundaries, RecordEachHeadsShareOfBlocksAndOfPairsOnce) {
  const auto records = judged({0.9, 0.01}, 0.4).records;
  for (const char* implementation : {"lethe", "single pairs"})
    EXPECT_EQ(std::ranges::count_if(records,
                                    [&](const Record& record) {
                                      return record.metric == "pruned_share" && record.implementation == implementation;
                                    }),
              3 * 2)
        << implementation;
}

}  // namespace
}  // namespace lethe

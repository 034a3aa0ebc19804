// The registry of claims: every claim is complete at every scale, and the smallest scale runs from text to result.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "experiments/claims/findings_files.hpp"
#include "experiments/claims/job.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/papers/decaying_fast_weights/conversions.hpp"
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

TEST(Scales, TakeAnotherTextUnderTheClaimsRules) {
  const auto claim = select_experiments({"length_extrapolation"}).front();
  const auto own = claim_settings(kRoot, claim, "gpu");
  auto changed = claim_settings(kRoot, claim, "gpu", "artefacts/data/linux-gpt2");
  EXPECT_EQ(changed.at("training").at("corpus"), "artefacts/data/linux-gpt2");
  EXPECT_NE(changed.at("text"), own.at("text")) << "the hash is that of linux.toml";
  changed.erase("content");
  changed["training"]["corpus"] = own.at("training").at("corpus");
  changed["text"] = own.at("text");
  EXPECT_EQ(changed, own) << "nothing else may differ";
  EXPECT_THROW(claim_settings(kRoot, select_experiments({"open_gate"}).front(), "quick", "headers"),
               std::invalid_argument);
  EXPECT_EQ(suffix_of("gpu", "artefacts/data/linux-gpt2/"), "-gpu-linux-gpt2");
  EXPECT_EQ(suffix_of("quick", "My.txt"), "-my-txt");
  EXPECT_EQ(suffix_of("quick", ""), "");
}

TEST(Scales, HoldATextToTheHashesOfTheIndexOfItsName) {
  const auto claim = select_experiments({"length_extrapolation"}).front();
  const auto with = [&](const std::string& scale, const std::string& corpus) {
    return claim_settings(kRoot, claim, scale, corpus);
  };
  const auto indexed = with("gpu", "artefacts/data/linux-gpt2");
  for (const char* member : {"text", "content"}) EXPECT_EQ(indexed.at(member).get<std::string>().size(), 64u) << member;
  for (const char* corpus : {"linux", "elsewhere/linux/", "artefacts/data/linux-gpt2-0123456789ab"})
    for (const char* member : {"text", "content"})
      EXPECT_EQ(with("gpu", corpus).at(member), indexed.at(member)) << corpus << ": " << member;
  EXPECT_EQ(with("quick", "linux").at("text"), indexed.at("text"));
  EXPECT_FALSE(with("quick", "linux").contains("content")) << "the index has none of bytes";
  for (const char* corpus : {"mine", "linux.txt", "linux-gpt2-mine", "artefacts/data/linuxes-gpt2"})
    EXPECT_FALSE(with("gpu", corpus).contains("text")) << corpus << " is a text of one's own";
  EXPECT_EQ(with("gpu", "artefacts/data/books-gpt2"), claim_settings(kRoot, claim, "gpu")) << "its own, given by name";
}

TEST(Scales, GivePrefixSourcesTargetsOfASplitApartFromItsOthers) {
  const auto claim = select_experiments({"prefix_sources"}).front();
  for (const char* scale : {"quick", "gpu", "paper", "smoke"})
    EXPECT_EQ(claim_settings(kRoot, claim, scale).at("curve").at("split"), "valid") << scale << ": train and test are";
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
  for (const char* text : {"\uFEFF[quick]\nx = \"ε \\\" ε\" # ε '\n", "[quick]\nx = 'ε \\' # ε\n"})
    expect_words(text, "no error");
  for (const char* text : {"[quick]\nε = 1\n", "[quick]\nx = ε\n", "[quick]\nx = \"a\" ε\n",
                           "[quick]\nx = \"\"\"\\\nε\"\"\"\n", "[quick]\n# a\u2028ε\n", "[quick]\n'a\\' ε = 1\n"})
    expect_words(text, "expected letters beyond ASCII in texts of one line and comments alone, found one in line ");
}

TEST(Scales, NameTheKeyOfANumberThatIsNotWhole) {
  const auto claim = select_experiments({"ablations"}).front();
  auto settings = claim_settings(kRoot, claim, "quick");
  settings["seeds"] = 3.5;
  try {
    claim.runs(settings, kBytes);
    FAIL() << "3.5 seeds";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "seeds: expected a whole number of 64 bits with sign, found 3.5");
  }
}

TEST(Scales, CountTheTrainingsOfTheirCost) {
  const std::regex counted("([0-9]+) (training|conversion)s? of .*");
  int compared = 0;
  for (const char* scale : {"quick", "gpu", "paper"})
    for (const Experiment& experiment : experiments()) {
      const std::string words = cost(kRoot, experiment, scale);
      std::smatch parts;
      const bool is_of_others = words.find("shared") != words.npos || words.find("besides") != words.npos;
      if (is_of_others || !std::regex_match(words, parts, counted)) continue;
      const auto runs = experiment.runs(claim_settings(kRoot, experiment, scale), kBytes);
      const auto is_counted = [&](const lethe::Run& run) {  // an untrained model and the source of conversions are not
        return run.training.steps() > 1 && (parts[2] == "training" || run.conversion != nullptr);
      };
      EXPECT_EQ(std::to_string(std::ranges::count_if(runs, is_counted)), parts[1])
          << experiment.name() << " at " << scale;
      ++compared;
    }
  EXPECT_GT(compared, 10);
}

TEST(Settings, NoteWhatChangedAndLeaveOpenWhatAMachineCanChange) {
  std::vector<Comparison> comparisons = {{.statement = "one", .note = "a note"}, {.statement = "another"}};
  say_what_settings_say({{"changed_after_a_run", "since then"}, {"undecided", {{"another", "two machines differ"}}}},
                        comparisons);
  EXPECT_EQ(comparisons[0].note, "a note; since then");
  EXPECT_EQ(comparisons[1].note, "since then");
  EXPECT_EQ(comparisons[0].open, "");
  EXPECT_EQ(comparisons[1].open, "two machines differ");
}

TEST(Settings, SayWhatWouldDecideWhatAMachineCanChange) {
  const auto positive = Expectation::positive();
  std::vector<Comparison> comparisons = {
      {.statement = "decided", .expectation = positive, .measured = 1, .band = 0.1},
      {.statement = "wide", .expectation = positive, .measured = 1, .band = 2, .would_decide = "9 seeds a row"},
      {.statement = "dead", .expectation = positive, .measured = 1, .band = 0.1, .open = "its mixer is dead"},
      {.statement = "absent", .out_of_reach = "this scale does not train it"},
  };
  nlohmann::json undecided;
  for (const Comparison& comparison : comparisons) undecided[comparison.statement] = "two differ";
  say_what_settings_say({{"undecided", undecided}}, comparisons);
  EXPECT_EQ(
      comparisons[0].open,
      "two differ; here its band has a verdict, and from one machine no number of runs follows that decides it on "
      "all");
  EXPECT_EQ(comparisons[1].open, "two differ; would be decided by 9 seeds a row");
  EXPECT_EQ(comparisons[2].open, "two differ; its mixer is dead");
  EXPECT_EQ(comparisons[3].verdict(), Verdict::kOutOfReach);
}

TEST(Runs, AreSharedAmongTheClaimsOfAPaperAtQuickScale) {
  std::set<std::string> distinct;
  size_t asked = 0;
  for (const Experiment& experiment : select_experiments({"forgetting_transformer"}))
    for (const lethe::Run& run : experiment.runs(claim_settings(kRoot, experiment, "quick"), kBytes)) {
      distinct.insert(identity(run));
      ++asked;
    }
  // Two rows of five seeds, three of two, the control's among them, and two of one; for needle and recall two rows of two seeds at a longer context, and three
  // models more.
  EXPECT_EQ(distinct.size(), 2u * 5 + 3 * 2 + 2 + 2 * 2 + 3);
  EXPECT_GT(asked, distinct.size());
}

TEST(Runs, OfEveryTableAreAskedForAtTheLargerScales) {
  for (const char* scale : {"gpu", "paper"}) {
    const auto asks = [&](const char* claim, const std::string& label) {
      const auto experiment = select_experiments({claim}).front();
      const auto runs = experiment.runs(claim_settings(kRoot, experiment, scale), kBytes);
      return std::ranges::count(runs, label, &lethe::Run::label);
    };
    for (const Row& row : table_3()) EXPECT_GT(asks("ablations", row.name), 0) << scale << ": " << row.name;
    EXPECT_GT(asks("length_extrapolation", "Window of 512 tokens"), 0) << scale;
    EXPECT_GT(asks("forget_gate_types", "FoX (Pro) with fixed gate"), 0) << scale;
    EXPECT_GE(asks("savings", "FoX (Pro) without ACP"), 3) << scale << ": equality needs seeds";
    EXPECT_GT(asks("state_capacity", "Decay m=32"), 0) << scale;
    EXPECT_GT(asks("update_rules", "Delta with an open gate"), 0) << scale;
    for (const Row& row : figure_9()) EXPECT_GT(asks("ablations", row.name), 0) << scale << ": " << row.name;
    for (const Row& row : decay_variants()) EXPECT_GT(asks("update_rules", row.name), 0) << scale << ": " << row.name;
    EXPECT_GT(asks("initialization", "Transformer (LLaMA) from scaled matrices"), 0) << scale;
    EXPECT_GT(asks("pruned_needle", "FoX (Pro) with ACP"), 0) << scale;
  }
}

TEST(Runs, OfClaimsOnGatesHaveAControlThatSeesAWindow) {
  for (const char* scale : {"smoke", "quick", "gpu", "paper"})
    for (const Experiment& experiment :
         select_experiments({"ablations", "forget_gate_types", "length_extrapolation"})) {
      const auto runs = experiment.runs(claim_settings(kRoot, experiment, scale), kBytes);
      EXPECT_TRUE(std::ranges::any_of(runs, [](const lethe::Run& run) { return run.label.starts_with("Window of "); }))
          << experiment.name() << " at " << scale;
    }
}

TEST(Runs, OfTable3AreFourteenDifferentModels) {
  std::set<std::string> architectures;
  for (const Row& row : table_3()) architectures.insert(nlohmann::json(row.architecture).dump());
  EXPECT_EQ(architectures.size(), 14u);
}

TEST(Runs, OfFigure9GoFromOneTransformerToTheOtherByAComponentEach) {
  std::vector<nlohmann::json> models{named_architecture("transformer-llama")};
  for (const Row& row : figure_9()) models.push_back(row.architecture);
  models.push_back(named_architecture("transformer-pro"));
  const std::vector<std::string> components{"qk_norm", "output_gate", "output_norm", "kv_shift"};
  for (size_t m = 0; m + 1 < models.size(); ++m) {
    std::vector<std::string> changed;
    for (const nlohmann::json& change : nlohmann::json::diff(models[m], models[m + 1])) {
      const std::string path = change.at("path");
      changed.push_back(path.substr(path.rfind('/') + 1));
    }
    EXPECT_EQ(changed, std::vector{components[m]});
  }
}

TEST(Runs, OfTable3HaveTheNumbersOfThePaper) {
  const auto claim = select_experiments({"ablations"}).front();
  std::set<std::string> rows;
  for (const PaperRecord& number : read_paper(claim_folder(kRoot, claim) / "paper.csv"))
    rows.insert(number.record.variant);
  for (const Row& row : table_3()) EXPECT_TRUE(rows.contains(row.name)) << row.name;
}

}  // namespace
}  // namespace lethe

// The rules of the claims on forgetting curves, on curves by hand: a control's band, closed gates, notes on first runs.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "experiments/claims/curves.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/claims/statements.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

const std::string kTransformer = "Transformer (Pro)", kFox = "FoX (Pro)", kLocal = "Local attention",
                  kUntrained = "Untrained";
const std::vector<double> kNoise = {0.001, -0.002, 0.001};  // of a model that copies nothing

/// A claim over models that were never trained: their measurements are written where Study::measured looks for them.
class HandMade {
 public:
  HandMade(const std::string& claim, const std::string& scale, const nlohmann::json& changes,
           const std::function<void(HandMade&)>& fill)
      : experiment_(select_experiments({claim}).front()), settings_(claim_settings(LETHE_SOURCE, experiment_, scale)) {
    settings_.merge_patch(changes);
    for (const Run& run : experiment_.runs(settings_, /*vocabulary=*/257))
      study.trained.push_back({folder_.path() / std::to_string(study.trained.size()), run});
    fill(*this);
  }

  /// The accuracies of a row's models at all lengths. gap: copy − LM accuracy of a seed at a length, by repeat; lm: LM accuracy by repeat, 0.5 where
  /// it is empty.
  void curve(const std::string& row, const std::function<std::vector<double>(uint64_t seed, int64_t length)>& gap,
             const nlohmann::json& changes = nlohmann::json::object(), const std::vector<double>& lm = {}) {
    nlohmann::json asked = settings_.at("curve");
    asked.update(changes);
    CurveSettings curve;
    JsonReader reader(asked, "curve");
    curve.read(reader);
    asked["steps"] = 1;
    asked["kept"] = {"copy_of_repeat_at_length", "lm_of_repeat_at_length"};
    for (const Artefact& model : study.labelled(row))
      for (const int64_t length : curve.lengths()) {
        CurvePoint point{.length = length, .copy = {}, .lm = {}};
        for (const double one : gap(model.run.training.seed, length)) {
          point.lm.push_back(lm.empty() ? 0.5 : lm.at(point.lm.size()));
          point.copy.push_back(point.lm.back() + one);
        }
        asked["length"] = length;
        write(model, "forgetting_curve", asked,
              {{Record{.batch = 1}}, points_of({.points = {point}, .not_measurable = {}}), {}});
      }
  }

  /// The same as one measurement of all lengths.
  void curve_at_once(const std::string& row, const std::function<std::vector<double>(int64_t length)>& gap) {
    nlohmann::json asked = settings_.at("curve");
    CurveSettings settings;
    JsonReader reader(asked, "curve");
    settings.read(reader);
    asked["kept"] = {"copy_of_repeat_at_length", "lm_of_repeat_at_length"};
    ForgettingCurve curve;
    for (const int64_t length : settings.lengths()) {
      curve.points.push_back({.length = length, .copy = {}, .lm = {}});
      for (const double one : gap(length))
        curve.points.back().copy.push_back(0.5 + one), curve.points.back().lm.push_back(0.5);
    }
    for (const Artefact& model : study.labelled(row))
      write(model, "forgetting_curve", asked, {{Record{.batch = 1}}, points_of(curve), {}});
  }

  void write(const Artefact& model, const std::string& measure, const nlohmann::json& asked, const Evaluated& found) {
    const nlohmann::json key = {
        {"measure", measure}, {"version", evaluation_named(measure).version}, {"settings", asked}};
    nlohmann::json file = key;
    file["value"] = json_of(found);
    std::filesystem::create_directories(model.folder / "measured");
    write_sealed(model.folder / "done.json", nlohmann::json::object());  // names no weights
    write_sealed(model.folder / "measured" / (sha256(key.dump()).substr(0, 16) + ".json"), file);
  }

  std::vector<Comparison> judged() const { return experiment_.measure(study).comparisons; }

 private:
  TemporaryFolder folder_;
  Experiment experiment_;
  nlohmann::json settings_;
  Dataset no_text_;

 public:
  Study study{.experiment = experiment_,
              .settings = settings_,
              .dataset = no_text_,
              .data = {},
              .paper = {},
              .trained = {},
              .progress = [](double) {},
              .makes = false};
};

/// A gap that is the same for every seed and length.
auto always(const std::vector<double>& gaps) {
  return [gaps](uint64_t, int64_t) { return gaps; };
}

/// Architectures whose Transformer copies, one seed better than the other; FoX has the same gap in all repeats.
HandMade architectures(double of_fox, const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json settings = {{"rows", {kTransformer, kFox, kLocal}}, {"row_seeds", {{kTransformer, 2}, {kLocal, 2}}}};
  settings.merge_patch(changes);
  return HandMade("architectures", "smoke", settings, [of_fox](HandMade& claim) {
    claim.curve(kTransformer, [](uint64_t seed, int64_t) { return std::vector<double>(3, seed == 0 ? 0.48 : 0.42); });
    claim.curve(kFox, always({of_fox, of_fox, of_fox}));
    claim.curve(kLocal, always({0, 0, 0}));
    claim.curve(kUntrained, always(kNoise));
  });
}

/// A small Llama that copies up to 91 of 128 tokens, one seed better than the other.
HandMade small_model(const std::vector<double>& of_untrained,
                     const nlohmann::json& changes = nlohmann::json::object()) {
  return HandMade("small_model", "quick", changes, [&](HandMade& claim) {
    const auto copies = [](uint64_t seed, int64_t length) {
      return std::vector<double>(3, length > 91 ? 0 : seed == 0 ? 0.45 : 0.35);
    };
    claim.curve("Llama", copies);
    claim.curve("Llama", copies, {{"split", "train"}});
    claim.curve(kUntrained, always(of_untrained));
  });
}

/// Llama-XL without memory beyond its segments, whose loss falls by so much after the second, of so many seeds.
HandMade segment_recurrence(double fall, int seeds = 1) {
  return HandMade("segment_recurrence", "quick", {{"row_seeds", {{"Llama-XL", seeds}}}}, [&](HandMade& claim) {
    claim.curve("Llama", always({0.4, 0.41, 0.39}));
    if (seeds > 0) claim.curve("Llama-XL", always({0.001, -0.001, 0}));
    const auto& settings = claim.study.settings;
    const int64_t segment = settings.at("segment"),
                  longest = segment * settings.at("evaluation").at("segments").get<int64_t>();
    Evaluated found;
    for (const char* quantity : {"loss_at_position", "standard_error_at_position"})
      for (int64_t i = 1; i <= longest; ++i)
        found.points.push_back({.quantity = quantity,
                                .x = static_cast<double>(i),
                                .value = *quantity == 's'  ? 0.001
                                         : i > 2 * segment ? 2 - fall
                                                           : 2});
    const int64_t sequences = settings.at("evaluation").at("tokens").get<int64_t>() / longest;
    for (const Artefact& model : claim.study.trained)
      claim.write(
          model, "per_token_loss",
          {{"length", longest}, {"sequences", sequences}, {"kept", {"loss_at_position", "standard_error_at_position"}}},
          found);
  });
}

TEST(CurveClaims, SayHowMuchOfBothNoisesWouldDecideWhereEitherIsTooWide) {
  const HandMade claim(
      "architectures", "smoke",
      {{"rows", {kTransformer, kFox, kLocal}}, {"row_seeds", {{kTransformer, 2}, {kLocal, 2}}}}, [](HandMade& made) {
        made.curve(kTransformer,
                   [](uint64_t seed, int64_t) { return std::vector<double>(3, seed == 0 ? 0.48 : 0.42); });
        made.curve(kFox, always({0.3, -0.3, 0.06}));
        made.curve(kLocal, always({0, 0, 0}));
        made.curve(kUntrained, always(kNoise));
      });
  const Comparison found = one_of(claim.judged(), "FoX (Pro) copies at half of the training length");
  EXPECT_EQ(found.verdict(), Verdict::kInconclusive);
  EXPECT_NE(found.would_decide.find(" times the seeds and "), std::string::npos) << found.would_decide;
  EXPECT_TRUE(found.would_decide.ends_with(" times the text")) << found.would_decide;
}

TEST(CurveClaims, SayOfARowWithoutACurveThatItIsOutOfReach) {
  const HandMade claim = architectures(0.4);
  Curves curves(claim.study);
  for (const Artefact& model : claim.study.trained) curves.add(model, model.run.label);
  for (const Comparison& comparison : {curves.gap("", {{kFox, 1}, {"Decay", -1}}, 32, Expectation::positive()),
                                       curves.control("", "Decay", 32, Expectation::within(0.01)),
                                       curves.memory("", "Decay", fine_memory, 1, Expectation::within(0))}) {
    EXPECT_EQ(comparison.verdict(), Verdict::kOutOfReach);
    EXPECT_EQ(comparison.absent_row, "Decay");
  }
}

TEST(CurveClaims, AskForFineMemoryWhereTheTransformerHasSome) {
  for (const double of_transformer : {0.3, 0.5}) {  // copied to 0.8, and to the last token
    const HandMade claim("architectures", "smoke", {{"rows", {kTransformer, "Decay"}}, {"row_seeds", {{"Decay", 1}}}},
                         [&](HandMade& made) {
                           made.curve(kTransformer, always(std::vector<double>(3, of_transformer)));
                           made.curve("Decay", always(kNoise));
                           made.curve(kUntrained, always(kNoise));
                         });
    EXPECT_EQ(one_of(claim.judged(), "Decay has no fine memory").verdict(),
              of_transformer < 0.49 ? Verdict::kInconclusive : Verdict::kReproduced);
  }
}

/// fox_models, trained on 64 tokens, whose FoX (Pro) copies to 32 of them and Transformer (Pro) to 16; curves to `longest`.
HandMade fox_models(int64_t longest) {
  const nlohmann::json changes = {
      {"rows", {kFox, kTransformer, "FoX (Pro) untrained"}},
      {"attention_rows", {kFox, kTransformer}},
      {"curve", {{"length", longest}, {"spacing", "logarithmic"}, {"steps", longest == 128 ? 5 : 2}}}};
  return HandMade("fox_models", "smoke", changes, [](HandMade& made) {
    const auto copies_to = [](int64_t last) {
      return [last](int64_t length) {
        return length <= last ? std::vector<double>{0.2, 0.21, 0.19} : std::vector<double>{0.001, -0.001, 0};
      };
    };
    made.curve_at_once(kFox, copies_to(32));
    made.curve_at_once(kTransformer, copies_to(16));
    made.curve_at_once("FoX (Pro) untrained", [](int64_t) { return kNoise; });
  });
}

TEST(FoxModels, AreAskedAtAQuarterAHalfAndTwiceTheirTrainingLength) {
  const auto judged = fox_models(128).judged();
  EXPECT_EQ(one_of(judged, "FoX (Pro) copies at half").verdict(), Verdict::kTrendReproduced);
  EXPECT_EQ(one_of(judged, "Transformer (Pro) copies at half").verdict(), Verdict::kInconclusive);
  EXPECT_EQ(one_of(judged, "Transformer (Pro) copies a quarter").verdict(), Verdict::kTrendReproduced);
  EXPECT_EQ(one_of(judged, "FoX (Pro): the curves meet at twice").verdict(), Verdict::kReproduced);
}

TEST(FoxModels, AreNotAskedBeyondTheirCurves) {
  for (const char* begin : {"FoX (Pro) copies at half", "FoX (Pro): the curves meet at twice"})
    EXPECT_EQ(one_of(fox_models(16).judged(), begin).open, "this scale has no curve at that length");
}

TEST(CurveControls, HaveTheBandOfTheirRepeatsAlone) {
  const HandMade claim = architectures(0.4);
  Curves curves(claim.study);
  for (const Artefact& model : claim.study.trained) curves.add(model, model.run.label);
  const auto none = Expectation::within(0.01);
  const Comparison control = curves.control("", kUntrained, 32, none),
                   other = curves.gap("", {{kUntrained, 1}}, 32, none);
  EXPECT_NEAR(control.band, band_of_mean(kNoise), 1e-12);
  EXPECT_EQ(control.measured, other.measured);
  EXPECT_EQ(control.verdict(), Verdict::kReproduced);
  EXPECT_GT(other.band, 0.1) << "the scatter of the Transformer's seeds";
  EXPECT_EQ(other.verdict(), Verdict::kInconclusive);
}

TEST(CurveControls, AreDecidedHoweverTheSeedsOfOtherRowsScatter) {
  const auto of_architectures = architectures(0.4).judged();
  EXPECT_EQ(one_of(of_architectures, "Untrained: no gap").verdict(), Verdict::kReproduced);
  const Comparison& local = one_of(of_architectures, "Local attention copies nothing");
  EXPECT_EQ(local.band, 0) << "to the bit";
  EXPECT_EQ(local.verdict(), Verdict::kReproduced);
  EXPECT_EQ(overall(of_architectures), Verdict::kTrendReproduced);
  EXPECT_EQ(one_of(small_model(kNoise).judged(), "Untrained: no gap").verdict(), Verdict::kReproduced);
}

TEST(CurveControls, ThatCopyRefuteTheClaim) {
  const auto judged = small_model({0.05, 0.051, 0.049}).judged();
  EXPECT_EQ(one_of(judged, "Untrained: no gap").verdict(), Verdict::kRefuted);
  EXPECT_EQ(overall(judged), Verdict::kRefuted);
  EXPECT_EQ(overall(small_model(kNoise).judged()), Verdict::kTrendReproduced);
}

TEST(SmallModel, OfAnotherArchitectureHasAStatementWhereItRan) {
  const nlohmann::json others = {{"other_rows", {"FoX (LLaMA)", "Decay"}}, {"state_size", 4}};
  HandMade claim = small_model(kNoise, others);
  const std::string of_fox = "FoX (LLaMA) has coarse memory of half to all", of_decay = "Llama copies more than Decay";
  claim.curve("FoX (LLaMA)", always({0.4, 0.41, 0.39}));
  claim.curve("Decay", always({0.02, 0.03, 0.01}));
  EXPECT_EQ(one_of(claim.judged(), of_fox).verdict(), Verdict::kReproduced);
  EXPECT_EQ(one_of(claim.judged(), of_decay).verdict(), Verdict::kTrendReproduced);
  claim.curve("FoX (LLaMA)", always({0, 0, 0}));
  claim.curve("Llama", always({0.1, 0.11, 0.09}));  // without the seeds' scatter
  claim.curve("Decay", always({0.4, 0.41, 0.39}));
  EXPECT_EQ(one_of(claim.judged(), of_fox).verdict(), Verdict::kRefuted);
  EXPECT_EQ(one_of(claim.judged(), of_decay).verdict(), Verdict::kRefuted);
  for (const Artefact& model : claim.study.trained) EXPECT_EQ(model.run.model.mlp_ratio, 6) << model.run.label;
}

TEST(SegmentRecurrence, IsRefutedByALossThatRisesAndOutOfReachWithoutLlamaXl) {
  const auto loss = [](const HandMade& claim) {
    return one_of(claim.judged(), "The loss of Llama-XL falls").verdict();
  };
  EXPECT_EQ(loss(segment_recurrence(-0.1)), Verdict::kRefuted);
  EXPECT_EQ(loss(segment_recurrence(0.1)), Verdict::kTrendReproduced);
  EXPECT_EQ(loss(segment_recurrence(0.1, 0)), Verdict::kOutOfReach);
  EXPECT_EQ(one_of(segment_recurrence(0.1, 0).judged(), "Llama, which sees the whole text").verdict(),
            Verdict::kTrendReproduced);
}

/// prefix_sources of a model that copies its own split and `train` as far as 128 tokens, if no other length is given.
struct Sources {
  double less = 0;                            ///< LM accuracy after random tokens, below that after language
  int64_t own = 128, test = 128, random = 8;  ///< the last length that is copied
};
HandMade prefix_sources(const Sources& sources) {
  return HandMade("prefix_sources", "quick", nlohmann::json::object(), [&sources](HandMade& claim) {
    const auto copies_to = [](int64_t last) {
      return [last](uint64_t, int64_t length) { return std::vector<double>(10, length <= last ? 0.4 : 0); };
    };
    std::vector<double> after_text, after_random;
    for (int i = 0; i < 10; ++i) {
      after_text.push_back(0.5 + 0.001 * i);
      after_random.push_back(after_text.back() - sources.less);
    }
    claim.curve(kTransformer, copies_to(sources.own), nlohmann::json::object(), after_text);
    for (const char* source : {"test", "train", "shuffled", "random"})
      claim.curve(kTransformer, copies_to(sources.own), {{"irrelevant", source}},
                  std::string(source) == "random" ? after_random : after_text);
    for (const auto& [source, last] :
         {std::pair("train", int64_t{128}), std::pair("test", sources.test), std::pair("random", sources.random)})
      claim.curve(kTransformer, copies_to(last), {{"split", source}, {"irrelevant", "valid"}});
  });
}

const char *kAnova = "LM accuracy doesn't depend", *kKruskal = "The same by Kruskal", *kTest = "Copies of test text";

TEST(PrefixSources, AreAlikeWhereRandomTokensAreNot) {
  const auto judged = prefix_sources({.less = 0.2}).judged();
  for (const Comparison& comparison : judged)
    EXPECT_EQ(comparison.verdict(), Verdict::kReproduced) << comparison.statement;
  EXPECT_EQ(one_of(judged, kTest).control->measured, -4);
}

TEST(PrefixSources, AreOpenWhereRandomTokensAreAlikeToo) {
  const auto judged = prefix_sources({.random = 64}).judged();
  for (const char* begin : {kAnova, kKruskal}) {
    EXPECT_EQ(one_of(judged, begin).measured, 1);
    EXPECT_EQ(one_of(judged, begin).verdict(), Verdict::kInconclusive);
    EXPECT_NE(one_of(judged, begin).open.find("it has no power here"), std::string::npos);
  }
  EXPECT_EQ(one_of(judged, kTest).verdict(), Verdict::kInconclusive);
  EXPECT_EQ(one_of(judged, kTest).control->measured, -1);
  EXPECT_NE(one_of(judged, kTest).open, "");
}

TEST(PrefixSources, AreRefutedByOneThatIsNotCopied) {
  const Comparison found = one_of(prefix_sources({.less = 0.2, .test = 0}).judged(), kTest);
  EXPECT_EQ(found.measured, -5) << "no memory counts as half of the shortest length";
  EXPECT_EQ(found.verdict(), Verdict::kRefuted);
}

TEST(PrefixSources, AreOpenOfAModelWithoutCoarseMemory) {
  const Comparison found = one_of(prefix_sources({.less = 0.2, .own = 0, .test = 0, .random = 0}).judged(), kTest);
  EXPECT_EQ(found.verdict(), Verdict::kInconclusive);
  EXPECT_EQ(found.open, "the model has no coarse memory of its own split");
}

TEST(FirstRuns, ThatChangedSettingsOrRulesAreNotedBesideEachVerdict) {
  const nlohmann::json words = {{"first_run", "in a first run"}, {"control_after_a_run", "in a first run"}};
  for (const auto& judged : {architectures(0.4, words).judged(), small_model(kNoise).judged(),
                             segment_recurrence(0.1).judged(), prefix_sources({}).judged()})
    for (const Comparison& comparison : judged)
      EXPECT_NE(comparison.note.find("a first run"), std::string::npos) << comparison.statement;
}

}  // namespace
}  // namespace lethe

// The forgetting curve of models whose answer is known, and its rules on a published curve.

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/forgetting_curve.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/mixers/local.hpp"
#include "tests/experiments/evaluation/published_curve.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

const Dataset& curve_text() {
  static const TemporaryFolder folder;
  static const Dataset dataset(write_tiny_dataset(folder.path()));
  return dataset;
}

CurveSettings short_curve() { return {.split = "train", .length = 64, .sequences = 4, .steps = 8, .targets = 400}; }

/// The L of a prompt [s] S [s] S of T + 1 tokens.
int64_t length_of(const Tensor& tokens) { return (tokens.size(1) - 1) / 2; }

/// The tokens that a copier of the first S predicts: what follows the same place there.
Tensor copied(const Tensor& tokens, const Tensor& labels) {
  return tokens.narrow(1, tokens.size(1) - labels.size(1) - length_of(tokens), labels.size(1));
}

/// A copier that sees the last `window` tokens, and else predicts one token always.
Guesses copying_guesses(int64_t window) {
  return [=](const Tensor& tokens, const Tensor& labels) {
    return (length_of(tokens) + 1 <= window ? copied(tokens, labels) : torch::full_like(labels, 'e')) == labels;
  };
}

/// A copier that errs at random.
Guesses copier_with_errors(double rate) {
  return [=](const Tensor& tokens, const Tensor& labels) {
    return (copied(tokens, labels) == labels).logical_and(torch::rand(labels.sizes()) >= rate);
  };
}

Guesses guesses_of(LanguageModel& model) {
  return [&](const Tensor& tokens, const Tensor& labels) { return predictions_of_last(model, tokens, labels).correct; };
}

TEST(ForgettingCurve, OfAPerfectCopierIsFineToTheEnd) {
  const ForgettingCurve curve = forgetting_curve(copying_guesses(1 << 20), curve_text(), short_curve());
  ASSERT_EQ(curve.points.size(), 8u);
  for (const CurvePoint& point : curve.points) {
    EXPECT_EQ(point.copy, std::vector<double>(4, 1.0)) << point.length;
    EXPECT_LT(point.lm_accuracy(), 0.5) << point.length;
    EXPECT_GT(point.lm_accuracy(), 0) << "by chance";
    EXPECT_LT(point.p(), 0.01);
  }
  EXPECT_EQ(curve.fine().length, 64);
  EXPECT_TRUE(curve.fine().is_longest);
  EXPECT_EQ(curve.coarse().length, 64);
  EXPECT_TRUE(curve.coarse().is_longest);
}

TEST(ForgettingCurve, OfACopierWithAWindowEndsAtTheWindow) {
  for (const auto& [window, last] : {std::pair<int64_t, int64_t>(41, 40), {40, 32}, {8, 0}}) {
    const ForgettingCurve curve = forgetting_curve(copying_guesses(window), curve_text(), short_curve());
    EXPECT_EQ(curve.fine().length, last);
    EXPECT_EQ(curve.coarse().length, last);
    EXPECT_FALSE(curve.fine().is_longest);
    for (const CurvePoint& point : curve.points)
      if (point.length > last) {
        EXPECT_EQ(point.copy, point.lm) << "one target, one prediction";
      }
  }
}

TEST(ForgettingCurve, OfAUnigramHasNoGap) {
  const ForgettingCurve curve = forgetting_curve(copying_guesses(0), curve_text(), short_curve());
  for (const CurvePoint& point : curve.points) {
    EXPECT_EQ(point.copy, point.lm);
    EXPECT_GT(point.lm_accuracy(), 0.02);
    EXPECT_EQ(point.p(), 1);
  }
  EXPECT_EQ(curve.coarse().length, 0);
  EXPECT_EQ(curve.fine().length, 0);
}

TEST(ForgettingCurve, OfACopierWithErrorsIsFineBelowOnePercent) {
  CurveSettings settings = short_curve();
  settings.targets = 4000;
  torch::manual_seed(5);
  const auto curve = [&](double rate) { return forgetting_curve(copier_with_errors(rate), curve_text(), settings); };
  EXPECT_EQ(curve(0.005).fine().length, 64);
  EXPECT_EQ(curve(0.02).fine().length, 0);
  EXPECT_EQ(curve(0.02).coarse().length, 64);
}

TEST(ForgettingCurve, KeepsTheLastPassingLengthOfAPublishedCurve) {
  ForgettingCurve curve;
  for (const PublishedPoint& point : kPublishedCurve) curve.points.push_back(point.accuracies());
  EXPECT_LT(curve.points.front().copy_accuracy(), 0.99) << "the shortest fails the rule";
  EXPECT_EQ(curve.fine().length, 4134);
  EXPECT_FALSE(curve.fine().is_longest);
  EXPECT_EQ(curve.coarse().length, 9293);
  EXPECT_TRUE(curve.coarse().is_longest) << "the paper: >9k";
  EXPECT_EQ(curve.coarse(0.01).length, 6714) << "p is 0.016 at 9293";
}

/// The losses of both curves, call by call, copy first.
std::vector<Tensor> losses_of(LanguageModel& model, const CurveSettings& settings) {
  std::vector<Tensor> losses;
  forgetting_curve(
      [&](const Tensor& tokens, const Tensor& labels) {
        const auto found = predictions_of_last(model, tokens, labels);
        losses.push_back(found.losses);
        return found.correct;
      },
      curve_text(), settings);
  return losses;
}

/// Whether the prompts with and without a copy have the same losses, bit for bit, at a length.
bool are_alike(LanguageModel& model, int64_t length, CurveSettings settings = short_curve()) {
  settings.length = length;
  settings.steps = 1;
  const std::vector<Tensor> losses = losses_of(model, settings);
  EXPECT_GT(losses.size(), 0u);
  bool alike = true;
  for (size_t call = 0; call < losses.size(); call += 2) alike = alike && losses[call].equal(losses[call + 1]);
  return alike;
}

// Targets that count are guessed from ⌊L/2⌋ + 1 tokens after the first S or more; n layers with window W see n(W − 1) tokens back.
TEST(ForgettingCurve, OfLocalAttentionEndsAtItsWindow) {
  constexpr int64_t kLayers = 3, kWindow = 4, kReach = kLayers * (kWindow - 1);
  LocalConfig local;
  local.window = kWindow;
  local.kv_shift = false;
  ModelConfig config = tiny_model(llama(local));
  config.layers = kLayers;
  LanguageModel model(config);
  EXPECT_FALSE(are_alike(model, 2 * kReach - 1));
  for (const int64_t length : {2 * kReach, 2 * kReach + 1, int64_t{64}}) EXPECT_TRUE(are_alike(model, length));

  CurveSettings settings = short_curve();
  settings.length = 60;
  settings.steps = 6;
  for (const CurvePoint& point : forgetting_curve(guesses_of(model), curve_text(), settings).points)
    if (point.length >= 2 * kReach) {
      EXPECT_EQ(point.copy, point.lm) << point.length;
    }
}

TEST(ForgettingCurve, OfAGateThatClosesAtTheSeparatorHasNoGap) {
  ModelConfig config = tiny_model(named_architecture("fox-llama"));
  config.layers = 1;
  LanguageModel model(config);
  EXPECT_FALSE(are_alike(model, 32));
  {
    // The first entry of an embedding marks the begin token; its gate is e^−1000·√width there.
    const torch::NoGradGuard no_gradient;
    auto weights = model->named_parameters();
    Tensor& embeddings = weights["model.embeddings.weight"];
    embeddings.select(1, 0).zero_();
    embeddings[curve_text().begin_token()].zero_();
    embeddings[curve_text().begin_token()][0] = 1;
    for (auto& parameter : weights)
      if (parameter.key().find("fgate_proj.weight") != std::string::npos) parameter.value().select(1, 0).fill_(-1000);
  }
  EXPECT_TRUE(are_alike(model, 32));
  CurveSettings another = short_curve();
  another.separator = Separator::kNone;
  EXPECT_FALSE(are_alike(model, 32, another)) << "without a begin token the gate stays open";
}

/// The prompts of one length, copy and irrelevant in turn.
std::vector<Tensor> prompts_of(CurveSettings settings, int64_t length) {
  settings.length = length;
  settings.steps = 1;
  std::vector<Tensor> prompts;
  forgetting_curve(
      [&](const Tensor& tokens, const Tensor& labels) {
        prompts.push_back(torch::cat({tokens, labels.narrow(1, labels.size(1) - 1, 1)}, 1));
        return torch::ones_like(labels, torch::kBool);
      },
      curve_text(), settings);
  return prompts;
}

TEST(ForgettingCurve, HasPromptsOfSeparatedText) {
  constexpr int64_t kLength = 11;
  for (const auto& [separator, token] : {std::pair(Separator::kBegin, curve_text().begin_token()),
                                         {Separator::kNewline, int64_t{'\n'}},
                                         {Separator::kNone, int64_t{-1}}}) {
    CurveSettings settings = short_curve();
    settings.separator = separator;
    const int64_t s = token < 0 ? 0 : 1;
    const std::vector<Tensor> prompts = prompts_of(settings, kLength);
    ASSERT_EQ(prompts.size() % 2, 0u);
    int64_t targets = 0;
    for (size_t call = 0; call < prompts.size(); call += 2) {
      const Tensor &copy = prompts[call], &lm = prompts[call + 1];
      ASSERT_EQ(copy.size(1), 2 * (kLength + s));
      const Tensor first = copy.narrow(1, s, kLength), second = copy.narrow(1, 2 * s + kLength, kLength);
      EXPECT_TRUE(first.equal(second));
      EXPECT_TRUE(lm.narrow(1, 2 * s + kLength, kLength).equal(second)) << "paired";
      EXPECT_FALSE(lm.narrow(1, s, kLength).equal(first));
      for (const Tensor& prompt : {copy, lm})
        for (const int64_t place : {int64_t{0}, kLength + s})
          if (s == 1) {
            EXPECT_TRUE((prompt.select(1, place) == token).all().item<bool>());
          }
      targets += copy.size(0) * ((kLength + 1) / 2);
    }
    EXPECT_GE(targets, settings.targets);
    EXPECT_LT(targets, settings.targets + settings.sequences * kLength) << "and no more than needed";
  }
}

TEST(ForgettingCurve, TakesIrrelevantTextOutsideOfTheTarget) {
  // A text of distinct tokens: equal tokens are one place.
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "text");
  std::string bytes(90, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i + 1);
  for (int document = 0; document < 24; ++document)
    std::ofstream(folder.path() / "text" / (std::to_string(document) + ".txt")) << bytes;
  const Dataset dataset(prepared_dataset((folder.path() / "text").string(), "bytes", folder.path() / "data"));
  CurveSettings settings{.split = "valid", .length = dataset.tokens("valid") / 3, .steps = 1, .targets = 40000};
  ASSERT_LT(settings.length, 91);
  std::set<int64_t> begins;
  forgetting_curve(
      [&](const Tensor& tokens, const Tensor& labels) {
        for (int64_t row = 0; row < tokens.size(0); ++row) {
          const Tensor first = tokens[row].narrow(0, 1, settings.length);
          const Tensor second = tokens[row].narrow(0, settings.length + 2, settings.length - 1);
          begins.insert(first[0].item<int64_t>());
          if (begins.size() > 400) break;
          const bool is_copy = first.narrow(0, 0, settings.length - 1).equal(second);
          const bool meets = (first.unsqueeze(1) == second.unsqueeze(0)).any().item<bool>();
          EXPECT_EQ(is_copy, meets);
        }
        return torch::ones_like(labels, torch::kBool);
      },
      dataset, settings);
  EXPECT_GT(begins.size(), 20u) << "from everywhere";
}

TEST(ForgettingCurve, KeepsTheTargetsWhereIrrelevantTextChanges) {
  const std::vector<Tensor> own = prompts_of(short_curve(), 16);
  for (const char* source : {"valid", "random", "shuffled"}) {
    CurveSettings settings = short_curve();
    settings.irrelevant = source;
    const std::vector<Tensor> other = prompts_of(settings, 16);
    ASSERT_EQ(own.size(), other.size());
    for (size_t call = 0; call < own.size(); call += 2) {
      EXPECT_TRUE(own[call].equal(other[call]));
      EXPECT_FALSE(own[call + 1].equal(other[call + 1])) << source;
    }
  }
}

TEST(ForgettingCurve, TellsWhichLengthsAreNotMeasurable) {
  CurveSettings settings = short_curve();
  settings.split = "valid";
  settings.length = curve_text().tokens("valid") / 2;
  settings.steps = 4;
  ForgettingCurve curve = forgetting_curve(copying_guesses(1 << 20), curve_text(), settings);
  EXPECT_EQ(curve.points.size(), 2u);
  ASSERT_EQ(curve.not_measurable.size(), 2u);
  EXPECT_NE(curve.not_measurable[0].reason.find("expected a source of"), std::string::npos);
  EXPECT_TRUE(curve.fine().is_longest) << "of what was measured";

  const auto small_memory = [](const Tensor& tokens, const Tensor& labels) {
    if (tokens.size(1) > 100) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "full");
    return torch::ones_like(labels, torch::kBool);
  };
  curve = forgetting_curve(small_memory, curve_text(), short_curve());
  EXPECT_EQ(curve.points.size(), 6u) << "8, 16, … 48";
  ASSERT_EQ(curve.not_measurable.size(), 2u);
  EXPECT_EQ(curve.not_measurable[1].length, 64);
  EXPECT_NE(curve.not_measurable[1].reason.find("expected memory for a prompt of 113"), std::string::npos);
}

TEST(ForgettingCurve, HasLinearOrLogarithmicLengths) {
  CurveSettings settings{.length = 64, .steps = 4};
  EXPECT_EQ(settings.lengths(), (std::vector<int64_t>{16, 32, 48, 64}));
  settings.spacing = Spacing::kLogarithmic;
  EXPECT_EQ(settings.lengths(), (std::vector<int64_t>{8, 16, 32, 64}));
  settings.steps = 32;
  settings.length = 10;
  EXPECT_EQ(settings.lengths(), (std::vector<int64_t>{8, 9, 10})) << "each once";
  settings.steps = 1;
  EXPECT_EQ(settings.lengths(), (std::vector<int64_t>{10}));
}

TEST(ForgettingCurve, HoldsItsRawAccuraciesInThePoints) {
  LanguageModel model(tiny_model());
  const Evaluated found = evaluation_named("forgetting_curve")
                              .run(model, curve_text(), {{"length", 32}, {"steps", 4}, {"targets", 400}}, {});
  const ForgettingCurve curve = curve_of(found.points);
  ASSERT_EQ(curve.points.size(), 4u);
  const std::vector<double> copy = found.curve("copy_at_length"), p = found.curve("p_at_length");
  for (size_t l = 0; l < 4; ++l) {
    EXPECT_EQ(curve.points[l].length, 8 * static_cast<int64_t>(l + 1));
    EXPECT_EQ(curve.points[l].copy.size(), 10u);
    EXPECT_EQ(curve.points[l].copy_accuracy(), copy[l]);
    EXPECT_EQ(curve.points[l].p(), p[l]);
  }
  EXPECT_EQ(static_cast<double>(curve.coarse().length), found.value("coarse_length"));
}

}  // namespace
}  // namespace lethe

// The needle in a haystack, found by predictors that copy and not by others.

#include <gtest/gtest.h>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/needle.hpp"
#include "experiments/files.hpp"
#include "tests/experiments/evaluation/oracles.hpp"

namespace lethe {
namespace {

class NeedleTest : public TinyDatasetTest {
 protected:
  static NeedleSettings settings(NeedlePrompt prompt) {
    NeedleSettings settings;
    settings.lengths = {600, 1200};
    settings.prompt = prompt;
    return settings;
  }
  std::string text(const NeedleTexts& texts, int64_t length, double depth, bool with_needle = true) const {
    return dataset.decode(texts.before_answer(length, depth, 0, with_needle));
  }
};

constexpr const char* kNeedle =
    "\nWhat is the best thing to do in San Francisco? Answer: The best thing to do in San Francisco is eat a sandwich "
    "and sit in Dolores Park on a sunny day.\n";

TEST_F(NeedleTest, StandsAfterAFullStopAtItsDepth) {
  const NeedleTexts texts(dataset, settings(NeedlePrompt::kPaper));
  for (const int64_t length : {600, 1200})
    for (const double depth : {0.0, 50.0, 100.0}) {
      const std::string whole = text(texts, length, depth);
      EXPECT_EQ(std::ssize(whole), length);
      EXPECT_TRUE(
          whole.ends_with("Answer the following question: What is the best thing to do in San Francisco? Answer:"));
      const auto place = static_cast<int64_t>(whole.find(kNeedle));
      const int64_t hay = length - std::ssize(std::string(kNeedle)) -
                          (length - static_cast<int64_t>(whole.find("\n\nThere is an important piece")));
      EXPECT_LE(std::abs(static_cast<double>(place) - depth / 100 * static_cast<double>(hay)), 40) << "a sentence";
      EXPECT_TRUE(place == 0 || whole[place - 1] == '.');
      EXPECT_EQ(text(texts, length, depth, false).find("San Francisco is"), std::string::npos);
      EXPECT_EQ(std::ssize(text(texts, length, depth, false)), length);
    }
}

TEST_F(NeedleTest, HasTheAnswersBeginInTheCodesPrompt) {
  const NeedleTexts paper(dataset, settings(NeedlePrompt::kPaper)), code(dataset, settings(NeedlePrompt::kCode));
  EXPECT_EQ(dataset.decode(paper.answer()),
            " The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.");
  EXPECT_EQ(dataset.decode(code.answer()), " eat a sandwich and sit in Dolores Park on a sunny day.");
  EXPECT_TRUE(text(code, 600, 0).ends_with("San Francisco? Answer: The best thing to do in San Francisco is"));
}

TEST_F(NeedleTest, IsFoundByAPerfectCopierAndOnlyWithTheNeedle) {
  for (const NeedlePrompt prompt : {NeedlePrompt::kPaper, NeedlePrompt::kCode}) {
    const NeedleTexts texts(dataset, settings(prompt));
    for (const double depth : {0.0, 50.0, 100.0}) {
      const Needle found = measured_needle(copier(48), texts, dataset, 1200, depth, 1);
      EXPECT_TRUE(found.exact) << depth;
      EXPECT_EQ(found.tokens_correct, 1);
      EXPECT_EQ(found.log_probability, 0);
      EXPECT_LT(found.without_needle, -20 * 30);
      EXPECT_GT(found.gain(), 10);
    }
  }
}

TEST_F(NeedleTest, IsLostByACopierWhoseWindowEndsBeforeIt) {
  const NeedleTexts texts(dataset, settings(NeedlePrompt::kCode));
  EXPECT_TRUE(measured_needle(copier(48, 500), texts, dataset, 1200, 100, 0).exact);
  const Needle lost = measured_needle(copier(48, 500), texts, dataset, 1200, 0, 0);
  EXPECT_FALSE(lost.exact);
  EXPECT_EQ(lost.gain(), 0);
}

TEST_F(NeedleTest, GainsNothingWithAModelThatReadsNoContext) {
  LanguageModel model = unigram_model(std::vector<double>(257, -std::log(257.0)));
  const Evaluated found = evaluation_named("needle").run(
      model, dataset, {{"lengths", {600}}, {"depths", {0, 50, 100}}, {"repeats", 2}, {"prompt", "code"}}, {});
  EXPECT_EQ(found.value("gain"), 0);
  EXPECT_EQ(found.value("exact_match"), 0);
  EXPECT_NEAR(found.value("log_probability"), -55 * std::log(257.0), 1e-2);
  EXPECT_EQ(found.curve("gain_at_length_and_depth").size(), 6u) << "every prompt is a point";
}

TEST_F(NeedleTest, ReadsAHaystackFromAFolder) {
  std::filesystem::create_directories(folder.path() / "hay" / "below");
  overwrite(folder.path() / "hay" / "below" / "b.txt", "Second book. ");
  overwrite(folder.path() / "hay" / "a.txt", "First book. ");
  overwrite(folder.path() / "hay" / "c.md", "No book.");
  NeedleSettings of_folder = settings(NeedlePrompt::kPaper);
  of_folder.haystack = folder.path() / "hay";
  const std::string whole = text(NeedleTexts(dataset, of_folder), 1200, 0, false);
  EXPECT_NE(whole.find("First book. Second book. First book. "), std::string::npos);
  EXPECT_EQ(whole.find("No book"), std::string::npos);
  of_folder.haystack = folder.path() / "absent";
  EXPECT_THROW(NeedleTexts(dataset, of_folder), std::invalid_argument);
}

TEST_F(NeedleTest, RefusesLengthsWithoutRoomAndDepthsOutside) {
  NeedleSettings small = settings(NeedlePrompt::kPaper);
  small.lengths = {100};
  EXPECT_THROW(NeedleTexts(dataset, small), std::invalid_argument);
  LanguageModel model(tiny_model());
  const auto refusal = [&](const nlohmann::json& settings) {
    try {
      evaluation_named("needle").run(model, dataset, settings, {});
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal({{"lengths", {600}}, {"depths", {101}}}).find("needle.depths: expected per cent"), 0u);
  EXPECT_EQ(refusal({{"lengths", {600, "x"}}}), "needle.lengths[1]: expected a whole number, found \"x\"");
  EXPECT_EQ(refusal({{"prompt", "other"}}), "needle.prompt: expected one of paper, code, found \"other\"");
}

TEST_F(NeedleTest, GoesOnAfterAnInterruptedCall) {
  LanguageModel model(tiny_model());
  const std::string raw = folder.path() / "raw.jsonl";
  const nlohmann::json settings = {{"lengths", {600}}, {"depths", {0, 100}}, {"repeats", 2}, {"raw", raw}};
  const auto run = [&] { return evaluation_named("needle").run(model, dataset, settings, {}); };
  const Evaluated whole = run();
  const std::string written = read_whole(raw);
  overwrite(raw, written.substr(0, written.size() - 5));
  EXPECT_EQ(run().curve("log_probability_at_length_and_depth"), whole.curve("log_probability_at_length_and_depth"));
  EXPECT_EQ(read_whole(raw), written);
  LanguageModel other(tiny_model(), torch::kCPU, 1);
  EXPECT_THROW(evaluation_named("needle").run(other, dataset, settings, {}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe

#include <gtest/gtest.h>

#include <cmath>

#include "experiments/evaluation/per_token_loss.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

TEST(PerTokenLoss, IsSmoothedByAWindowThatIsCutAtTheEnds) {
  const PerTokenLoss losses{.loss = {1, 2, 6, 4, 5}, .standard_error = {}, .sequences = 1};
  EXPECT_EQ(losses.smoothed(3), (std::vector<double>{1.5, 3, 4, 5, 4.5}));
  EXPECT_EQ(losses.smoothed(1), losses.loss);
  EXPECT_THROW(losses.smoothed(2), std::invalid_argument);
}

TEST(PerTokenLoss, GivesThePerplexityOfEveryLength) {
  const PerTokenLoss losses{.loss = {std::log(8), std::log(2)}, .standard_error = {}, .sequences = 1};
  EXPECT_NEAR(losses.perplexity(1), 8, 1e-12);
  EXPECT_NEAR(losses.perplexity(2), 4, 1e-12);
  EXPECT_NEAR(losses.mean(), std::log(4), 1e-12);
  EXPECT_THROW(losses.perplexity(3), std::invalid_argument);
  EXPECT_THROW(losses.perplexity(0), std::invalid_argument);
}

class Evaluation : public TinyDatasetTest {
 protected:
  LanguageModel model{tiny_model()};
};

TEST_F(Evaluation, IsTheMeanOverSequencesWithItsStandardError) {
  const int64_t length = 64, count = 5;
  const auto batch = dataset.sequences("valid", 0, count, length);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor losses = model->losses(batch.tokens, batch.labels).to(torch::kFloat64);
  const torch::Tensor error = losses.std(0) / std::sqrt(static_cast<double>(count));
  const PerTokenLoss found = per_token_loss(model, dataset, "valid", length, count);
  ASSERT_EQ(std::ssize(found.loss), length);
  EXPECT_EQ(found.sequences, count);
  for (int64_t i = 0; i < length; ++i) {
    EXPECT_NEAR(found.loss[i], losses.mean(0)[i].item<double>(), 1e-6);
    EXPECT_NEAR(found.standard_error[i], error[i].item<double>(), 1e-6);
  }
}

TEST_F(Evaluation, KeepsEverySequenceInOctavesOfPositions) {
  const PerTokenLoss found = per_token_loss(model, dataset, "valid", 48, 3);
  EXPECT_EQ(found.octaves, (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 48}));
  ASSERT_EQ(found.by_octave.size(), 3u);
  double octave = 0, positions = 0;  // the last one, of positions 33 … 48
  for (const auto& means : found.by_octave) octave += means.back() / 3;
  for (int64_t i = 32; i < 48; ++i) positions += found.loss[i] / 16;
  EXPECT_NEAR(octave, positions, 1e-12);
}

TEST_F(Evaluation, DoesNotDependOnHowManySequencesGoTogether) {
  const int64_t length = 1024;  // eight sequences a forward call
  const int64_t count = std::min<int64_t>(9, dataset.sequence_count("train", length));
  ASSERT_GT(count * length, kEvaluationTokens);
  const PerTokenLoss found = per_token_loss(model, dataset, "train", length, count);
  const torch::NoGradGuard no_gradient;
  torch::Tensor sum = torch::zeros({length}, torch::kFloat64);
  for (int64_t n = 0; n < count; ++n) {
    const auto one = dataset.sequences("train", n, 1, length);
    sum += model->losses(one.tokens, one.labels)[0];
  }
  for (int64_t i = 0; i < length; ++i) EXPECT_NEAR(found.loss[i], sum[i].item<double>() / count, 1e-5);
}

TEST_F(Evaluation, GoesBeyondTheTrainingLengthAndTakesWhatThereIs) {
  const int64_t length = 4 * tiny_run().training.context_length;
  const PerTokenLoss found = per_token_loss(model, dataset, "valid", length, 1 << 20);
  EXPECT_EQ(found.sequences, dataset.sequence_count("valid", length));
  for (const double loss : found.loss) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_THROW(per_token_loss(model, dataset, "valid", dataset.tokens("valid") + 1, 1), std::invalid_argument);
}

TEST_F(Evaluation, PutsTheModeOfTheModelBack) {
  model->train();
  per_token_loss(model, dataset, "valid", 32, 1);
  EXPECT_TRUE(model->is_training());
  model->eval();
  per_token_loss(model, dataset, "valid", 32, 1);
  EXPECT_FALSE(model->is_training());
}

TEST(TextBytes, CountEveryTokenButTheBeginTokens) {
  const TemporaryFolder folder;
  const Dataset dataset(write_tiny_dataset(folder.path()));
  const int64_t length = 32, count = dataset.sequence_count("train", length);
  int64_t expected = 0;
  for (int64_t piece = 0; piece < count; ++piece)
    expected += (dataset.sequences("train", piece, 1, length).labels != dataset.begin_token()).sum().item<int64_t>();
  EXPECT_EQ(text_bytes(dataset, "train", length, count), expected);
  EXPECT_LT(expected, count * length);
  EXPECT_THROW(text_bytes(dataset, "train", length, count + 1), std::invalid_argument);
}

}  // namespace
}  // namespace lethe

// Multi-query associative recall: the sequences, and what oracles and trained models score.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "experiments/evaluation/associative_recall.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/files.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

RecallTask small_task(int64_t updates, int64_t length = 0) {
  return {.pairs = 6, .updates = updates, .vocabulary = 32, .length = length};
}

/// The values that the context gives a key, in their order.
std::vector<int64_t> values_of(const RecallTask& task, const Tensor& row, int64_t key) {
  std::vector<int64_t> values;
  for (int64_t at = 0; at < 2 * (task.pairs + task.updates); at += 2)
    if (row[at].item<int64_t>() == key) values.push_back(row[at + 1].item<int64_t>());
  return values;
}

/// Answers with the first or the last value of the key.
Predictor lookup(const RecallTask& task, bool first) {
  return [=](const Tensor& tokens, const Tensor& labels) {
    Tensor correct = torch::ones_like(labels, torch::kBool);
    for (int64_t n = 0; n < tokens.size(0); ++n)
      for (int64_t at = 0; at < tokens.size(1); ++at)
        if (const auto label = labels[n][at].item<int64_t>(); label >= 0) {
          const auto values = values_of(task, tokens[n], tokens[n][at].item<int64_t>());
          correct[n][at] = (first ? values.front() : values.back()) == label;
        }
    return LanguageModelImpl::Predictions{torch::zeros(labels.sizes(), torch::kFloat64), correct};
  };
}

TEST(AssociativeRecall, AsksForTheLastValueOfEachKeyOnce) {
  for (const RecallTask& task : {small_task(0), small_task(3), small_task(6, 64)}) {
    const RecallBatch batch = recall_batch(task, 5, 0, 20);
    ASSERT_EQ(batch.tokens.size(1), task.tokens());
    for (int64_t n = 0; n < 20; ++n) {
      std::set<int64_t> keys, updated;
      for (int64_t at = 0; at < task.tokens(); ++at) {
        const auto answer = batch.answers[n][at].item<int64_t>(), first = batch.outdated[n][at].item<int64_t>();
        if (answer < 0) continue;
        EXPECT_GE(at, 2 * (task.pairs + task.updates));
        const auto key = batch.tokens[n][at].item<int64_t>();
        const auto values = values_of(task, batch.tokens[n], key);
        keys.insert(key);
        ASSERT_FALSE(values.empty());
        EXPECT_EQ(answer, values.back());
        EXPECT_EQ(first, values.size() == 2 ? values.front() : -1);
        EXPECT_NE(first, answer);
        EXPECT_TRUE(key < 16 && answer >= 16 && answer < 32);
        if (first >= 0) updated.insert(key);
      }
      EXPECT_EQ(std::ssize(keys), task.pairs);
      EXPECT_EQ(std::ssize(updated), task.updates);
    }
  }
}

TEST(AssociativeRecall, IsAFunctionOfSeedAndNumberAlone) {
  const RecallTask task = small_task(3, 64);
  const RecallBatch batch = recall_batch(task, 5, 0, 8), part = recall_batch(task, 5, 3, 2);
  EXPECT_TRUE(part.tokens.equal(batch.tokens.narrow(0, 3, 2)));
  EXPECT_TRUE(part.answers.equal(batch.answers.narrow(0, 3, 2)));
  EXPECT_FALSE(recall_batch(task, 6, 0, 8).tokens.equal(batch.tokens));
}

TEST(AssociativeRecall, PlacesQueriesByAPowerLaw) {
  const RecallTask task{.pairs = 2, .vocabulary = 16, .length = 68};  // 32 places
  std::map<int64_t, int64_t> counts;
  const RecallBatch batch = recall_batch(task, 1, 0, 4000);
  const Tensor at = batch.answers.ge(0).nonzero().select(1, 1);
  for (int64_t i = 0; i < at.numel(); ++i) ++counts[(at[i].item<int64_t>() - 4) / 2];
  // Of 8000 places the first has the most; places 8 … 15 and 16 … 31 have about the same, as ∫ dg / g says.
  const auto between = [&](int64_t low, int64_t high) {
    int64_t sum = 0;
    for (int64_t g = low; g < high; ++g) sum += counts[g];
    return static_cast<double>(sum);
  };
  EXPECT_GT(counts[0], 1500);
  EXPECT_NEAR(between(7, 15) / between(15, 31), 1, 0.15);
}

TEST(AssociativeRecall, ScoresALookupOfTheLastValueFully) {
  const RecallTask task = small_task(3);
  const RecallScore last = recall_score(lookup(task, false), task, 2, 100);
  EXPECT_EQ(last.accuracy, 1);
  EXPECT_EQ(last.updated_accuracy, 1);
  EXPECT_EQ(last.outdated, 0);
  const RecallScore first = recall_score(lookup(task, true), task, 2, 100);
  EXPECT_EQ(first.accuracy, 0.5);
  EXPECT_EQ(first.updated_accuracy, 0);
  EXPECT_EQ(first.outdated, 1);
  EXPECT_TRUE(std::isnan(recall_score(lookup(small_task(0), true), small_task(0), 2, 10).outdated));
}

TEST(AssociativeRecall, RefusesTasksWithoutSequences) {
  const auto refusal = [](RecallTask task) {
    try {
      task.check();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal({.vocabulary = 7}), "vocabulary: expected an even number from 4 on, found 7");
  EXPECT_EQ(refusal({.pairs = 17, .vocabulary = 32}), "pairs: expected 1 … vocabulary / 2 = 16, found 17");
  EXPECT_EQ(refusal({.pairs = 4, .updates = 5}), "updates: expected 0 … pairs = 4, found 5");
  EXPECT_EQ(refusal({.pairs = 4, .updates = 4, .length = 22}),
            "length: expected 0 or an even number from 24 on, found 22");
}

TEST(AssociativeRecall, HasFewerPairsWithTheSameShareOfUpdates) {
  const RecallTask fewer = small_task(3).with_pairs(2);
  EXPECT_EQ(fewer.pairs, 2);
  EXPECT_EQ(fewer.updates, 1);
  EXPECT_EQ(fewer.tokens(), 10);
  EXPECT_EQ(small_task(3, 64).with_pairs(2).tokens(), 64);
}

class RecallRow : public TinyDatasetTest {};

TEST_F(RecallRow, TrainsOnFewAndManyPairsInTurn) {
  LanguageModel model(tiny_model());
  const auto loss = [&](const nlohmann::json& pairs) {
    nlohmann::json settings = {{"pairs", 2}, {"vocabulary", 8}, {"steps", 3}, {"batch", 4}, {"tested", 16}};
    if (!pairs.is_null()) settings["training_pairs"] = pairs;
    return evaluation_named("associative_recall").run(model, dataset, settings, {}).value("loss");
  };
  EXPECT_EQ(loss({2}), loss(nullptr));
  EXPECT_NE(loss({1, 2}), loss(nullptr));
  EXPECT_EQ(loss({1, 2}), loss({1, 2, 1}));
  std::string refused;
  try {
    loss({3});
  } catch (const std::invalid_argument& error) {
    refused = error.what();
  }
  EXPECT_EQ(refused, "training_pairs: expected 1 … pairs = 2, found 3");
}

TEST_F(RecallRow, TrainsAModelThatRemembersAndOneThatCannot) {
  LanguageModel model(tiny_model());
  const auto accuracy = [&](const nlohmann::json& mixer) {
    const nlohmann::json settings = {{"pairs", 2},  {"vocabulary", 8}, {"steps", 250},
                                     {"batch", 32}, {"tested", 128},   {"model", {{"mixer", mixer}}}};
    return evaluation_named("associative_recall").run(model, dataset, settings, {}).value("accuracy");
  };
  const double remembers = accuracy({{"name", "attention"}});
  const double cannot = accuracy({{"name", "local"}, {"window", 1}, {"kv_shift", false}});
  EXPECT_GT(remembers, 0.8);
  EXPECT_LT(cannot, 0.5) << "one value in four";
}

TEST_F(RecallRow, GoesOnAfterTheSeedsThatAreDone) {
  LanguageModel model(tiny_model());
  nlohmann::json settings = {{"pairs", 2}, {"updates", 1}, {"vocabulary", 8}, {"steps", 2},
                             {"batch", 4}, {"tested", 16}, {"seeds", 2},      {"raw", folder.path() / "raw.jsonl"}};
  const auto run = [&] { return evaluation_named("associative_recall").run(model, dataset, settings, {}); };
  const Evaluated whole = run();
  EXPECT_EQ(whole.curve("accuracy_at_seed").size(), 2u);
  EXPECT_GE(whole.value("outdated"), 0);
  std::string written = read_whole(folder.path() / "raw.jsonl");
  EXPECT_EQ(std::ranges::count(written, '\n'), 3);
  const size_t place = written.find("\"accuracy\":");
  written.replace(place, written.find(',', place) - place, "\"accuracy\":7");
  overwrite(folder.path() / "raw.jsonl", written);
  const auto again = run().curve("accuracy_at_seed");
  EXPECT_EQ(std::ranges::count(again, 7), 1) << "read, not trained again; of the seed that ended first";
}

TEST_F(RecallRow, GivesEqualBitsWithAnyNumberOfThreads) {
  LanguageModel model(tiny_model());
  const nlohmann::json settings = {{"pairs", 2}, {"vocabulary", 8}, {"steps", 4},
                                   {"batch", 4}, {"tested", 16},    {"seeds", 3}};
  const int before = at::get_num_threads();
  std::vector<double> losses;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const Evaluated found = evaluation_named("associative_recall").run(model, dataset, settings, {});
    losses.push_back(found.value("loss"));
    EXPECT_EQ(at::get_num_threads(), threads);
    EXPECT_EQ(found.curve("accuracy_at_seed").size(), 3u);
  }
  at::set_num_threads(before);
  EXPECT_EQ(losses, std::vector(3, losses.front()));
}

TEST_F(RecallRow, KeepsTheSeedsThatAreDoneWhereItIsStopped) {
  LanguageModel model(tiny_model());
  const nlohmann::json settings = {{"pairs", 2},
                                   {"vocabulary", 8},
                                   {"steps", 2},
                                   {"batch", 4},
                                   {"tested", 16},
                                   {"seeds", 4},
                                   {"raw", folder.path() / "raw.jsonl"}};
  const auto stop = [](double share) {
    if (share > 0.6) throw std::runtime_error("stopped");
  };
  const int before = at::get_num_threads();
  at::set_num_threads(2);  // with four all seeds could be under way when it stops
  EXPECT_THROW(evaluation_named("associative_recall").run(model, dataset, settings, stop), std::runtime_error);
  at::set_num_threads(before);
  const std::string kept = read_whole(folder.path() / "raw.jsonl");
  EXPECT_GE(std::ranges::count(kept, '\n'), 2) << "the head, and a seed";
  EXPECT_EQ(evaluation_named("associative_recall").run(model, dataset, settings, {}).curve("accuracy_at_seed").size(),
            4u);
  EXPECT_EQ(read_whole(folder.path() / "raw.jsonl").substr(0, kept.size()), kept);
}

}  // namespace
}  // namespace lethe

// Files of requests and their log-likelihoods, by models whose probabilities are known.

#include <gtest/gtest.h>
#include <zlib.h>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/requests.hpp"
#include "experiments/files.hpp"
#include "tests/experiments/evaluation/oracles.hpp"

namespace lethe {
namespace {

using nlohmann::json;

class Requests : public TinyDatasetTest {
 protected:
  std::string write(const std::string& text, const std::string& name = "requests.jsonl") const {
    overwrite(folder.path() / name, text);
    return folder.path() / name;
  }

  /// p('a') = 1/2, p(' ') = 1/4, all others alike.
  static LanguageModel model() {
    std::vector<double> log_probabilities(257, std::log(0.25 / 255));
    log_probabilities['a'] = std::log(0.5);
    log_probabilities[' '] = std::log(0.25);
    return unigram_model(log_probabilities);
  }

  Evaluated run(LanguageModel model, const json& settings) const {
    return evaluation_named("requests").run(model, dataset, settings, {});
  }
  Evaluated run(const std::string& file) const { return run(model(), {{"file", file}, {"length", 64}}); }

  std::string refusal(const std::string& text) const {
    try {
      run(write(text));
    } catch (const std::exception& error) {
      return std::string(error.what()).substr(folder.path().string().size() + 1);
    }
    return "no error";
  }
};

const double kOther = std::log(0.25 / 255);

TEST_F(Requests, SumTheLogProbabilitiesOfTheContinuation) {
  const Evaluated found =
      run(write("{\"context\": \"xyz\", \"continuation\": \" ab\"}\n\n"
                "{\"context\": \"\", \"continuation\": \"aaa\"}\n"));
  const auto likelihoods = found.curve("log_likelihood_at_line"), greedy = found.curve("greedy_at_line");
  ASSERT_EQ(likelihoods.size(), 2u);
  EXPECT_NEAR(likelihoods[0], std::log(0.25) + std::log(0.5) + kOther, 1e-4);
  EXPECT_NEAR(likelihoods[1], 3 * std::log(0.5), 1e-4);
  EXPECT_EQ(greedy, (std::vector<double>{0, 1}));
  EXPECT_EQ(found.points.back().x, 3) << "the line of the file";
  EXPECT_EQ(found.value("greedy_accuracy"), 0.5);
  EXPECT_NEAR(found.value("perplexity"), std::exp(-(likelihoods[0] + likelihoods[1]) / 2), 1e-3);
}

TEST_F(Requests, CountSpacesBeforeTheContinuationToIt) {
  const auto of = [&](const char* line) { return run(write(line)).curve("log_likelihood_at_line").at(0); };
  EXPECT_NEAR(of("{\"context\": \"x  \", \"continuation\": \"a\"}"), 2 * std::log(0.25) + std::log(0.5), 1e-4);
}

TEST_F(Requests, GiveAccuracyWithAndWithoutLength) {
  // " b" is more probable than " aaaaaaaaaaa" as a whole, less probable by character.
  const std::vector<std::string> choices{" aaaaaaaaaaa", " b"};
  std::string text;
  for (int document = 0; document < 4; ++document)
    for (int idx = 0; idx < 2; ++idx)
      text += json{{"request_type", "loglikelihood"},
                   {"doc_id", document},
                   {"idx", idx},
                   {"label", document == 3 ? 1 : 0},
                   {"task_name", "tiny"},
                   {"request", {{"context", "Q:"}, {"continuation", choices[idx]}}}}
                  .dump() +
              "\n";
  const Evaluated found = run(write(text));
  EXPECT_EQ(found.value("accuracy"), 0.25);
  EXPECT_EQ(found.value("accuracy_normalized"), 0.75);
  EXPECT_EQ(found.records.front().variant, "tiny");
  EXPECT_EQ(found.records.front().samples, 4);
}

TEST_F(Requests, ReadGzipAsTheTextItHolds) {
  const std::string text = "{\"context\": \"x\", \"continuation\": \" ab\"}\n",
                    path = folder.path() / "requests.jsonl.gz";
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), text.size());
  gzclose(file);
  EXPECT_EQ(run(path).curve("log_likelihood_at_line"), run(write(text)).curve("log_likelihood_at_line"));
  overwrite(path, read_whole(path).substr(0, 40));
  EXPECT_THROW(run(path), std::runtime_error);
}

TEST_F(Requests, LeaveOutThoseWithoutContextOfOlmoAndSaySo) {
  const std::string two =
      "{\"doc_id\": 3, \"context\": \"x\", \"continuation\": \" a\"}\n"
      "{\"doc_id\": 1000003, \"context\": \"\", \"continuation\": \" a\"}\n";
  const Evaluated found = run(write(two));
  EXPECT_EQ(found.curve("log_likelihood_at_line").size(), 1u);
  EXPECT_EQ(found.value("requests_left_out"), 1);
}

TEST_F(Requests, RefuseABadLineByItsNumberBeforeAnyWork) {
  const std::string good = "{\"context\": \"x\", \"continuation\": \" a\"}\n";
  const auto second = [&](const std::string& line) { return refusal(good + line); };
  EXPECT_EQ(second("{\"context\": 3, \"continuation\": \"a\"}"),
            "requests.jsonl, line 2: context: expected a text, found 3");
  EXPECT_EQ(second("{\"context\": \"x\"}"), "requests.jsonl, line 2: continuation: expected a text, found none");
  EXPECT_EQ(second("{\"context\": \"x\", \"continuation\": \"\"}"),
            "requests.jsonl, line 2: continuation: expected a text, found an empty one");
  EXPECT_EQ(second("{\"context\": \"x\", \"continuation\": \"a\", \"idx\": -1}"),
            "requests.jsonl, line 2: idx: expected a whole number ≥ 0, found -1");
  EXPECT_EQ(second("{\"request_type\": \"generate_until\", \"context\": \"x\", \"continuation\": \"a\"}"),
            "requests.jsonl, line 2: request_type: expected \"loglikelihood\", found \"generate_until\"");
  EXPECT_EQ(second("[1]"), "requests.jsonl, line 2: request: expected a JSON object, found [1]");
  EXPECT_EQ(second("{\"context\": ").find("requests.jsonl, line 2: line: expected"), 0u) << second("{\"context\": ");
  EXPECT_EQ(second("{\"context\": \"x\", \"continuation\": \"" + std::string(65, 'a') + "\"}"),
            "requests.jsonl, line 2: continuation: expected at most length = 64 tokens, found 65");
  EXPECT_THROW(run(write("\n")), std::invalid_argument);
  EXPECT_THROW(run(folder.path() / "absent"), std::runtime_error);
}

TEST_F(Requests, DoNotDependOnTheirBatch) {
  LanguageModel tiny(tiny_model());
  tiny->eval();
  std::string text;
  for (int n = 1; n < 40; ++n)
    text +=
        json{{"context", std::string(n % 7, 'x')}, {"continuation", " the river " + std::string(n, 'b')}}.dump() + "\n";
  const auto together = run(tiny, {{"file", write(text)}, {"length", 64}}).curve("log_likelihood_at_line");
  std::vector<double> alone;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    alone.push_back(run(tiny, {{"file", write(text.substr(begin, end - begin))}, {"length", 64}})
                        .curve("log_likelihood_at_line")
                        .at(0));
  ASSERT_EQ(together.size(), alone.size());
  for (size_t n = 0; n < alone.size(); ++n) EXPECT_NEAR(together[n], alone[n], 1e-4 * std::abs(alone[n]));
}

TEST_F(Requests, ReadTheEndOfALongContextAndPiecesOfALongText) {
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> asked;
  const Predictor listener = [&](const torch::Tensor& tokens, const torch::Tensor& labels) {
    const auto row = [](const torch::Tensor& t, int64_t r) {
      const torch::Tensor whole = t[r].contiguous();
      return std::vector<int64_t>(whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel());
    };
    for (int64_t r = 0; r < tokens.size(0); ++r) asked.emplace_back(row(tokens, r), row(labels, r));
    return LanguageModelImpl::Predictions{torch::zeros(labels.sizes(), torch::kFloat64), labels.ge(-1)};
  };
  const std::string path = write("{}");
  const auto ask = [&](const std::string& context, const std::string& continuation) {
    asked.clear();
    likelihoods(listener, dataset, RequestFile(path), {{.context = context, .continuation = continuation}}, 4);
  };
  ask("abcdef", "gh");
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].first, (std::vector<int64_t>{'d', 'e', 'f', 'g'}));
  EXPECT_EQ(asked[0].second, (std::vector<int64_t>{-1, -1, 'g', 'h'}));
  ask("", "abcdef");
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].first, (std::vector<int64_t>{256, 'a', 'b', 'c'}));
  EXPECT_EQ(asked[0].second, (std::vector<int64_t>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(asked[1].first, (std::vector<int64_t>{'b', 'c', 'd', 'e'}));
  EXPECT_EQ(asked[1].second, (std::vector<int64_t>{-1, -1, 'e', 'f'})) << "each token is asked for once";
}

TEST_F(Requests, GoOnAfterAnInterruptedCall) {
  std::string text;
  for (int n = 0; n < 6; ++n) text += json{{"context", "x"}, {"continuation", std::string(n + 1, 'a')}}.dump() + "\n";
  const std::string raw = folder.path() / "raw.jsonl";
  const json settings = {{"file", write(text)}, {"length", 64}, {"raw", raw}};
  const Evaluated whole = run(model(), settings);
  const std::string written = read_whole(raw);
  EXPECT_EQ(std::ranges::count(written, '\n'), 7);
  // Three answers and a part of the fourth are left; the first is changed, to see that it is read.
  size_t end = 0;
  for (int line = 0; line < 4; ++line) end = written.find('\n', end) + 1;
  std::string cut = written.substr(0, end + 9);
  cut.replace(cut.find("\"greedy\":true"), 13, "\"greedy\":false");
  overwrite(raw, cut);
  const Evaluated again = run(model(), settings);
  EXPECT_EQ(again.curve("log_likelihood_at_line"), whole.curve("log_likelihood_at_line"));
  EXPECT_EQ(again.curve("greedy_at_line").front(), 0);
  EXPECT_EQ(std::ranges::count(read_whole(raw), '\n'), 7);
  json other = settings;
  other["length"] = 32;
  EXPECT_THROW(run(model(), other), std::invalid_argument) << "measurements of another call";
  overwrite(raw, "my notes");
  EXPECT_THROW(run(model(), settings), std::invalid_argument);
  EXPECT_EQ(read_whole(raw), "my notes");
}

TEST(Characters, AreCountedWithoutTheFirstSpace) {
  EXPECT_EQ(characters(" früh"), 4);
  EXPECT_EQ(characters("a b"), 3);
}

}  // namespace
}  // namespace lethe

#include "experiments/evaluation/requests.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/data/sha256.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/journal.hpp"
#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/files.hpp"
#include "experiments/models/not_finite.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr int kRequestsVersion = 1;
constexpr size_t kRequestsAtOnce = 4096;  // their texts are in memory
constexpr int64_t kUnconditional =
    1'000'000;  // OLMo's doc_id of requests whose context is left out, for another metric

/// One row of a batch: the tokens first … last − 1 of a request's text, of which those from `scored` on are asked for.
struct Piece {
  size_t request = 0;
  const std::vector<int64_t>* text = nullptr;
  int64_t first = 0, scored = 0, last = 0;

  int64_t length() const { return last - first; }
};

/// Context and continuation with the spaces between them in the second.
std::pair<std::string, std::string> parts_of(const Request& request) {
  const size_t end = request.context.find_last_not_of(" \t\n\r\f\v");
  const size_t kept = end == std::string::npos ? 0 : end + 1;
  return {request.context.substr(0, kept), request.context.substr(kept) + request.continuation};
}

std::vector<Piece> pieces_of(size_t request, const std::vector<int64_t>& text, int64_t context, int64_t length) {
  const int64_t end = std::ssize(text), scored = std::min(context, end - 1);
  expect(context == 0 || end - scored <= length, "continuation",
         "at most length = " + std::to_string(length) + " tokens", std::to_string(end - scored));
  std::vector<Piece> pieces;
  for (int64_t begin = scored; begin < end; begin += length) {
    const int64_t last = std::min(end, begin + length);
    pieces.push_back({request, &text, std::max<int64_t>(0, last - length), begin, last});
  }
  return pieces;
}

void run_batch(const Predictor& predict, int64_t begin_token, const std::vector<Piece>& batch,
               std::vector<Likelihood>& found) {
  const int64_t rows = std::ssize(batch), width = batch.front().length();
  Tensor tokens = torch::full({rows, width}, begin_token, torch::kInt64), labels = torch::full_like(tokens, -1);
  for (int64_t r = 0; r < rows; ++r) {
    const Piece& piece = batch[r];
    auto* token = tokens.data_ptr<int64_t>() + r * width - piece.first;
    auto* label = labels.data_ptr<int64_t>() + r * width - piece.first;
    for (int64_t at = piece.first; at < piece.last; ++at) {
      token[at] = at == 0 ? begin_token : (*piece.text)[at - 1];
      if (at >= piece.scored) label[at] = (*piece.text)[at];
    }
  }
  const auto [losses, correct] = predict(tokens, labels);
  for (int64_t r = 0; r < rows; ++r) {
    Likelihood& of_request = found[batch[r].request];
    of_request.log_likelihood -= losses[r].sum().item<double>();
    of_request.greedy = of_request.greedy && correct[r].all().item<bool>();
    of_request.tokens += batch[r].last - batch[r].scored;
  }
}

}  // namespace

std::vector<Likelihood> likelihoods(const Predictor& predict, const Dataset& dataset, const RequestFile& file,
                                    const std::vector<Request>& requests, int64_t length) {
  std::vector<std::string> texts;
  for (const Request& request : requests) {
    const auto [context, continuation] = parts_of(request);
    texts.insert(texts.end(), {context, context + continuation});
  }
  const auto tokens = tokens_of(dataset, texts);
  std::vector<Piece> pieces;
  for (size_t r = 0; r < requests.size(); ++r) try {
      const auto of_request = pieces_of(r, tokens[2 * r + 1], std::ssize(tokens[2 * r]), length);
      pieces.insert(pieces.end(), of_request.begin(), of_request.end());
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(file.place(requests[r].line) + ": " + error.what());
    }
  std::ranges::stable_sort(pieces, std::greater(), &Piece::length);
  std::vector<Likelihood> found(requests.size());
  for (size_t first = 0; first < pieces.size();) {
    const int64_t fit = std::max<int64_t>(1, kEvaluationTokens / pieces[first].length());
    const size_t last = std::min(pieces.size(), first + static_cast<size_t>(fit));
    run_batch(predict, dataset.begin_token(), {pieces.begin() + first, pieces.begin() + last}, found);
    first = last;
  }
  return found;
}

int64_t characters(const std::string& continuation) {
  const auto is_first = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  return std::ranges::count_if(continuation, is_first) - (continuation.starts_with(' ') ? 1 : 0);
}

namespace {

/// The figures of one task, from the answers to its requests.
class TaskScores {
 public:
  void add(const Request& request, const Likelihood& answer) {
    Choice& choice = documents_[request.document][request.choice];
    choice = {answer.log_likelihood, answer.log_likelihood / std::max<double>(1, characters(request.continuation)),
              answer.greedy, request.label};
    log_likelihood_ += answer.log_likelihood;
    tokens_ += answer.tokens;
  }

  /// Accuracies over the documents of several choices; over the others, how often the model would have written the continuation.
  std::vector<Record> records(const Record& empty) const {
    int64_t chosen = 0, right = 0, right_normalized = 0, alone = 0, greedy = 0;
    double alone_log_likelihood = 0;
    for (const auto& [_, choices] : documents_) {
      if (choices.size() == 1) {
        ++alone;
        greedy += choices.begin()->second.greedy;
        alone_log_likelihood += choices.begin()->second.log_likelihood;
      } else if (const auto label = choices.begin()->second.label) {
        ++chosen;
        right += best(choices, &Choice::log_likelihood) == *label;
        right_normalized += best(choices, &Choice::per_character) == *label;
      }
    }
    std::vector<Record> records;
    const auto add = [&](const char* metric, const char* unit, double value, int64_t samples) {
      records.push_back(empty);
      records.back().metric = metric;
      records.back().unit = unit;
      records.back().value = value;
      records.back().batch = records.back().samples = samples;
    };
    const auto share = [](int64_t part, int64_t whole) {
      return static_cast<double>(part) / static_cast<double>(whole);
    };
    if (chosen > 0) add("accuracy", "1", share(right, chosen), chosen);
    if (chosen > 0) add("accuracy_normalized", "1", share(right_normalized, chosen), chosen);
    if (alone > 0) add("greedy_accuracy", "1", share(greedy, alone), alone);
    if (alone > 0) add("perplexity", "1", std::exp(-alone_log_likelihood / static_cast<double>(alone)), alone);
    add("loss", "nats", -log_likelihood_ / static_cast<double>(tokens_), tokens_);
    return records;
  }

 private:
  struct Choice {
    double log_likelihood = 0, per_character = 0;
    bool greedy = false;
    std::optional<int64_t> label = {};
  };
  static int64_t best(const std::map<int64_t, Choice>& choices, double Choice::*score) {
    return std::ranges::max_element(choices, {}, [=](const auto& choice) { return choice.second.*score; })->first;
  }

  std::map<int64_t, std::map<int64_t, Choice>> documents_;
  double log_likelihood_ = 0;
  int64_t tokens_ = 0;
};

/// Reads `path` once, so that a bad line is found before the model is asked anything. Returns the number of requests.
int64_t checked_requests(const std::string& path) {
  int64_t count = 0;
  for (RequestFile file(path); file.next();) ++count;
  expect(count > 0, "requests.file", "at least one request in " + path, "none");
  return count;
}

struct RequestSettings {
  explicit RequestSettings(const nlohmann::json& settings) {
    JsonReader reader(settings, "requests");
    reader("file", file);
    reader("length", length);
    reader("raw", raw);
    reader.finish();
    expect(length >= 1, "requests.length", "a number of tokens ≥ 1", std::to_string(length));
    expect(!file.empty(), "requests.file", "a file of requests", "none");
  }

  std::string file, raw;
  int64_t length = 0;
};

/// The next requests, none after the last; counts those that are left out.
std::vector<Request> next_requests(RequestFile& file, int64_t& left_out) {
  std::vector<Request> requests;
  while (requests.size() < kRequestsAtOnce) {
    auto request = file.next();
    if (!request) break;
    if (request->document < kUnconditional) requests.push_back(std::move(*request));
    else ++left_out;
  }
  return requests;
}

/// Adds the answers to those requests that the journal lacks.
void answer(const Predictor& predict, const Dataset& dataset, const RequestFile& file,
            const std::vector<Request>& requests, int64_t length, Journal& journal) {
  std::vector<Request> open;
  for (const Request& request : requests)
    if (!journal.find({{"line", request.line}})) open.push_back(request);
  const auto answers = likelihoods(predict, dataset, file, open, length);
  for (size_t r = 0; r < open.size(); ++r) {
    if (!std::isfinite(answers[r].log_likelihood))
      throw NotFinite(file.place(open[r].line) + ": expected a finite log-likelihood, found none");
    journal.add({{"line", open[r].line},
                 {"log_likelihood", answers[r].log_likelihood},
                 {"greedy", answers[r].greedy},
                 {"tokens", answers[r].tokens}});
  }
}

}  // namespace

Evaluation requests_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& settings,
                      const std::function<void(double)>& progress) {
    const RequestSettings asked(settings);
    const int64_t count = checked_requests(asked.file);
    const InEvaluation mode(model);
    nlohmann::json about = about_measuring("requests", kRequestsVersion, settings, model, dataset);
    about["file"] = sha256(read_whole(asked.file));
    Journal journal(asked.raw, about, {"line"});
    std::map<std::string, TaskScores> tasks;
    int64_t done = 0, left_out = 0;
    Evaluated result;
    RequestFile file(asked.file);
    for (auto requests = next_requests(file, left_out); !requests.empty(); requests = next_requests(file, left_out)) {
      answer(predictor_of(model), dataset, file, requests, asked.length, journal);
      for (const Request& request : requests) {
        const nlohmann::json& found = *journal.find({{"line", request.line}});
        const Likelihood likelihood{found.at("log_likelihood"), found.at("greedy"), found.at("tokens")};
        tasks[request.task].add(request, likelihood);
        const auto x = static_cast<double>(request.line);
        result.points.push_back({.quantity = "log_likelihood_at_line", .x = x, .value = likelihood.log_likelihood});
        result.points.push_back({.quantity = "greedy_at_line", .x = x, .value = likelihood.greedy ? 1.0 : 0.0});
      }
      done += std::ssize(requests);
      if (progress) progress(static_cast<double>(done + left_out) / static_cast<double>(count));
    }
    for (const auto& [task, scores] : tasks) {
      Record empty = record_of_model(model, 0, asked.length, "", "", 0);
      empty.variant = task;
      std::ranges::copy(scores.records(empty), std::back_inserter(result.records));
    }
    if (left_out > 0)
      result.records.push_back(
          record_of_model(model, left_out, asked.length, "requests_left_out", "1", static_cast<double>(left_out)));
    return result;
  };
  Evaluation row{"requests", "Log-likelihoods and accuracies of a file of (context, continuation) requests", run,
                 kRequestsVersion};
  row.own_settings = [](int64_t training_length) { return nlohmann::json{{"length", training_length}}; };
  return row;
}

}  // namespace lethe

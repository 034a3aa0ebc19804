#include "experiments/evaluation/needle.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/journal.hpp"
#include "experiments/files.hpp"
#include "experiments/models/not_finite.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr int kNeedleVersion = 1;
constexpr const char* kPrompt =
    "\n\nThere is an important piece of information hidden inside the above document. Now that you've read the "
    "document, I will quiz you about it. Answer the following question: ";

/// The text of a folder's files.
std::string text_below(const std::string& folder) {
  std::error_code unreadable;
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder, unreadable))
    if (entry.is_regular_file() && entry.path().extension() == ".txt") files.push_back(entry.path());
  std::ranges::sort(files);
  std::string text;
  for (const fs::path& file : files) text += read_whole(file);
  expect(!text.empty(), "needle.haystack", "a folder with text in *.txt files", folder);
  return text;
}

void append(std::vector<int64_t>& tokens, const std::vector<int64_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

void NeedleSettings::read(JsonReader& reader) {
  reader("lengths", lengths);
  reader("depths", depths);
  reader("repeats", repeats);
  reader("prompt", prompt);
  reader("haystack", haystack);
  reader("split", split);
  reader("question", question);
  reader("begin", begin);
  reader("end", end);
}

NeedleTexts::NeedleTexts(const Dataset& dataset, const NeedleSettings& settings) : dataset_(dataset) {
  const std::string& question = settings.question;
  const bool code = settings.prompt == NeedlePrompt::kCode;
  const std::string prompt = kPrompt + question + " Answer:", in_answer = " " + settings.begin;
  // Prompt and answer are encoded together: where a token lies across their border, it belongs to the answer.
  const std::string before = code ? prompt + in_answer : prompt;
  const std::string whole = prompt + in_answer + settings.end;
  const auto tokens = tokens_of(
      dataset, std::vector<std::string>{"\n" + question + " Answer:" + in_answer + settings.end + "\n", before, whole});
  needle_ = tokens[0];
  const auto border = std::ranges::mismatch(tokens[1], tokens[2]).in2;
  prompt_.assign(tokens[2].begin(), border);
  answer_.assign(border, tokens[2].end());
  const auto least = std::ssize(needle_) + std::ssize(prompt_) + 1;
  expect(!settings.lengths.empty() && std::ranges::min(settings.lengths) >= least, "needle.lengths",
         "at least one, each of " + std::to_string(least) + " tokens or more for needle and prompt",
         nlohmann::json(settings.lengths).dump());
  expect(!answer_.empty(), "needle.end", "a text", "none");
  if (!settings.haystack.empty()) {
    haystack_ = tokens_of(dataset, text_below(settings.haystack));
  } else {
    const int64_t all = Pieces{settings.split, dataset.tokens(settings.split), 1}.count(dataset);
    const Tensor text = dataset.sequences(settings.split, 0, all, dataset.tokens(settings.split)).labels.flatten();
    haystack_.assign(text.const_data_ptr<int64_t>(), text.const_data_ptr<int64_t>() + text.numel());
  }
  std::erase(haystack_, dataset.begin_token());
  expect(!haystack_.empty(), "needle.haystack", "a text", "an empty one");
  for (int64_t token = 0; token < dataset.vocabulary(); ++token)
    ends_sentence_.push_back(token != dataset.begin_token() && dataset.decode({token}).ends_with('.'));
}

std::vector<int64_t> NeedleTexts::before_answer(int64_t length, double depth, int64_t repeat, bool with_needle) const {
  const auto all = std::ssize(haystack_);
  const int64_t hay = length - std::ssize(needle_) - std::ssize(prompt_), needle = std::ssize(needle_);
  // Haystacks of repeats begin at other places, spread over the text; a text that is too short is repeated.
  const auto begin = static_cast<int64_t>(permutation(17, all, repeat % all));
  const auto token = [&](int64_t at) { return haystack_[(begin + at) % all]; };
  int64_t place = std::min(hay, static_cast<int64_t>(depth / 100 * static_cast<double>(hay)));
  while (place > 0 && !ends_sentence_[token(place - 1)]) --place;
  std::vector<int64_t> text;
  for (int64_t at = 0; at < place; ++at) text.push_back(token(at));
  if (with_needle) append(text, needle_);
  for (int64_t at = place; at < hay + (with_needle ? 0 : needle); ++at) text.push_back(token(at));
  append(text, prompt_);
  return text;
}

Needle measured_needle(const Predictor& predict, const NeedleTexts& texts, const Dataset& dataset, int64_t length,
                       double depth, int64_t repeat) {
  Needle found{.length = length, .depth = depth, .repeat = repeat, .tokens = std::ssize(texts.answer())};
  for (const bool with_needle : {true, false}) {
    std::vector<int64_t> tokens{dataset.begin_token()};
    append(tokens, texts.before_answer(length, depth, repeat, with_needle));
    std::vector<int64_t> labels(tokens.size() - 1, -1);
    append(tokens, texts.answer());
    append(labels, texts.answer());
    tokens.pop_back();  // predicts nothing that is asked for
    const auto [losses, correct] =
        predict(torch::tensor(tokens, torch::kInt64).unsqueeze(0), torch::tensor(labels, torch::kInt64).unsqueeze(0));
    const double log_probability = -losses.sum().item<double>();
    if (!std::isfinite(log_probability)) throw NotFinite("needle: expected a finite log-probability, found none");
    (with_needle ? found.log_probability : found.without_needle) = log_probability;
    if (!with_needle) continue;
    const Tensor of_answer = correct.narrow(1, correct.size(1) - found.tokens, found.tokens);
    found.exact = of_answer.all().item<bool>();
    found.tokens_correct = of_answer.to(torch::kFloat64).mean().item<double>();
  }
  return found;
}

namespace {

nlohmann::json json_of(const Needle& needle) {
  return {{"length", needle.length},
          {"depth", needle.depth},
          {"repeat", needle.repeat},
          {"exact", needle.exact},
          {"tokens_correct", needle.tokens_correct},
          {"log_probability", needle.log_probability},
          {"without_needle", needle.without_needle}};
}

Needle needle_of(const nlohmann::json& json, int64_t tokens) {
  return {json.at("length"),         json.at("depth"),           json.at("repeat"),         json.at("exact"),
          json.at("tokens_correct"), json.at("log_probability"), json.at("without_needle"), tokens};
}

/// The means over depths and repeats of each length, and every prompt's numbers as points.
Evaluated findings(const LanguageModel& model, const std::vector<Needle>& needles) {
  struct Sums {
    double exact = 0, correct = 0, log_probability = 0, gain = 0;
    int64_t prompts = 0;
  };
  std::map<int64_t, Sums> lengths;
  Evaluated result;
  for (const Needle& needle : needles) {
    Sums& sums = lengths[needle.length];
    ++sums.prompts;
    sums.exact += needle.exact;
    sums.correct += needle.tokens_correct;
    sums.log_probability += needle.log_probability;
    sums.gain += needle.gain();
    for (const auto& [quantity, value] : {std::pair("exact_match_at_length_and_depth", needle.exact ? 1.0 : 0.0),
                                          std::pair("tokens_correct_at_length_and_depth", needle.tokens_correct),
                                          std::pair("log_probability_at_length_and_depth", needle.log_probability),
                                          std::pair("gain_at_length_and_depth", needle.gain())})
      result.points.push_back(
          {.quantity = quantity, .x = static_cast<double>(needle.length), .y = needle.depth, .value = value});
  }
  for (const auto& [length, sums] : lengths) {
    const auto prompts = static_cast<double>(sums.prompts);
    const auto add = [&, length = length, count = sums.prompts](const char* metric, const char* unit, double value) {
      result.records.push_back(record_of_model(model, count, length, metric, unit, value));
    };
    add("exact_match", "1", sums.exact / prompts);
    add("tokens_correct", "1", sums.correct / prompts);
    add("log_probability", "nats", sums.log_probability / prompts);
    add("gain", "nats/token", sums.gain / prompts);
  }
  return result;
}

}  // namespace

Evaluation needle_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& given,
                      const std::function<void(double)>& progress) {
    NeedleSettings settings;
    std::string raw;
    JsonReader reader(given, "needle");
    settings.read(reader);
    reader("raw", raw);
    reader.finish();
    expect(settings.repeats >= 1, "needle.repeats", "at least 1", std::to_string(settings.repeats));
    for (const double depth : settings.depths)
      expect(depth >= 0 && depth <= 100, "needle.depths", "per cent, 0 … 100", std::to_string(depth));
    const NeedleTexts texts(dataset, settings);
    const InEvaluation mode(model);
    Journal journal(raw, about_measuring("needle", kNeedleVersion, given, model, dataset),
                    {"length", "depth", "repeat"});
    const Predictor predict = predictor_of(model);
    std::vector<Needle> needles;
    const auto all =
        static_cast<double>(settings.lengths.size() * settings.depths.size()) * static_cast<double>(settings.repeats);
    for (const int64_t length : settings.lengths)
      for (const double depth : settings.depths)
        for (int64_t repeat = 0; repeat < settings.repeats; ++repeat) {
          const nlohmann::json key = {{"length", length}, {"depth", depth}, {"repeat", repeat}};
          if (!journal.find(key)) journal.add(json_of(measured_needle(predict, texts, dataset, length, depth, repeat)));
          needles.push_back(needle_of(*journal.find(key), std::ssize(texts.answer())));
          if (progress) progress(static_cast<double>(needles.size()) / all);
        }
    return findings(model, needles);
  };
  Evaluation row{"needle", "Needle in a haystack, easy mode (FoX B.3): lengths and depths", run, kNeedleVersion};
  row.own_settings = [](int64_t training_length) {
    return nlohmann::json{{"lengths", {training_length, 2 * training_length, 4 * training_length}}};
  };
  return row;
}

}  // namespace lethe

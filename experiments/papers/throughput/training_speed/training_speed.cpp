// Training speed by size and context, judged from a file: the gain by pruning, and FoX beside the Transformer.

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/runs.hpp"
#include "experiments/json_file.hpp"

namespace lethe::training_speed {
namespace {

constexpr std::array<const char*, 3> kSizes = {"125m", "360m", "760m"};
constexpr std::array<int64_t, 3> kContexts = {4096, 8192, 16384};
constexpr const char *kFox = "fox-pro", *kPruned = "fox-pro+acp", *kLlama = "transformer-llama",
                     *kPro = "transformer-pro";
const std::map<std::string, std::string> kNames = {
    {kFox, "FoX (Pro)"}, {kPruned, "FoX (Pro) pruned"}, {kLlama, "Transformer (LLaMA)"}, {kPro, "Transformer (Pro)"}};
constexpr double kAlike = 0.1, kAlikeInArchitecture = 0.05;  // of the speed

std::string upper(const std::string& size) { return size.substr(0, size.size() - 1) + "M"; }

/// "FoX (Pro) 760M"
std::string named(const std::string& model, const std::string& size) { return kNames.at(model) + " " + upper(size); }

/// The seconds of a step in each round, by size, model and context; those that failed are absent.
using Times = std::map<std::pair<std::string, int64_t>, std::map<std::string, std::vector<double>>>;

/// A share, and the half width of its interval.
struct Gain {
  double value = std::nan(""), band = std::nan("");
  std::string absent = {};  ///< the cell that it lacks
};

/// Half width of the interval of a median, as a share of it: a median scatters 1.25 times as much as a mean.
double relative_band(const std::vector<double>& seconds) { return 1.25 * band_of_mean(seconds) / median(seconds); }

/// The speed of one model over another's, less 1.
Gain gain(const Times& times, const std::string& size, int64_t context, const char* one, const char* other) {
  const auto place = times.find({size, context});
  for (const char* model : {one, other})
    if (place == times.end() || !place->second.contains(model))
      return {.absent = named(model, size) + " at " + std::to_string(context)};
  const auto &ours = place->second.at(one), &theirs = place->second.at(other);
  const double ratio = median(theirs) / median(ours);
  return {ratio - 1, ratio * std::hypot(relative_band(ours), relative_band(theirs))};
}
Gain operator-(const Gain& a, const Gain& b) {
  return {a.value - b.value, std::hypot(a.band, b.band), a.absent.empty() ? b.absent : a.absent};
}

Comparison comparison(const std::string& statement, const char* source, const Gain& gain, const Expectation& expected,
                      bool headline) {
  Comparison made{.statement = statement,
                  .source = source,
                  .unit = "gain in throughput",
                  .headline = headline,
                  .expectation = expected,
                  .measured = gain.value,
                  .band = gain.band};
  if (!gain.absent.empty()) made.open = gain.absent + " has not been timed";
  made.would_decide = deciding_sample(made, gain.band, 0, "the rounds");
  return made;
}

std::vector<Comparison> statements(const Study& study, const Times& times) {
  const auto range = Expectation::between(paper_value(study, "all", "pruning_gain_low"),
                                          paper_value(study, "all", "pruning_gain_high"));
  const int64_t shortest = kContexts.front(), longest = kContexts.back();
  std::vector<Comparison> all;
  for (const std::string size : kSizes) {
    const auto pruning = [&](int64_t context) { return gain(times, size, context, kPruned, kFox); };
    for (const int64_t context : kContexts)
      all.push_back(comparison(
          "Pruning makes training 10 % to 35 % faster, " + upper(size) + " at a context of " + std::to_string(context),
          "ACP Fig. 2 right", pruning(context), range, context == longest));
    all.push_back(comparison("Pruning gains more at a context of " + std::to_string(longest) + " than at " +
                                 std::to_string(shortest) + ", " + upper(size),
                             "ACP Section 4.2", pruning(longest) - pruning(shortest), Expectation::positive(), true));
  }
  const std::string size = kSizes.back(), place = ", " + upper(size) + " at a context of " + std::to_string(longest);
  const auto of_table_4 = [&](const char* model) {
    return paper_value(study, named(model, size), "table_4_tokens_per_second");
  };
  const auto beside = [&](const char* other) { return gain(times, size, longest, kFox, other); };
  all.push_back(comparison("With kernels in CUDA, FoX (Pro) trains as fast as Transformer (LLaMA)" + place,
                           "FoX App. B.2, which expects it", beside(kLlama), Expectation::within(kAlike), true));
  all.push_back(comparison("FoX (Pro) trains more slowly than Transformer (LLaMA)" + place, "FoX Table 4, throughput",
                           beside(kLlama), Expectation::negative(), false));
  all.back().paper = of_table_4(kFox) / of_table_4(kLlama) - 1;
  all.push_back(comparison("FoX (Pro) trains as fast as Transformer (Pro)" + place, "FoX Table 4, throughput",
                           beside(kPro), Expectation::within(kAlikeInArchitecture), false));
  all.back().paper = of_table_4(kFox) / of_table_4(kPro) - 1;
  return all;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json&, int64_t) { return {}; }

Findings measure(const Study& study) {
  // Before its first run there is none, and every statement is open.
  const nlohmann::json file =
      std::filesystem::exists(study.data) ? read_json(study.data) : nlohmann::json{{"cells", nlohmann::json::array()}};
  Findings findings;
  Times times;
  for (const nlohmann::json& cell : file.at("cells")) {
    if (!cell.at("error").is_null()) continue;
    const std::string size = cell.at("size"), model = cell.at("model");
    const int64_t context = cell.at("context");
    const auto seconds = cell.at("seconds_a_step").get<std::vector<double>>();
    const double tokens = cell.at("tokens");
    times[{size, context}][model] = seconds;
    std::vector<double> speeds;
    for (const double of_step : seconds) speeds.push_back(tokens / of_step);
    findings.records.push_back({.experiment = study.experiment.paper,
                                .claim = study.experiment.claim,
                                .variant = named(model, size),
                                .implementation = "lethe",
                                .device = file.at("gpu"),
                                .dtype = "bfloat16",
                                .batch = static_cast<int64_t>(tokens) / context,
                                .length = context,
                                .metric = "tokens_per_second",
                                .unit = "1",
                                .value = tokens / median(seconds),
                                .stddev = speeds.size() < 2 ? 0 : deviation(speeds),
                                .samples = static_cast<int64_t>(speeds.size()),
                                .commit = file.at("commit"),
                                .machine = file.at("gpu")});
  }
  findings.comparisons = statements(study, times);
  return findings;
}

}  // namespace lethe::training_speed

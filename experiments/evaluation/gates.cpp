#include "experiments/evaluation/gates.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {
namespace {

using torch::Tensor;

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double half_life_of(double mean_log_gate) {
  return std::min(kLongestHalfLife, std::numbers::ln2 / std::max(-mean_log_gate, std::numeric_limits<double>::min()));
}

/// Adds a text's gates to a head: kinds are [T−1,n] each, from the second token on.
void add_text(HeadGates& head, const std::vector<Tensor>& kinds, const std::vector<int64_t>& distances, double share) {
  std::vector<double> entries{0};  // the mean over tokens of log f of each entry of the state
  for (const Tensor& kind : kinds) {
    const Tensor means = kind.mean(0);
    std::vector<double> next;
    for (const double entry : entries)
      for (int64_t n = 0; n < means.numel(); ++n) next.push_back(entry + means[n].item<double>());
    entries = std::move(next);
  }
  head.mean_log_gate.push_back(std::accumulate(entries.begin(), entries.end(), 0.0) /
                               static_cast<double>(entries.size()));
  std::ranges::transform(entries, entries.begin(), half_life_of);
  head.half_life.push_back(median_of(std::move(entries)));

  head.sum_log_gate.resize(distances.size());
  head.retention.resize(distances.size());
  for (size_t d = 0; d < distances.size(); ++d) {
    Tensor sum, kept;  // over windows of that distance, [T−d]
    for (const Tensor& kind : kinds) {
      // A window's sum is a difference of prefix sums but where a gate is closed: −∞ there.
      const Tensor open = kind.clamp_min(-1e4), zero = torch::zeros_like(open.narrow(0, 0, 1));
      const Tensor prefix = torch::cat({zero, open.cumsum(0)});
      const int64_t windows = open.size(0) - distances[d] + 1;
      const Tensor sums = prefix.narrow(0, distances[d], windows) - prefix.narrow(0, 0, windows);  // [windows,n]
      sum = sum.defined() ? sum + sums.mean(1) : sums.mean(1);
      kept = kept.defined() ? kept * sums.exp().mean(1) : sums.exp().mean(1);
    }
    head.sum_log_gate[d] += share * sum.mean().item<double>();
    head.retention[d] += share * kept.mean().item<double>();
  }
}

}  // namespace

LayerGates gates_of(const std::any& trace) {
  LayerGates layer;
  const auto add = [&](const Tensor& log_gate) {
    const Tensor of_text = log_gate.detach().to(torch::kCPU, torch::kFloat64).select(0, 0);
    layer.log_gates.push_back(of_text.dim() == 2 ? of_text.unsqueeze(2) : of_text);
  };
  if (const auto* attention = std::any_cast<AttentionTrace>(&trace)) add(attention->log_forget);
  if (const auto* state = std::any_cast<StateTrace>(&trace)) {
    if (state->log_key_gate) add(*state->log_key_gate);
    if (state->log_value_gate) add(*state->log_value_gate);
  }
  return layer;
}

std::vector<int64_t> doubling_distances(int64_t length) {
  std::vector<int64_t> distances;
  for (int64_t distance = 1; distance < length; distance *= 2) distances.push_back(distance);
  return distances;
}

std::vector<HeadGates> head_gates(LanguageModel& model, const Dataset& dataset, const std::string& split,
                                  int64_t length, int64_t sequences, const std::vector<int64_t>& distances,
                                  const std::function<void(double)>& progress) {
  const torch::NoGradGuard no_gradient;
  const int64_t count = Pieces{split, length, sequences}.count(dataset);
  expect(length >= 2, "gates.length", "at least 2 tokens", std::to_string(length));
  const InEvaluation mode(model);
  const ModelConfig& config = model->config();
  std::map<std::pair<int64_t, int64_t>, HeadGates> heads;
  for (int64_t sequence = 0; sequence < count; ++sequence) {
    const Tensor tokens = dataset.sequences(split, sequence, 1, length).tokens.to(model->device());
    model->traces(tokens, [&](size_t layer, const std::any& trace) {
      const auto* attention = config.mixer.of(static_cast<int64_t>(layer)).if_own<AttentionConfig>();
      if (attention && attention->forget_gate == ForgetGate::kNone) return;
      const LayerGates gates = gates_of(trace);
      if (gates.log_gates.empty()) return;
      for (int64_t h = 0; h < gates.log_gates.front().size(1); ++h) {
        HeadGates& head = heads[{static_cast<int64_t>(layer), h}];
        head.layer = static_cast<int64_t>(layer);
        head.head = h;
        std::vector<Tensor> kinds;
        for (const Tensor& kind : gates.log_gates) kinds.push_back(kind.select(1, h).narrow(0, 1, length - 1));
        add_text(head, kinds, distances, 1.0 / static_cast<double>(count));
      }
    });
    if (progress) progress(static_cast<double>(sequence + 1) / static_cast<double>(count));
  }
  expect(!heads.empty(), "model", "one with gates", "no layer with them");
  std::vector<HeadGates> found;
  for (auto& [_, head] : heads) found.push_back(std::move(head));
  return found;
}

namespace {

struct GateSettings : Pieces {
  double local = 32;  ///< a head whose half-life is at most this many tokens is local
  double global = 0;  ///< one whose half-life is at least this many is global; 0: `length`
};

Evaluated findings(const LanguageModel& model, const std::vector<HeadGates>& heads,
                   const std::vector<int64_t>& distances, const GateSettings& settings) {
  Evaluated result;
  const auto texts = std::ssize(heads.front().half_life);
  const auto add = [&](const std::string& variant, const char* metric, const char* unit, double value) -> Record& {
    result.records.push_back(record_of_model(model, texts, settings.length, metric, unit, value));
    result.records.back().variant = variant;
    return result.records.back();
  };
  std::vector<double> half_lives;
  double local = 0, global = 0;
  for (const HeadGates& head : heads) {
    half_lives.push_back(median_of(head.half_life));
    local += half_lives.back() <= settings.local;
    global += half_lives.back() >= (settings.global > 0 ? settings.global : static_cast<double>(settings.length));
    add(head.name(), "half_life", "tokens", half_lives.back());
    add(head.name(), "mean_log_gate", "nats", median_of(head.mean_log_gate));
    const auto curve = [&](const char* quantity, const std::vector<double>& values) {
      for (size_t d = 0; d < distances.size(); ++d)
        result.points.push_back(
            {.quantity = quantity, .variant = head.name(), .x = static_cast<double>(distances[d]), .value = values[d]});
    };
    curve("sum_log_gate_at_distance", head.sum_log_gate);
    curve("retention_at_distance", head.retention);
    for (int64_t text = 0; text < texts; ++text)
      result.points.push_back({.quantity = "half_life_of_text_at_head",
                               .variant = head.name(),
                               .x = static_cast<double>(head.layer * model->config().heads + head.head),
                               .y = static_cast<double>(text),
                               .value = head.half_life[text]});
  }
  const auto count = static_cast<double>(heads.size());
  add("", "local_heads", "1", local / count);
  add("", "global_heads", "1", global / count);
  add("", "median_half_life", "tokens", median_of(half_lives));
  return result;
}

}  // namespace

Evaluation gates_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& given,
                      const std::function<void(double)>& progress) {
    GateSettings settings;
    settings.sequences = 16;
    JsonReader reader(given, "gates");
    settings.read(reader);
    reader("local", settings.local);
    reader("global", settings.global);
    reader.finish();
    const auto distances = doubling_distances(settings.length);
    const auto heads =
        head_gates(model, dataset, settings.split, settings.length, settings.sequences, distances, progress);
    return findings(model, heads, distances, settings);
  };
  return {"gates", "Half-lives of the gates, what is left of a write after a distance, local and global heads", run};
}

}  // namespace lethe

#include "experiments/models/mixers/mixer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/listed.hpp"
#include "optimized/torch/implementations.hpp"

namespace lethe {
namespace {

const Mixer& mixer_named(const std::string& name) {
  for (const Mixer& row : mixers())
    if (row.name == name) return row;
  throw std::invalid_argument("mixer.name: expected one of " + listed(mixers(), &Mixer::name) + ", found " + name);
}

}  // namespace

MixerConfig::MixerConfig(const std::string& name) : row_(&mixer_named(name)), options_(row_->defaults) {}

torch::Tensor MixerLayer::operator()(const torch::Tensor& x, Rotations& rotations, std::any* trace, Past* past) const {
  if (past && !continues_) throw std::logic_error("past: expected a mixer that continues one");
  torch::Tensor y = run_(x, rotations, trace, past);
  if (past) past->tokens += x.size(1);
  return y;
}

std::string on_every_gpu(const std::function<ImplementationText(int capability)>& described) {
  std::vector<std::pair<std::string, std::string>> groups;  // compute capabilities, and the implementation on them
  std::string reason;                                       // on 9.0
  for (const int capability : {90, 80, 86, 89, 100, 120}) {
    const ImplementationText here = described(capability);
    const std::string name = here.name + here.variant;
    const std::string dotted = std::to_string(capability / 10) + "." + std::to_string(capability % 10);
    if (capability == 90) reason = here.passed_over;
    const auto group = std::ranges::find(groups, name, [](const auto& entry) { return entry.second; });
    if (group == groups.end()) groups.emplace_back(dotted, name);
    else group->first += ", " + dotted;
  }
  if (groups.size() == 1) return "every GPU since 8.0: " + groups.front().second + reason;
  std::string text;
  for (const auto& [capabilities, name] : groups)
    text += (text.empty() ? "" : "; ") + capabilities + ": " + name + (text.empty() ? reason : "");
  return text;
}

void to_json(nlohmann::json& json, const MixerConfig& config) {
  json = {{"name", config.row().name}};
  config.row().write(json, config.options());
}

void from_json(const nlohmann::json& json, MixerConfig& config) {
  JsonReader reader(json, "mixer");
  std::string name = "none";
  reader("name", name);
  config = MixerConfig(name);
  config.row_->read(reader, config.options_);
  reader.finish();
}

void MixerStack::expect_only(const std::string& name) const {
  const std::string found = listed(mixers_, [](const MixerConfig& mixer) { return mixer.row().name; });
  expect(found == name, "mixer", name + " in every layer", found);
}

void to_json(nlohmann::json& json, const MixerStack& stack) {
  json = stack.all().size() == 1 ? nlohmann::json(stack.all().front()) : nlohmann::json(stack.all());
}

void from_json(const nlohmann::json& json, MixerStack& stack) {
  expect(json.is_object() || (json.is_array() && !json.empty()), "mixer", "an object, or a list of some", json.dump());
  stack = json.is_object() ? MixerStack(json.get<MixerConfig>()) : MixerStack(json.get<std::vector<MixerConfig>>());
}

}  // namespace lethe

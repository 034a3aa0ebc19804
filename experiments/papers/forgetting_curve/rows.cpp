#include "experiments/papers/forgetting_curve/rows.hpp"

#include <stdexcept>

#include "experiments/claims/recurrent_rows.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/decay.hpp"
#include "experiments/models/mixers/delta.hpp"
#include "experiments/models/mixers/gated.hpp"
#include "experiments/models/mixers/gated_delta.hpp"
#include "experiments/models/mixers/local.hpp"

namespace lethe {
namespace {

// The window is the only difference to Transformer (Pro).
ModelConfig local(int64_t window) {
  ModelConfig model = named_architecture("transformer-pro");
  LocalConfig own;
  own.rope = true;
  own.window = window;
  model.mixer = own;
  return model;
}

template <class Own>
ModelConfig rule(int64_t states) {
  ModelConfig model = named_architecture(Own::kName);
  model.mixer.only<Own>().state_size = states;
  return model;
}

ModelConfig architecture(const std::string& name, const nlohmann::json& settings) {
  const auto states = whole_number(settings, "state_size");
  if (name == kTransformerRow) return named_architecture("transformer-pro");
  if (name == "Transformer (LLaMA)") return named_architecture("transformer-llama");
  if (name == "FoX (Pro)") return named_architecture("fox-pro");
  if (name == "FoX (LLaMA)") return named_architecture("fox-llama");
  if (name == kLocalRow) return local(whole_number(settings, "window"));
  if (name == "Decay") return rule<DecayConfig>(states);
  if (name == "Gated") return rule<GatedConfig>(states);
  if (name == "Delta") return rule<DeltaConfig>(states);
  if (name == "Gated delta") return rule<GatedDeltaConfig>(states);
  if (is_recurrent_row(name)) return recurrent_row(name).architecture;
  throw std::invalid_argument("rows: expected names of architectures, found " + name);
}

}  // namespace

Row curve_row(const std::string& name, const nlohmann::json& settings) { return {name, architecture(name, settings)}; }

}  // namespace lethe

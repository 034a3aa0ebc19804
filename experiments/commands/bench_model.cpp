#include "experiments/commands/bench_model.hpp"

#include <c10/util/StringUtil.h>

#include <stdexcept>

namespace lethe {

void read_weights(LanguageModel& model, const Safetensors& file, const std::string& path) {
  const torch::NoGradGuard no_gradient;
  for (auto& parameter : model->named_parameters()) {
    const auto found = file.tensors.find(parameter.key());
    const bool is_there = found != file.tensors.end();
    if (!is_there || found->second.sizes() != parameter.value().sizes())
      throw std::invalid_argument(c10::str(path, ": expected ", parameter.key(), " of shape ",
                                           parameter.value().sizes(), ", found ",
                                           is_there ? c10::str("one of ", found->second.sizes()) : "none"));
    parameter.value().copy_(found->second);
  }
}

void set_gates(LanguageModel& model, const std::string& gates) {
  if (gates == "initial") return;
  constexpr double kGlobal = 9.2, kLocal = 2.25;  // log σ = −1e−4 and −0.1
  const torch::NoGradGuard no_gradient;
  bool found = false;
  for (auto& parameter : model->named_parameters()) {
    if (!parameter.key().ends_with("fgate_proj.bias")) continue;
    found = true;
    parameter.value().fill_(kGlobal);
    const int64_t heads = parameter.value().numel();
    if (gates == "bimodal") parameter.value().narrow(0, 0, (7 * heads + 5) / 10).fill_(kLocal);
  }
  if (!found)
    throw std::invalid_argument("--gates: expected a model with FoX's gate, found " + gates + " gates of one without");
}

}  // namespace lethe

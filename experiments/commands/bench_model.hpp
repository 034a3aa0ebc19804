#pragma once
// The model whose speed `lethe bench` measures.

#include <string>

#include "experiments/models/language_model.hpp"
#include "experiments/models/safetensors.hpp"

namespace lethe {

/// Copies a file's weights into the model, on whatever device that is.
///
/// reads   path: the file's name, for the error
/// throws  std::invalid_argument for a parameter that is absent or has another shape
void read_weights(LanguageModel& model, const Safetensors& file, const std::string& path);

/// Sets every forget gate's bias: "open", all forget over thousands of tokens; "bimodal", seven heads of ten over some ten; "initial", as they are.
void set_gates(LanguageModel& model, const std::string& gates);

}  // namespace lethe

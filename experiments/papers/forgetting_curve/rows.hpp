#pragma once
// The architectures whose curves are compared.

#include <string>

#include "experiments/claims/runs.hpp"

namespace lethe {

inline const std::string kTransformerRow = "Transformer (Pro)", kLocalRow = "Local attention";

/// The architecture of that name: Transformer and FoX, (LLaMA) and (Pro); "Local attention", Transformer (Pro) with settings["window"] in place
/// of attention; "Decay", "Gated", "Delta" and "Gated delta", Transformer (LLaMA) with that rule and settings["state_size"] rows a head; and those of
/// recurrent_row.
///
/// throws  std::invalid_argument for another name
Row curve_row(const std::string& name, const nlohmann::json& settings);

}  // namespace lethe

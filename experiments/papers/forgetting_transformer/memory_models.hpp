#pragma once
// The models whose memory is measured: by a needle, by recall and by forgetting curves.

#include <string>
#include <vector>

#include "experiments/claims/seeds.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe {

inline constexpr const char* kDeltaRule = "Delta rule";
inline constexpr const char* kLocalAttention = "Local attention";
inline constexpr const char* kUntrained = "FoX (Pro) untrained";

/// FoX and Transformer, (Pro) and (LLaMA), with settings["seeds"] seeds; the delta rule (DeltaNet), local attention over
/// settings["window"] tokens, the rows of recurrent_rows(), and FoX (Pro) after one step of rate 0, with one.
std::vector<Run> memory_runs(const nlohmann::json& settings, int64_t vocabulary);

}  // namespace lethe

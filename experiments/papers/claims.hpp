#pragma once
// What each claim's program gives to the registry: the runs that it needs and how it is measured from them.

#include "experiments/papers/registry.hpp"

namespace lethe::ablations {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::ablations

namespace lethe::forget_gate_types {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::forget_gate_types

namespace lethe::length_extrapolation {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::length_extrapolation

namespace lethe::duality {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::duality

namespace lethe::savings {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::savings

namespace lethe::per_head_savings {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::per_head_savings

namespace lethe::boundaries {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::boundaries

namespace lethe::tolerance {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::tolerance

namespace lethe::generation_cost {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::generation_cost

namespace lethe::update_rules {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::update_rules

namespace lethe::state_capacity {
std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary);
Findings measure(const Study& study);
}  // namespace lethe::state_capacity

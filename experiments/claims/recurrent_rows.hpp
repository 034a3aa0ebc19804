#pragma once
// The recurrent models that the papers compare with, by the names of their rows.

#include "experiments/claims/runs.hpp"

namespace lethe {

/// "Mamba-2", "HGRN2", "DeltaNet", "Gated DeltaNet", "GLA", "RetNet", "Samba" and "Mamba-2 + FoX": the named architectures.
///
/// throws  std::invalid_argument for another name
Row recurrent_row(const std::string& name);

/// Whether recurrent_row has that name.
bool is_recurrent_row(const std::string& name);

/// The rows that settings["recurrent_rows"] and settings["further_recurrent_rows"] name: those of a paper's figure, and ours. None where they are absent.
struct RecurrentRows {
  std::vector<std::string> of_the_figure, further;
};
RecurrentRows recurrent_rows(const nlohmann::json& settings);

/// A run with seed 0 of each of them.
std::vector<Run> recurrent_runs(const nlohmann::json& settings, int64_t vocabulary);

}  // namespace lethe

#pragma once
// The models of the FoX paper's tables and figures, by the names of its rows.

#include <string>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/models/mixers/attention.hpp"

namespace lethe {

/// The models of FoX Table 3 from top to bottom. Its row "- KV-shift" is the row "+ output norm" of the upper half.
std::vector<Row> table_3();

/// The rows of FoX Fig. 9 between Transformer (LLaMA) and Transformer (Pro), a component more each.
std::vector<Row> figure_9();

/// The row of that name.
///
/// throws  std::invalid_argument for a name that neither Table 3 nor Fig. 9 has
Row table_3_row(const std::string& name);

/// The rows that are run with several seeds where a scale doesn't say otherwise: two with a forget gate, two without.
inline const std::vector<std::string> kNoiseRows = {"FoX (LLaMA)", "Transformer (LLaMA)", "FoX (Pro)",
                                                    "Transformer (Pro)"};

/// The control of claims on length: Transformer (LLaMA) whose layers see settings["control_window"] tokens each. Its seeds are those of "control".
Row blind_row(const nlohmann::json& settings);

/// Runs of the rows of these names: seeds_of(settings, name), by default settings["seeds"] for the rows of kNoiseRows and one for the others.
std::vector<Run> table_3_runs(const std::vector<std::string>& names, const nlohmann::json& settings,
                              int64_t vocabulary);

/// Runs of the control.
std::vector<Run> control_runs(const nlohmann::json& settings, int64_t vocabulary);

}  // namespace lethe

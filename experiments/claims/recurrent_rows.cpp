#include "experiments/claims/recurrent_rows.hpp"

#include <algorithm>
#include <array>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "experiments/listed.hpp"

namespace lethe {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 8> kRecurrentRows{{{"Mamba-2", "mamba2"},
                                                                             {"HGRN2", "hgrn2"},
                                                                             {"DeltaNet", "deltanet"},
                                                                             {"Gated DeltaNet", "gated-deltanet"},
                                                                             {"GLA", "gla"},
                                                                             {"RetNet", "retnet"},
                                                                             {"Samba", "samba"},
                                                                             {"Mamba-2 + FoX", "mamba2-fox"}}};

}  // namespace

Row recurrent_row(const std::string& name) {
  for (const auto& [row, architecture] : kRecurrentRows)
    if (row == name) return {name, named_architecture(architecture)};
  throw std::invalid_argument("recurrent_rows: expected some of " + listed(kRecurrentRows | std::views::keys) +
                              ", found " + name);
}

bool is_recurrent_row(const std::string& name) {
  return std::ranges::any_of(kRecurrentRows, [&](const auto& row) { return row.first == name; });
}

RecurrentRows recurrent_rows(const nlohmann::json& settings) {
  const std::vector<std::string> none;
  return {settings.value("recurrent_rows", none), settings.value("further_recurrent_rows", none)};
}

std::vector<Run> recurrent_runs(const nlohmann::json& settings, int64_t vocabulary) {
  const RecurrentRows rows = recurrent_rows(settings);
  std::vector<Run> runs;
  for (const auto& names : {rows.of_the_figure, rows.further})
    for (const std::string& name : names)
      runs.push_back(runs_of(recurrent_row(name), settings, vocabulary, 1).front());
  return runs;
}

}  // namespace lethe

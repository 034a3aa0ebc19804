#pragma once
// The files of a claim's findings.

#include <filesystem>

#include "experiments/claims/claim.hpp"
#include "experiments/claims/job.hpp"

namespace lethe {

/// What a scale's settings say of its statements.
///
/// reads  settings: changed_after_a_run, added to every note; undecided, by statement why a machine can change its verdict: it is open, with what
///        would decide it on this machine, or that its band decides it here
void say_what_settings_say(const nlohmann::json& settings, std::vector<Comparison>& comparisons);

/// Writes <context.results>/<claim>.{csv,json} and, where there are curves, <claim>.points.csv. The certificate has the commit of every model: one
/// may be older than the claim, and its name is no hash of the program that trained it.
///
/// reads  dataset: {"name", "content"}, null for a claim that reads none; key: the hash of all inputs, empty where the claim was judged from bundles;
///        not_run: descriptions of its runs that have no model yet
void write_findings(const Study& study, Findings findings, const Context& context, const nlohmann::json& dataset,
                    const std::string& key, const std::vector<std::string>& not_run = {});

}  // namespace lethe

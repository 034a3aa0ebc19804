#pragma once
// Claims judged from the measurements of trained models alone: no corpus, no weights, no training.

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/claims/job.hpp"

namespace lethe {

/// One claim, judged or not.
struct Judged {
  Experiment experiment;
  std::vector<Comparison> comparisons;
  std::string lacks;  ///< why it could not be judged: no model, or a measurement that is absent; empty where it was
  std::vector<std::string> not_run;  ///< its runs that have no model yet, or no measurement: statements on rows without one are open
};

/// The folder of results of these models: the GPU, or else the machine, that trained the first, and suffix_of (job.hpp).
std::string folder_of(const std::filesystem::path& models, const std::string& scale, const std::string& corpus = "");

/// Judges the claims by the rules of this program, from the artefacts below `models`, and writes the files of those that could be judged, see
/// write_findings. A claim some of whose runs have no model yet, or none that has all that the claim asks, is judged by the others: each statement by
/// the seeds that its rows share.
/// A claim on this machine's own speed has no such measurements. The data's hash and vocabulary come from the artefacts of the claim's corpus; where
/// claim_settings gives the hash of its dataset, from those of that dataset alone.
///
/// throws  std::runtime_error naming a damaged file
std::vector<Judged> judge_experiments(const std::vector<Experiment>& selected, const Context& context,
                                      const std::filesystem::path& models);

}  // namespace lethe

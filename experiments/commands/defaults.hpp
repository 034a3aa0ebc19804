#pragma once
// The run of a call without options, and the members that follow from those that are set.

#include <set>
#include <string>

#include "experiments/training/training.hpp"

namespace lethe {

/// The default run: small enough for two cores, large enough that the loss falls.
Run default_run();

/// Where the tokens were set, the warm-up and the interval of checkpoints keep their share of them unless they were set too.
///
/// reads  begin: the run before members were set; given: the names of the members that were set
void keep_shares(Run& run, const Run& begin, const std::set<std::string>& given);

/// Fits the members that were not set to those that were, and to the data: heads to the width and the width to the heads; tokens to
/// at most twenty epochs, and a quarter as many GPT-2 tokens as bytes; a sequence to the train and valid split, to the tokens, and to a
/// batch that was set; a batch to whole sequences.
///
/// reads  dataset: null where only what was set counts
void fit_to(Run& run, const std::set<std::string>& given, const Dataset* dataset);

}  // namespace lethe

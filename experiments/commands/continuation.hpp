#pragma once
// Text that a model writes.

#include <cstdint>
#include <functional>
#include <string>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// How tokens are drawn.
struct Drawing {
  int64_t tokens = 200;      ///< at most
  int64_t top = 0;           ///< among so many likeliest tokens; 0: all
  double temperature = 0.8;  ///< 0: always the likeliest token; 1: the model's own distribution
  uint64_t seed = 0;
};

/// Continues a prompt until the document ends, `drawing.tokens` are written, or `written` returns false. The same seed draws the same.
///
/// reads  context: tokens that attention sees at most; states and windows, whose size is fixed, see all of the text
///        written: called with the bytes of each token
/// cost   one forward pass of the prompt, and of one token for each token; of the whole window where a mixer continues no past or the text is longer
///        than attention may see
void continue_text(LanguageModel& model, const Dataset& dataset, int64_t context, const std::string& prompt,
                   const Drawing& drawing, const std::function<bool(const std::string&)>& written);

}  // namespace lethe

#pragma once
// The two models that the Curve paper trains itself.

#include "experiments/models/config.hpp"
#include "experiments/models/mixers/segment.hpp"

namespace lethe {

inline const std::string kLlama = "Llama", kLlamaXl = "Llama-XL";

/// Llama-83M without a size: MLPs of four times the width. With 12 layers, width 512, 8 heads and 32,000 tokens it has 83,112,448 parameters.
///
/// source  Liu 2024, "Forgetting Curve", Table 5
inline ModelConfig llama_83m() {
  ModelConfig model = named_architecture("transformer-llama");
  model.mlp_ratio = 6;  // of which two thirds are the width of each matrix
  return model;
}

/// The same with segment recurrence in place of attention (Appendix D.2).
inline ModelConfig llama_xl(int64_t segment) {
  ModelConfig model = named_architecture("segment");
  model.mlp_ratio = llama_83m().mlp_ratio;
  model.mixer.only<SegmentConfig>().segment = segment;
  return model;
}

}  // namespace lethe

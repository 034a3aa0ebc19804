#include "experiments/models/footprint.hpp"

#include "experiments/models/language_model.hpp"

namespace lethe {

Footprint footprint(const ModelConfig& config, int64_t tokens) {
  const int64_t float_bytes = 4;
  const int64_t compute_bytes = config.compute_dtype == "float64" ? 8 : config.compute_dtype == "float32" ? 4 : 2;
  const int64_t parameters = count_parameters(config).total * float_bytes;

  const int64_t queries_and_keys = 2 * config.heads * config.query_dim();
  const int64_t columns_in_compute =
      queries_and_keys + config.width * (2    // normed inputs of attention and MLP
                                         + 1  // v
                                         + 1  // the mixer's values
                                         + 2 * config.kv_shift + 2 * (config.qk_norm != QkNorm::kNone) +
                                         config.output_norm + 2 * config.output_gate);
  const int64_t residual = config.mixer == Mixer::kAttention && compute_bytes == 2 ? config.width : 0;
  int64_t features = 0, gates = 0;  // columns
  if (config.has_state() && config.feature_map != FeatureMap::kLinear)
    features = 2 * config.heads * config.state_rows();
  if (config.mixer == Mixer::kDecay) gates = config.width + config.heads * config.state_rows();
  const int64_t layer = tokens * ((2 * config.width + 2 * gates) * float_bytes +
                                  (columns_in_compute + residual + features + 3 * config.mlp_width()) * compute_bytes);
  return {parameters, parameters, 2 * parameters, config.layers * layer + 2 * tokens * config.width * float_bytes};
}

}  // namespace lethe

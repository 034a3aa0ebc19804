#include "experiments/models/footprint.hpp"

#include "experiments/models/language_model.hpp"

namespace lethe {

Footprint footprint(const ModelConfig& config, int64_t tokens) {
  const int64_t float_bytes = 4;
  const int64_t compute_bytes = config.compute_dtype == "float64" ? 8 : config.compute_dtype == "float32" ? 4 : 2;
  const int64_t parameters = count_parameters(config).total * float_bytes;

  const int64_t widths_in_compute = 2    // normed inputs of attention and MLP
                                    + 3  // q, k, v
                                    + 1  // attention's values
                                    + 2 * config.kv_shift + 2 * (config.qk_norm != QkNorm::kNone) + config.output_norm +
                                    2 * config.output_gate;
  const int64_t layer = tokens * (2 * config.width * float_bytes + widths_in_compute * config.width * compute_bytes +
                                  3 * config.mlp_width() * compute_bytes);
  return {parameters, parameters, 2 * parameters, config.layers * layer + 2 * tokens * config.width * float_bytes};
}

}  // namespace lethe

#include "experiments/models/footprint.hpp"

#include "experiments/models/language_model.hpp"

namespace lethe {

Footprint footprint(const ModelConfig& config, int64_t tokens) {
  const int64_t float_bytes = 4;
  const int64_t parameters = count_parameters(config).total * float_bytes;
  // The input and the middle of the residual stream; the normed inputs of mixer and MLP, and the MLP's own tensors.
  const int64_t block =
      2 * config.width * float_bytes + (2 * config.width + 3 * config.mlp_width()) * config.compute_bytes();
  int64_t token = 2 * config.width * float_bytes;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const MixerConfig& mixer = config.mixer.of(layer);
    token += block + mixer.row().activation_bytes(config, mixer.options());
  }
  return {parameters, parameters, 2 * parameters, tokens * token};
}

}  // namespace lethe

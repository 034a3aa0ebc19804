#include "experiments/models/footprint.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

#include "experiments/models/language_model.hpp"

namespace lethe {
namespace {

// The whole memory of a device; of the machine, at most what its control group allows.
double memory_of(torch::Device device) {
  if (device.is_cuda())
    return static_cast<double>(
        at::getDeviceAllocator(device.type())->getMemoryInfo(std::max<int>(0, device.index())).second);
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  double limit = machine;
  std::ifstream group("/sys/fs/cgroup/memory.max");  // a number, or "max"
  return group >> limit ? std::min(machine, limit) : machine;
}

std::string gibibytes(double bytes) {
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%.4g GiB", bytes / 0x1p30);
  return text.data();
}

}  // namespace

Footprint footprint(const ModelConfig& config, int64_t tokens) {
  const int64_t float_bytes = 4,
                residual_bytes = config.residual_in_compute_dtype ? config.compute_bytes() : float_bytes;
  const int64_t parameters = count_parameters(config).total * float_bytes;
  // The input and the middle of the residual stream; the normed inputs of mixer and MLP, and the MLP's own tensors.
  const int64_t branches = config.mlp_width() > 0 ? 2 : 1;
  const int64_t block = branches * config.width * residual_bytes +
                        (branches * config.width + 3 * config.mlp_width()) * config.compute_bytes();
  int64_t token = 2 * config.width * residual_bytes;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const MixerConfig& mixer = config.mixer.of(layer);
    token += block + mixer.row().activation_bytes(config, mixer.options());
  }
  int64_t activations = 0;
  expect(tokens >= 0 && !__builtin_mul_overflow(tokens, token, &activations), "tokens",
         "fewer than 2^63 bytes of activations at " + std::to_string(token) + " bytes a token", std::to_string(tokens));
  return {parameters, parameters, 2 * parameters, activations};
}

void expect_memory(const std::string& what, int64_t bytes, torch::Device device) {
  const double all = memory_of(device);
  expect(static_cast<double>(bytes) <= all, "memory", "at most the " + gibibytes(all) + " of " + device.str(),
         gibibytes(static_cast<double>(bytes)) + " for " + what);
}

}  // namespace lethe

#include "experiments/training/machine_limit.hpp"

#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "experiments/models/mixers/attention.hpp"

namespace lethe {

double product_flops_per_second(torch::Device device, torch::Dtype dtype) {
  using Clock = std::chrono::steady_clock;
  const int64_t n = device.is_cuda() ? 8192 : 1024;
  const torch::NoGradGuard no_gradient;
  const auto options = torch::TensorOptions(device).dtype(dtype);
  // Not zeros: a GPU's clock depends on the power that its operands take.
  const torch::Tensor left = torch::linspace(-1, 1, n * n, options).view({n, n});
  torch::Tensor result = torch::empty({n, n}, options);
  std::array<double, 5> seconds{};
  for (int i = -2; i < 5; ++i) {
    const auto start = Clock::now();
    torch::mm_out(result, left, left);
    if (device.is_cuda()) torch::cuda::synchronize();
    if (i >= 0) seconds[i] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::ranges::sort(seconds);
  return 2.0 * static_cast<double>(n * n * n) / seconds[2];
}

TrainingLimit training_limit(const Run& run, int64_t processes) {
  const double rate = product_flops_per_second(device_named(run.training.device), dtype_named(run.model.compute_dtype));
  const auto prunes = [](const MixerConfig& mixer) {
    const auto* attention = mixer.if_own<AttentionConfig>();
    return attention && attention->log_pruning_tolerance;
  };
  return {static_cast<double>(processes) * rate / training_flops_per_token(run.model, run.training.context_length),
          std::ranges::any_of(run.model.mixer.all(), prunes)};
}

}  // namespace lethe

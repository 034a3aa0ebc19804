#pragma once
// Two rivals timed in alternation, so that what slows a machine for a while slows both.

#include <torch/cuda.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace lethe::savings {

/// Seconds of one call, including the work that it launched on GPUs.
template <typename Work>
double seconds(Work& work) {
  const auto wait = [] {
    if (torch::cuda::is_available()) torch::cuda::synchronize();
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The times of two rivals, by repetition.
struct Duel {
  std::vector<double> without, with;  ///< seconds

  /// How many times as fast the second is, by repetition.
  std::vector<double> speedup() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < with.size(); ++i) ratios.push_back(without[i] / with[i]);
    return ratios;
  }
};

/// Times both in turn, with the first of each pair alternating, after one call of each that isn't counted.
template <typename Without, typename With>
Duel duel(int64_t repetitions, Without&& without, With&& with) {
  Duel times;
  without();
  with();
  for (int64_t i = 0; i < repetitions; ++i) {
    if (i % 2 == 0) times.without.push_back(seconds(without));
    times.with.push_back(seconds(with));
    if (i % 2 == 1) times.without.push_back(seconds(without));
  }
  return times;
}

}  // namespace lethe::savings

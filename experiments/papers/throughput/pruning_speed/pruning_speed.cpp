// The speed with pruning, against our own speed without pruning and against other pruning kernels.

#include "experiments/papers/throughput/kernel_speeds.hpp"

namespace lethe::pruning_speed {

std::vector<Run> runs(const nlohmann::json&, int64_t) { return {}; }

Findings measure(const Study& study) {
  std::vector<SpeedRatio> ratios;
  for (const auto& [direction, words] : {std::pair("forward", "Forward"), std::pair("backward", "Backward")}) {
    const auto add = [&, direction = std::string(direction), words = std::string(words)](
                         const char* beside, const char* theirs, const std::vector<std::string>& rivals,
                         bool times_kept_share) {
      ratios.push_back({direction + "_beside_" + beside, words + theirs, "bimodal", direction, "lethe_pruned", rivals,
                        times_kept_share});
    };
    add("unpruned", " that prunes the share p, over ours without pruning times 1/(1 − p)", {"lethe"}, true);
    add("flex", " with pruning, over FlexAttention's with the pruned mask",
        {"flex_pruned_mask", "flex_flash_pruned_mask"}, false);
    add("official", " with pruning, over the official kernel's with it", {"official_pruned"}, false);
  }
  return judge(study, speed_ratios(study, ratios), [](double goal) { return Expectation{.low = goal}; });
}

}  // namespace lethe::pruning_speed

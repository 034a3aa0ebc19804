// Speed with a gate that prunes nothing, against attention without a gate.

#include "experiments/papers/throughput/kernel_speeds.hpp"

namespace lethe::open_gate {

std::vector<Run> runs(const nlohmann::json&, int64_t) { return {}; }

Findings measure(const Study& study) {
  const auto beside = [](const char* direction, const char* words) {
    return SpeedRatio{std::string(direction) + "_beside_cudnn", words, "open", direction, "lethe", {"cudnn"}};
  };
  return judge(study,
               speed_ratios(study, {beside("forward", "Forward with an open gate over cuDNN's without a gate"),
                                    beside("backward", "Backward with an open gate over cuDNN's without a gate")}),
               [](double goal) { return Expectation{.low = goal}; });
}

}  // namespace lethe::open_gate

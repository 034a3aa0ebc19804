#pragma once
// The names of a GPU.

#include <c10/core/Device.h>

#include <string>

namespace lethe {

struct Gpu {
  std::string name;    ///< such as "NVIDIA H200"
  std::string bus_id;  ///< such as "0000:1B:00.0", by which nvidia-smi finds it whatever devices the process sees
};

/// reads   device: CUDA; without an index the first one
/// throws  std::runtime_error with CUDA's own words; c10::Error in a build without CUDA
Gpu gpu(at::Device device);

}  // namespace lethe

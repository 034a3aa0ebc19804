#include "experiments/commands/version.hpp"

#include <torch/version.h>

#include "experiments/certificate.hpp"

namespace lethe {

std::string version() {
  const std::string commit = built_commit();
#ifdef LETHE_WITH_CUDA
  const char* kernels = "with CUDA kernels";
#else
  const char* kernels = "without CUDA kernels";
#endif
  return std::string("lethe ") + LETHE_VERSION + "\ncommit  " + (commit.empty() ? "unknown" : commit) + "\nbuild   " +
         LETHE_BUILD_TYPE + ", g++ " + __VERSION__ + ", torch " + TORCH_VERSION + ", " + kernels;
}

}  // namespace lethe

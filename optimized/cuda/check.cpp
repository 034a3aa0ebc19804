#include "optimized/cuda/check.hpp"

#include <stdexcept>
#include <string>

namespace lethe {

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

}  // namespace lethe

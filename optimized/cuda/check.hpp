#pragma once

#include <cuda_runtime_api.h>

namespace lethe {

/// throws  std::runtime_error "`what`: …" with CUDA's own words where `status` is an error
void cuda_check(cudaError_t status, const char* what);

}  // namespace lethe

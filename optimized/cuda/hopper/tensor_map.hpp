#pragma once
// Tensor maps: the description of a tensor by which the copy engine loads and stores boxes of it.

#include <cuda.h>

#include "optimized/cuda/attention.hpp"

namespace lethe {

/// Shared memory that one CTA may have on compute capability 9.0.
inline constexpr int kLargestSharedBytes = 227 * 1024;

/// Map of a 16-bit tensor [B, T, H, D] in boxes of `rows` tokens × 64 of D (one batch, one head), 128-byte swizzled: coordinates
/// (d, head, token, batch). Reads outside give zeros, writes outside are dropped. `promotion`: what the L2 cache fetches at a time.
///
/// throws  std::runtime_error where the driver refuses it or is missing
CUtensorMap tensor_map(const Operand& operand, Dtype dtype, int64_t batch, int64_t length, int64_t heads, int64_t dim,
                       int rows, CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

}  // namespace lethe

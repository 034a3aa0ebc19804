#pragma once
// Gates so strong that a float32 prefix loses the differences inside a block of 128 tokens.
//
// The kernels add c_i − c_j to a logit as the sum of two floats, each relative to a number that the tile shares. Where keys and queries of one tile
// see each other these floats may be large and their sum small, with an error of 2⁻²⁴ of the sum of log f. The error matters more in dq and dk: where
// a query's own key has nearly all weight, dS is a small difference of large numbers, and keeps their error. So the forward leaves tiles with queries
// in a strong block (kStrongSum) to its second launch, and the backward computes the diagonal near one apart: both add c_i − c_j there to each logit,
// from prefixes of more than a float's digits.

#include <numbers>

#include "optimized/cuda/gate/plan.hpp"

namespace lethe {

/// c of a token: to two floats' digits where its block is strong, elsewhere to 2⁻²⁴ of the sum of the block's log f.
/// shapes   row = b·Hq + h; key_blocks = N
__device__ inline double prefix_at(const GatePrefix& prefix, int64_t row, int key_blocks, int token) {
  constexpr int kBlock = kGateBlock;
  const int64_t block = row * key_blocks + token / kBlock, at = row * key_blocks * kBlock + token;
  double local = prefix.bias[at];
  if (prefix.block_sum[block] < kStrongSum) local += prefix.bias_rest[at];
  return prefix.base[row + block] - local * std::numbers::ln2;  // one entry more a head
}

/// A number of twice a float's digits, high + low. 16 bytes, the copy engine's shortest copy.
struct alignas(16) TwoFloats {
  float high, low;
};

/// A double as the sum of two floats.
__host__ __device__ inline TwoFloats two_floats(double number) {
  const float high = static_cast<float>(number);
  return {high, static_cast<float>(number - high)};
}

}  // namespace lethe

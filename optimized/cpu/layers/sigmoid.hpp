#pragma once
// σ(x) = 1/(1 + e^(−x)), for files that are compiled once for each instruction set and share nothing (tile_kernels.cpp).

#include "optimized/cpu/exponential.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

// By e^(−|x|), which never overflows.
template <typename Scalar>
inline __attribute__((always_inline)) Scalar sigmoid(Scalar x) {
  const Scalar small = exponential(x < 0 ? x : -x);
  return (x < 0 ? small : Scalar(1)) / (Scalar(1) + small);
}

}  // namespace
}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET

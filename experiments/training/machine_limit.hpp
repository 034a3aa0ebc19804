#pragma once
// What a machine can give a training.

#include <torch/types.h>

#include "experiments/training/training.hpp"

namespace lethe {

/// FLOPs a second of one large matrix product, [n,n]·[n,n] with n = 8192 on a GPU and 1024 on a CPU: the median of five after two that are not timed.
/// A training can't be faster than its FLOPs at this rate, unless it prunes.
///
/// reads  dtype: of both operands and the result
/// cost   some 20 ms on a GPU with tensor cores, 0.4 GB there; some 0.2 s on two CPU cores
double product_flops_per_second(torch::Device device, torch::Dtype dtype);

/// The speed of a training whose FLOPs, all pairs of its attention included, run at that rate on every process's device.
///
/// cost   that of product_flops_per_second
TrainingLimit training_limit(const Run& run, int64_t processes = 1);

}  // namespace lethe

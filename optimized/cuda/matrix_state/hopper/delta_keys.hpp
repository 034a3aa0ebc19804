#pragma once
// The delta rule with a gate a row on compute capability 9.0 (delta_keys.cu): its sweeps by wgmma, and a preparation that one of them follows.

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/matrix_state/delta_keys.hpp"

namespace lethe::matrix_state {

/// As prepare_delta_keys, by so many CTAs, a multiprocessor each, which publish the records that are there (DeltaKeyArguments::prepared). The sweep may begin
/// as soon as all of these CTAs have begun: it waits for none that hasn't.
void prepare_keys_in_turn(const DeltaKeyArguments& arguments, Dtype dtype, int ctas, cudaStream_t stream);

/// As sweep_delta_keys and reverse_delta_keys, a CTA for 128 columns of each of `heads` heads, of at most 128 rows. What they compute is what those compute,
/// but for the order of sums, in float. Each may start before the kernel before it on the stream has ended, and waits for it, or forward for each record.
void sweep_keys_by_warpgroups(const DeltaKeyArguments& arguments, Dtype dtype, bool keeps, int64_t heads,
                              cudaStream_t stream);
void reverse_keys_by_warpgroups(const DeltaKeyArguments& arguments, Dtype dtype, int64_t heads, cudaStream_t stream);

}  // namespace lethe::matrix_state

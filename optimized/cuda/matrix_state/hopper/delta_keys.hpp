#pragma once
// The sweeps of the delta rule with a gate a row by wgmma, on compute capability 9.0 (delta_keys.cu).

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/matrix_state/delta_keys.hpp"

namespace lethe::matrix_state {

/// As sweep_delta_keys and reverse_delta_keys, a CTA for 128 columns of each of `heads` heads, of at most 128 rows. What they compute is what those compute,
/// but for the order of sums, in float. Each may start before the kernel before it on the stream has ended, and waits for it.
void sweep_keys_by_warpgroups(const DeltaKeyArguments& arguments, Dtype dtype, bool keeps, int64_t heads,
                              cudaStream_t stream);
void reverse_keys_by_warpgroups(const DeltaKeyArguments& arguments, Dtype dtype, int64_t heads, cudaStream_t stream);

}  // namespace lethe::matrix_state

#pragma once
// Shared memory with NaN left by an earlier kernel.

namespace lethe::testing {

/// Leaves NaN, in every type, in all shared memory of the device, for the next kernel on the default stream: it must not read memory that it has not
/// written.
void poison_shared_memory();

}  // namespace lethe::testing

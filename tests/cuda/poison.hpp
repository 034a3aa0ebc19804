#pragma once
// Shared memory as a kernel may find it.

namespace lethe::testing {

/// Leaves NaN, in whatever type it is read, in all shared memory of the device, for the next kernel on the default stream to find: it
/// must not read what it has not written.
void poison_shared_memory();

}  // namespace lethe::testing

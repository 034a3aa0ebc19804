#pragma once

namespace lethe::testing {

/// A kernel of which there is PTX of compute capability 8.0, and nothing else.
const void* kernel_of_80();

}  // namespace lethe::testing

#pragma once
// Addresses in shared memory.

#include <cstdint>

namespace lethe::ptx {

/// The 32-bit shared-space address that PTX instructions take.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Byte offset of 16-byte chunk `chunk` of row `row` among rows of kColumns 16-bit elements, a multiple of 32. Chunks change places so that eight
/// successive rows have any one chunk in different banks.
template <int kColumns>
__device__ inline uint32_t swizzled_chunk(uint32_t row, uint32_t chunk) {
  static_assert(kColumns % 32 == 0);
  const uint32_t place = kColumns % 64 == 0 ? row & 7 : row >> 1 & 3;
  return row * (kColumns * 2) + ((chunk ^ place) << 4);
}

}  // namespace lethe::ptx

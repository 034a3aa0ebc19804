#pragma once
// Arrays of rows by raw pointers, as the layers' kernels of every device read them.

#include <cstdint>

namespace lethe::layers {

/// An array [rows, columns]; pitch: the distance of two rows in elements. data null: absent.
struct Rows {
  const void* data = nullptr;
  int64_t pitch = 0;
};
struct MutableRows {
  void* data = nullptr;
  int64_t pitch = 0;
};

}  // namespace lethe::layers

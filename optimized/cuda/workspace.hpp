#pragma once
// One block of device memory, cut into arrays.

#include <cstddef>
#include <cstdint>

namespace lethe {

/// Returns arrays one after the other, each at a multiple of 256 bytes; over no memory it only counts.
class Workspace {
 public:
  /// reads  memory  device, 256-byte aligned, or null
  explicit Workspace(void* memory) : begin_(reinterpret_cast<uintptr_t>(memory)), next_(begin_) {}

  /// The next array, of `count` elements.
  template <typename T>
  T* take(int64_t count) {
    const uintptr_t array = next_;
    next_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(array);
  }

  /// Bytes of all arrays so far, a multiple of 256.
  size_t bytes() const { return next_ - begin_; }

  /// The beginning of the next array.
  void* rest() const { return reinterpret_cast<void*>(next_); }

 private:
  uintptr_t begin_, next_;
};

}  // namespace lethe

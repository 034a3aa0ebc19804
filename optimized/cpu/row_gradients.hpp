#pragma once
// The gradients that the matrix state's backward pass adds up over tiles of columns.

#include <algorithm>
#include <cstdint>

namespace lethe::cpu {

/// The gradients over a chunk's rows of the state, of q, k and log f [tokens, stride] each and of β [tokens], contiguous in memory that the caller
/// owns: size(tokens, stride) numbers from a boundary of 64 bytes on. `stride` is StateChunkGradient's row_stride.
class RowGradients {
 public:
  RowGradients(int64_t tokens, int64_t stride, double* memory) : tokens_(tokens), stride_(stride), memory_(memory) {}
  /// The size of one of several in a row: a multiple of 64 bytes, so each starts on a boundary of the kernels' vectors.
  static int64_t size(int64_t tokens, int64_t stride) { return ((3 * stride + 1) * tokens + 7) / 8 * 8; }

  double* query() const { return memory_; }
  double* key() const { return memory_ + tokens_ * stride_; }
  double* key_gate() const { return memory_ + 2 * tokens_ * stride_; }
  double* strength() const { return memory_ + 3 * tokens_ * stride_; }
  void clear() const { std::fill_n(memory_, size(tokens_, stride_), 0.0); }
  void add(const RowGradients& other) const {
    for (int64_t i = 0; i < size(tokens_, stride_); ++i) memory_[i] += other.memory_[i];
  }

 private:
  int64_t tokens_, stride_;
  double* memory_;
};

}  // namespace lethe::cpu

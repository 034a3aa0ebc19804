#pragma once
// Packed sequences: several documents one after another in a row, which no layer may mix.

#include <torch/types.h>

#include <cstdint>

namespace lethe {

/// The sequences of one forward pass, all in a batch of one.
struct Packed {
  /// reads   cu_seqlens [N+1] int64: the first token of each sequence, then T; longest: at most so many tokens in a sequence
  Packed(const torch::Tensor& cu_seqlens, int64_t tokens, int64_t longest);

  torch::Tensor cu_seqlens;  ///< [N+1] int64
  torch::Tensor position;    ///< [T] int64, of each token in its sequence
  int64_t longest;

  /// x with `rows` rows of zeros before each sequence, for a layer that reads so many tokens before; and what is left of its result without them.
  ///
  /// reads   x [1,T,…]; spaced [1,T+N·rows,…]
  /// cost    one copy
  torch::Tensor spaced(const torch::Tensor& x, int64_t rows = 1) const;
  torch::Tensor unspaced(const torch::Tensor& spaced, int64_t rows = 1) const;

 private:
  torch::Tensor place(int64_t rows) const;  // [T] int64, of each token of a spaced row

  torch::Tensor token_, sequences_;  // [T] int64: each token's number, and that of the sequences up to it
};

}  // namespace lethe

#include "experiments/models/mixers/parts/packed.hpp"

#include <vector>

namespace lethe {

using torch::Tensor;

Packed::Packed(const Tensor& cu_seqlens, int64_t tokens, int64_t longest) : cu_seqlens(cu_seqlens), longest(longest) {
  token_ = torch::arange(tokens, cu_seqlens.options());
  // The last sequence that begins at or before each token: empty ones have the same start.
  sequences_ = torch::bucketize(token_, cu_seqlens, /*out_int32=*/false, /*right=*/true);
  position = token_ - cu_seqlens.index_select(0, sequences_ - 1);
}

Tensor Packed::place(int64_t rows) const { return torch::add(token_, sequences_, rows); }

Tensor Packed::spaced(const Tensor& x, int64_t rows) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[1] += (cu_seqlens.size(0) - 1) * rows;
  return x.new_zeros(sizes).index_copy(1, place(rows), x);
}

Tensor Packed::unspaced(const Tensor& spaced, int64_t rows) const { return spaced.index_select(1, place(rows)); }

}  // namespace lethe

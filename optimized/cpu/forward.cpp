// The forward pass: online softmax over tiles of queries × chunks of keys. A task is one tile of one head, so memory is a tile's.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/residual.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kKeyColumns = 512;  // keys whose weights exist at one time

template <typename Scalar>
struct ForwardScratch {
  Buffer<Scalar> weights{kQueryRows * kKeyColumns};
  std::vector<Scalar> maximum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> sum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> rescale = std::vector<Scalar>(kQueryRows);
  TileBiases<Scalar> biases{kKeyColumns};
};

template <typename Scalar>
struct Forward {
  Sizes sizes;
  const at::Tensor &query, &key, &value;  // [B, H, T, D] in Scalar
  at::Tensor &values, &log_normalizer;    // [B, Hq, Tq, Dv], [B, Hq, Tq]
  const GatePrefix& prefix;
  const int32_t* boundary;  // [B, Hq, tiles]
  Scalar scale;

  void run_tile(int64_t head, int64_t tile, ForwardScratch<Scalar>& scratch) const {
    const int64_t row_begin = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row_begin);
    const int64_t key_head = head / sizes.group(), key_dim = sizes.key_dim, value_dim = sizes.value_dim;
    const Scalar* q = head_row<const Scalar>(query, head, row_begin);
    Scalar* o = head_row<Scalar>(values, head, row_begin);
    const double* sum = prefix.sum.data() + head * sizes.key_length;
    const int64_t* first = prefix.first.data() + head * sizes.key_length;
    std::fill_n(scratch.maximum.begin(), rows, -std::numeric_limits<Scalar>::infinity());
    std::fill_n(scratch.sum.begin(), rows, Scalar(0));

    // From the diagonal backwards: with a forget gate the largest logits come first, and rescaling is rare afterwards.
    const int64_t key_begin = boundary[head * sizes.tiles() + tile] * kKeyBlock;
    for (int64_t end = sizes.offset() + row_begin + rows; end > key_begin;) {
      const int64_t begin = std::max(key_begin, end - kKeyColumns), columns = end - begin;
      multiply(Transpose::kNo, Transpose::kYes, rows, columns, key_dim, Scalar(1), q, key_dim,
               head_row<const Scalar>(key, key_head, begin), key_dim, Scalar(0), scratch.weights.data(), columns);
      for (int64_t i = 0, frame; i < rows; i += frame) {
        frame = frame_rows(sum, sizes.offset() + row_begin + i, rows - i);
        scratch.biases.fill(sum, first, sizes.offset() + row_begin + i, frame, begin, columns);
        tile_kernels<Scalar>().softmax({scratch.biases.tile(frame, columns, scale),
                                        scratch.weights.data() + i * columns, columns, scratch.maximum.data() + i,
                                        scratch.sum.data() + i, scratch.rescale.data() + i});
      }
      for (int64_t i = 0; i < rows; ++i) {
        if (scratch.rescale[i] != Scalar(1)) scale_row(o + i * value_dim, scratch.rescale[i]);
      }
      multiply(Transpose::kNo, Transpose::kNo, rows, value_dim, columns, Scalar(1), scratch.weights.data(), columns,
               head_row<const Scalar>(value, key_head, begin), value_dim, Scalar(1), o, value_dim);
      end = begin;
    }

    Scalar* normalizer = static_cast<Scalar*>(log_normalizer.data_ptr()) + head * sizes.query_length + row_begin;
    for (int64_t i = 0; i < rows; ++i) {
      normalizer[i] = scratch.maximum[i] + std::log(scratch.sum[i]);
      scale_row(o + i * value_dim, Scalar(1) / scratch.sum[i]);
    }
  }

  void scale_row(Scalar* row, Scalar factor) const {
    for (int64_t d = 0; d < sizes.value_dim; ++d) row[d] *= factor;
  }

  void run() const {
    const int64_t tiles = sizes.tiles(), heads = sizes.all_heads();
    parallel_tasks(heads * tiles, [&](auto next) {
      ForwardScratch<Scalar> scratch;
      // The longest tiles first: the short ones fill the gaps at the end.
      while (const auto task = next()) run_tile(*task % heads, tiles - 1 - *task / heads, scratch);
    });
  }
};

// Causal pairs inside the blocks that were computed, [B, Hq].
at::Tensor count_pairs(const Sizes& sizes, const int32_t* boundary) {
  at::Tensor pairs = at::zeros({sizes.batch, sizes.query_heads}, at::kLong);
  for (int64_t head = 0; head < pairs.numel(); ++head) {
    int64_t& count = pairs.mutable_data_ptr<int64_t>()[head];
    for (int64_t row = 0; row < sizes.query_length; ++row) {
      count += sizes.offset() + row + 1 - boundary[head * sizes.tiles() + row / kQueryRows] * kKeyBlock;
    }
  }
  return pairs;
}

}  // namespace

AttentionOutputs forgetting_attention_forward(const AttentionInputs& in) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value;
  const double scale = in.scale;
  const Sizes sizes(query, key, value);
  const at::ScalarType dtype = accumulation_dtype(query.scalar_type());
  const at::Tensor q = by_head(query, dtype), k = by_head(key, dtype), v = by_head(value, dtype);
  const GatePrefix prefix = gate_prefix(in.log_forget);
  const at::Tensor boundary = pruning_boundary(sizes, prefix, q, k, scale, in.log_pruning_tolerance, in.logit_bound);
  const int32_t* first_blocks = boundary.const_data_ptr<int32_t>();
  at::Tensor values = at::zeros({sizes.batch, sizes.query_heads, sizes.query_length, sizes.value_dim}, q.options());
  at::Tensor log_normalizer = at::empty({sizes.batch, sizes.query_heads, sizes.query_length}, q.options());
  if (dtype == at::kDouble) {
    Forward<double>{sizes, q, k, v, values, log_normalizer, prefix, first_blocks, scale}.run();
  } else {
    Forward<float>{sizes, q, k, v, values, log_normalizer, prefix, first_blocks, static_cast<float>(scale)}.run();
  }
  const auto [stored, residual] = values_and_residual(values.transpose(1, 2), query.scalar_type(), in.keep_residual);
  return {stored, log_normalizer.transpose(1, 2).contiguous(), count_pairs(sizes, first_blocks), boundary, residual};
}

}  // namespace lethe::cpu

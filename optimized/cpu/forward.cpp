// The forward pass: online softmax over tiles of queries × chunks of keys. A task is one tile of one head, so memory is a tile's.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "optimized/cpu/gates.hpp"
#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/pruning.hpp"
#include "optimized/cpu/seen_product.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/residual.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kKeyColumns = 512;  // keys whose weights are held at one time

template <typename Scalar>
struct ForwardScratch {
  Buffer<Scalar> values;  // of a tile
  Buffer<Scalar> weights{kQueryRows * kKeyColumns};
  std::vector<Scalar> maximum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> sum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> rescale = std::vector<Scalar>(kQueryRows);
  TileBiases<Scalar> biases;

  explicit ForwardScratch(const Sizes& sizes)
      : values(kQueryRows * sizes.value_dim), biases(kKeyColumns, sizes.window) {}
};

template <typename Scalar>
struct Forward {
  Sizes sizes;
  HeadRows<const Scalar> query, key, value;
  HeadRows<Scalar> values;
  Scalar* log_normalizer;  // [B, Tq, Hq]
  const GatePrefix& prefix;
  const int32_t* boundary;  // [B, Hq, tiles]
  Scalar scale;

  // The sums of one tile, into scratch; with `finite_values`, a value that is NaN or ∞ reaches every row.
  void accumulate(int64_t head, int64_t tile, bool finite_values, ForwardScratch<Scalar>& scratch) const {
    const int64_t row_begin = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row_begin);
    const int64_t key_head = head / sizes.group(), value_dim = sizes.value_dim;
    Scalar *o = scratch.values.data(), *weights = scratch.weights.data();
    std::fill_n(o, rows * value_dim, Scalar(0));
    std::fill_n(scratch.maximum.begin(), rows, -std::numeric_limits<Scalar>::infinity());
    std::fill_n(scratch.sum.begin(), rows, Scalar(0));
    const HeadGates gates = prefix.head(head);

    // From the diagonal backwards: with a forget gate the largest logits come first, and rescaling is rare afterwards.
    const int64_t key_begin = boundary[head * sizes.tiles() + tile] * kKeyBlock;
    const int64_t first_position = sizes.offset() + row_begin, key_end = first_position + rows;
    for (int64_t end = key_end; end > key_begin;) {
      const int64_t begin = std::max(key_begin, end - kKeyColumns), columns = end - begin, stride = row_stride(columns);
      const int64_t diagonal = first_position - begin;
      for_each_seen_part(rows, columns, diagonal, [&](int64_t i, int64_t m, int64_t j, int64_t n) {
        multiply(Transpose::kNo, Transpose::kYes, m, n, sizes.key_dim, Scalar(1), query.at(head, row_begin + i),
                 query.stride(), key.at(key_head, begin + j), key.stride(), Scalar(0), weights + i * stride + j,
                 stride);
      });
      for (int64_t i = 0, frame; i < rows; i += frame) {
        frame = frame_rows(gates, first_position + i, rows - i);
        const int64_t seen = strip_columns(i, frame, columns, diagonal);
        scratch.biases.fill(gates, first_position + i, frame, begin, seen);
        tile_kernels<Scalar>().softmax({scratch.biases.tile(frame, seen, scale), weights + i * stride, stride,
                                        scratch.maximum.data() + i, scratch.sum.data() + i,
                                        scratch.rescale.data() + i});
      }
      for (int64_t i = 0; i < rows && end < key_end; ++i) {
        if (scratch.rescale[i] != Scalar(1)) scale_row(o + i * value_dim, scratch.rescale[i], o + i * value_dim);
      }
      for_each_seen_part(rows, columns, diagonal, [&](int64_t i, int64_t m, int64_t j, int64_t n) {
        add_seen_product(Transpose::kNo, m, value_dim, n, Scalar(1), weights + i * stride + j, stride,
                         value.at(key_head, begin + j), value.stride(), finite_values, o + i * value_dim, value_dim);
      });
      end = begin;
    }
  }

  void run_tile(int64_t head, int64_t tile, ForwardScratch<Scalar>& scratch) const {
    const int64_t row_begin = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row_begin);
    const Scalar* o = scratch.values.data();
    accumulate(head, tile, true, scratch);
    // The sums are fewer than the values that they add up.
    if (!tile_kernels<Scalar>().all_finite(rows, sizes.value_dim, o, sizes.value_dim))
      accumulate(head, tile, false, scratch);
    const int64_t batch = head / sizes.query_heads, heads = sizes.query_heads;
    Scalar* normalizer = log_normalizer + (batch * sizes.query_length + row_begin) * heads + head % heads;
    for (int64_t i = 0; i < rows; ++i) {
      normalizer[i * heads] = scratch.maximum[i] + std::log(scratch.sum[i]);
      scale_row(o + i * sizes.value_dim, Scalar(1) / scratch.sum[i], values.at(head, row_begin + i));
    }
  }

  void scale_row(const Scalar* row, Scalar factor, Scalar* to) const {
    for (int64_t d = 0; d < sizes.value_dim; ++d) to[d] = factor * row[d];
  }

  void run() const {
    const int64_t tiles = sizes.tiles(), heads = sizes.all_heads();
    parallel_tasks(heads * tiles, [&](auto next) {
      ForwardScratch<Scalar> scratch(sizes);
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
    for (int64_t tile = 0; tile < sizes.tiles(); ++tile) {
      const int64_t row = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row);
      const int64_t first_key = boundary[head * sizes.tiles() + tile] * kKeyBlock, position = sizes.offset() + row;
      count += rows * (position + 1 - first_key) + rows * (rows - 1) / 2;
    }
  }
  return pairs;
}

template <typename Scalar>
AttentionOutputs run_forward(const AttentionInputs& in) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value;
  const Sizes sizes(in);
  const at::ScalarType dtype = at::CppTypeToScalarType<Scalar>::value;
  const at::Tensor q = with_readable_rows(query, dtype);
  const at::Tensor all_keys = in.log_pruning_tolerance && !in.logit_bound ? with_readable_rows(key, dtype) : key;
  const Pruning pruning = pruning_of(sizes, q, all_keys, in);
  const GatePrefix prefix(in.log_forget, first_visited(sizes, in.log_forget, pruning));
  const at::Tensor boundary = pruning_boundary(sizes, in.log_forget, prefix, pruning);
  const int32_t* first_blocks = boundary.const_data_ptr<int32_t>();
  const int64_t first = prefix.first_visited();
  const bool copies = copy_pays(sizes, first, first_blocks);
  const auto visited = [&](const at::Tensor& tensor) {
    return rows_of(tensor.narrow(1, first, sizes.key_length - first), dtype, copies);
  };
  const at::Tensor k = visited(all_keys), v = visited(value);
  const at::Tensor sums = at::empty({sizes.batch, sizes.query_length, sizes.query_heads, sizes.value_dim}, q.options());
  const at::Tensor log_normalizer = at::empty({sizes.batch, sizes.query_length, sizes.query_heads}, q.options());
  Forward<Scalar>{sizes,
                  HeadRows<const Scalar>(q),
                  HeadRows<const Scalar>(k, first),
                  HeadRows<const Scalar>(v, first),
                  HeadRows<Scalar>(sums),
                  static_cast<Scalar*>(log_normalizer.data_ptr()),
                  prefix,
                  first_blocks,
                  static_cast<Scalar>(in.scale)}
      .run();
  const auto [values, residual] = values_and_residual(sums, query.scalar_type(), in.keep_residual);
  return {values, log_normalizer, count_pairs(sizes, first_blocks), boundary, residual};
}

}  // namespace

AttentionOutputs forgetting_attention_forward(const AttentionInputs& in) {
  return in.query.scalar_type() == at::kDouble ? run_forward<double>(in) : run_forward<float>(in);
}

}  // namespace lethe::cpu

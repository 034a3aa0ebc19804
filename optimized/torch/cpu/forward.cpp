// The forward pass: online softmax over tiles of queries × chunks of keys. A task is one tile of one head, so memory is a tile's.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "optimized/torch/cpu/gemm.hpp"
#include "optimized/torch/cpu/problem.hpp"
#include "optimized/torch/cpu/tile_kernels.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kKeyColumns = 512;  // keys whose weights exist at one time

template <typename Scalar>
struct Scratch {
  std::vector<Scalar> weights = std::vector<Scalar>(kQueryRows * kKeyColumns);
  std::vector<Scalar> maximum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> sum = std::vector<Scalar>(kQueryRows);
  std::vector<Scalar> rescale = std::vector<Scalar>(kQueryRows);
  TileBiases<Scalar> biases{kKeyColumns};
};

template <typename Scalar>
struct Forward {
  Sizes sizes;
  const at::Tensor &query, &key, &value;  // [B, T, H, D] in Scalar
  at::Tensor &values, &log_normalizer;    // [B, Tq, Hq, Dv], [B, Tq, Hq]
  const GatePrefix& prefix;
  const at::Tensor& boundary;
  Scalar scale;

  void run_tile(int64_t head, int64_t tile, Scratch<Scalar>& scratch) const {
    const int64_t batch = head / sizes.query_heads, query_head = head % sizes.query_heads;
    const int64_t row_begin = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row_begin);
    const auto q = head_rows<const Scalar>(query, batch, query_head), k = head_rows<const Scalar>(key, batch, query_head / sizes.group());
    const auto v = head_rows<const Scalar>(value, batch, query_head / sizes.group());
    const auto o = head_rows<Scalar>(values, batch, query_head);
    const double* sum = prefix.sum.data() + head * sizes.key_length;
    const int64_t* first = prefix.first.data() + head * sizes.key_length;
    std::fill_n(scratch.maximum.begin(), rows, -std::numeric_limits<Scalar>::infinity());
    std::fill_n(scratch.sum.begin(), rows, Scalar(0));

    // From the diagonal backwards: with a forget gate the largest logits come first, and rescaling is rare afterwards.
    const int64_t key_begin = boundary.const_data_ptr<int32_t>()[head * sizes.tiles() + tile] * kKeyBlock;
    for (int64_t end = sizes.offset() + row_begin + rows; end > key_begin;) {
      const int64_t begin = std::max(key_begin, end - kKeyColumns), columns = end - begin;
      multiply(Transpose::kNo, Transpose::kYes, rows, columns, sizes.key_dim, Scalar(1), q.at(row_begin), q.stride,
               k.at(begin), k.stride, Scalar(0), scratch.weights.data(), columns);
      for (int64_t i = 0; i < rows; i += kFrameRows) {
        const int64_t frame = std::min(kFrameRows, rows - i);
        scratch.biases.fill(sum, first, sizes.offset() + row_begin + i, frame, begin, columns);
        tile_kernels<Scalar>().softmax({scratch.biases.tile(frame, columns, scale), scratch.weights.data() + i * columns,
                                        columns, scratch.maximum.data() + i, scratch.sum.data() + i, scratch.rescale.data() + i});
      }
      for (int64_t i = 0; i < rows; ++i) {
        if (scratch.rescale[i] == Scalar(1)) continue;
        Scalar* row = o.at(row_begin + i);
        for (int64_t d = 0; d < sizes.value_dim; ++d) row[d] *= scratch.rescale[i];
      }
      multiply(Transpose::kNo, Transpose::kNo, rows, sizes.value_dim, columns, Scalar(1), scratch.weights.data(), columns,
               v.at(begin), v.stride, Scalar(1), o.at(row_begin), o.stride);
      end = begin;
    }

    const auto normalizer = static_cast<Scalar*>(log_normalizer.data_ptr()) + (batch * sizes.query_length + row_begin) * sizes.query_heads + query_head;
    for (int64_t i = 0; i < rows; ++i) {
      normalizer[i * sizes.query_heads] = scratch.maximum[i] + std::log(scratch.sum[i]);
      const Scalar inverse = Scalar(1) / scratch.sum[i];
      Scalar* row = o.at(row_begin + i);
      for (int64_t d = 0; d < sizes.value_dim; ++d) row[d] *= inverse;
    }
  }

  void run() const {
    const int64_t tiles = sizes.tiles(), heads = sizes.batch * sizes.query_heads;
    parallel_tasks(heads * tiles, [&](auto next) {
      Scratch<Scalar> scratch;
      // The longest tiles first: the short ones fill the gaps at the end.
      while (const auto task = next()) run_tile(*task % heads, tiles - 1 - *task / heads, scratch);
    });
  }
};

// Causal pairs inside the blocks that were computed, [B, Hq].
at::Tensor count_pairs(const Sizes& sizes, const at::Tensor& boundary) {
  at::Tensor pairs = at::zeros({sizes.batch, sizes.query_heads}, at::kLong);
  for (int64_t head = 0; head < pairs.numel(); ++head) {
    int64_t& count = pairs.mutable_data_ptr<int64_t>()[head];
    for (int64_t row = 0; row < sizes.query_length; ++row) {
      count += sizes.offset() + row + 1 - boundary.const_data_ptr<int32_t>()[head * sizes.tiles() + row / kQueryRows] * kKeyBlock;
    }
  }
  return pairs;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& log_forget, double scale,
    std::optional<double> log_pruning_tolerance, const std::optional<at::Tensor>& logit_bound) {
  check_forward_arguments(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound);
  const Sizes sizes(query, key, value);
  const at::ScalarType dtype = accumulation_dtype(query.scalar_type());
  const at::Tensor q = readable(query, dtype), k = readable(key, dtype), v = readable(value, dtype);
  const GatePrefix prefix = gate_prefix(log_forget);
  const at::Tensor boundary = pruning_boundary(sizes, prefix, q, k, scale, log_pruning_tolerance, logit_bound);
  at::Tensor values = at::zeros({sizes.batch, sizes.query_length, sizes.query_heads, sizes.value_dim}, q.options());
  at::Tensor log_normalizer = at::empty({sizes.batch, sizes.query_length, sizes.query_heads}, log_forget.options());
  if (dtype == at::kDouble) {
    Forward<double>{sizes, q, k, v, values, log_normalizer, prefix, boundary, scale}.run();
  } else {
    Forward<float>{sizes, q, k, v, values, log_normalizer, prefix, boundary, static_cast<float>(scale)}.run();
  }
  return {values.to(query.scalar_type()), log_normalizer, count_pairs(sizes, boundary), boundary};
}

}  // namespace

TORCH_LIBRARY_IMPL(lethe, CPU, library) { library.impl("_forgetting_attention_forward", forward); }

}  // namespace lethe::cpu

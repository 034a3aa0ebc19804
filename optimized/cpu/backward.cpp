// The backward pass. A tile of queries × keys adds to the gradients of its queries and of its keys, so two tasks may run at the same
// time only where they share neither. Hence phases: in phase p the segment of queries m meets the segment of keys that lies p before
// its diagonal. Distinct m, distinct keys: no locks, no copies of gradients for each thread, and one order of summation whoever runs.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/residual.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kSegment = 256;  // positions of a segment of queries or keys
static_assert(kSegment % kQueryRows == 0 && kSegment % kKeyBlock == 0);

template <typename Scalar>
struct BackwardScratch {
  Buffer<Scalar> weights{kQueryRows * kSegment};
  Buffer<Scalar> gradients{kQueryRows * kSegment};
  TileBiases<Scalar> biases{kSegment};
};

struct Task {
  int64_t key_head, query_segment, key_segment;
};

template <typename Scalar>
struct Backward {
  Sizes sizes;
  const at::Tensor &grad_values, &query, &key, &value;  // [B, H, T, D] in Scalar
  const at::Tensor& log_normalizer;                     // [B, Hq, Tq] contiguous
  at::Tensor &grad_query, &grad_key, &grad_value;       // [B, H, T, D] in Scalar
  const GatePrefix& prefix;
  const int32_t* boundary;  // [B, Hq, tiles]
  Scalar scale;
  std::vector<Scalar>& delta;                // [B, Hq, Tq], Σ_d ∂o · o
  std::vector<double>&row_sum, &column_sum;  // [B, Hq, Tq], [B, Hq, Tk]: sums of dS

  // The part of a segment of keys that a tile of queries visits.
  struct Block {
    int64_t head, key_head, row, rows, column, columns;
  };

  Block block(int64_t head, int64_t tile, int64_t key_segment) const {
    const int64_t row = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row);
    const int64_t begin = std::max(key_segment * kSegment, boundary[head * sizes.tiles() + tile] * kKeyBlock);
    const int64_t end = std::min((key_segment + 1) * kSegment, sizes.offset() + row + rows);
    return {head, head / sizes.group(), row, rows, begin, end - begin};
  }

  // P and dS of one block, into scratch; adds the sums of dS to those of its rows and columns.
  void recompute(const Block& b, const Scalar* delta_of_rows, double* sums_of_rows, double* sums_of_columns,
                 BackwardScratch<Scalar>& scratch) const {
    const Scalar* normalizer = log_normalizer.const_data_ptr<Scalar>() + b.head * sizes.query_length + b.row;
    multiply(Transpose::kNo, Transpose::kYes, b.rows, b.columns, sizes.key_dim, Scalar(1),
             head_row<const Scalar>(query, b.head, b.row), sizes.key_dim,
             head_row<const Scalar>(key, b.key_head, b.column), sizes.key_dim, Scalar(0), scratch.weights.data(),
             b.columns);
    multiply(Transpose::kNo, Transpose::kYes, b.rows, b.columns, sizes.value_dim, Scalar(1),
             head_row<const Scalar>(grad_values, b.head, b.row), sizes.value_dim,
             head_row<const Scalar>(value, b.key_head, b.column), sizes.value_dim, Scalar(0), scratch.gradients.data(),
             b.columns);
    const double* sum = prefix.sum.data() + b.head * sizes.key_length;
    const int64_t* first = prefix.first.data() + b.head * sizes.key_length;
    for (int64_t i = 0, frame; i < b.rows; i += frame) {
      frame = frame_rows(sum, sizes.offset() + b.row + i, b.rows - i);
      scratch.biases.fill(sum, first, sizes.offset() + b.row + i, frame, b.column, b.columns);
      tile_kernels<Scalar>().gradient({scratch.biases.tile(frame, b.columns, scale),
                                       scratch.weights.data() + i * b.columns, scratch.gradients.data() + i * b.columns,
                                       b.columns, normalizer + i, delta_of_rows + i, sums_of_rows + i,
                                       sums_of_columns});
    }
  }

  void run_block(const Block& b, BackwardScratch<Scalar>& scratch) const {
    const int64_t row_index = b.head * sizes.query_length + b.row, key_dim = sizes.key_dim, value_dim = sizes.value_dim;
    recompute(b, delta.data() + row_index, row_sum.data() + row_index,
              column_sum.data() + b.head * sizes.key_length + b.column, scratch);
    multiply(Transpose::kYes, Transpose::kNo, b.columns, value_dim, b.rows, Scalar(1), scratch.weights.data(),
             b.columns, head_row<const Scalar>(grad_values, b.head, b.row), value_dim, Scalar(1),
             head_row<Scalar>(grad_value, b.key_head, b.column), value_dim);
    multiply(Transpose::kYes, Transpose::kNo, b.columns, key_dim, b.rows, scale, scratch.gradients.data(), b.columns,
             head_row<const Scalar>(query, b.head, b.row), key_dim, Scalar(1),
             head_row<Scalar>(grad_key, b.key_head, b.column), key_dim);
    multiply(Transpose::kNo, Transpose::kNo, b.rows, key_dim, b.columns, scale, scratch.gradients.data(), b.columns,
             head_row<const Scalar>(key, b.key_head, b.column), key_dim, Scalar(1),
             head_row<Scalar>(grad_query, b.head, b.row), key_dim);
  }

  void run_task(const Task& task, BackwardScratch<Scalar>& scratch) const {
    constexpr int64_t tiles_a_segment = kSegment / kQueryRows;
    const int64_t tile_begin = task.query_segment * tiles_a_segment;
    const int64_t tile_end = std::min(tile_begin + tiles_a_segment, sizes.tiles());
    for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
      for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const Block b = block(head, tile, task.key_segment);
        if (b.columns > 0) run_block(b, scratch);
      }
    }
  }

  // The first key segment that any query head of the group visits from this query segment: its first tile's, for boundaries ascend.
  int64_t first_segment(int64_t key_head, int64_t query_segment) const {
    int64_t first = sizes.key_length;
    for (int64_t head = key_head * sizes.group(); head < (key_head + 1) * sizes.group(); ++head) {
      const int64_t first_block = boundary[head * sizes.tiles() + query_segment * (kSegment / kQueryRows)];
      first = std::min(first, first_block * kKeyBlock / kSegment);
    }
    return first;
  }

  void run() const {
    const int64_t query_segments = (sizes.query_length + kSegment - 1) / kSegment;
    const int64_t key_segments = (sizes.key_length + kSegment - 1) / kSegment;
    // query segment m sees keys up to segment m + shift
    const int64_t shift = (sizes.offset() + kSegment - 1) / kSegment;
    for (int64_t phase = 0; phase < query_segments + shift; ++phase) {
      std::vector<Task> tasks;
      for (int64_t m = query_segments - 1; m >= 0; --m) {
        const int64_t n = m + shift - phase;
        if (n < 0 || n >= key_segments) continue;
        for (int64_t key_head = 0; key_head < sizes.batch * sizes.heads; ++key_head) {
          if (n >= first_segment(key_head, m)) tasks.push_back({key_head, m, n});
        }
      }
      parallel_tasks(static_cast<int64_t>(tasks.size()), [&](auto next) {
        BackwardScratch<Scalar> scratch;
        while (const auto task = next()) run_task(tasks[*task], scratch);
      });
    }
  }
};

// ∂loss/∂log f_l = Σ_{i ≥ l} ∂loss/∂c_i with ∂loss/∂c_t = (sum of dS over row t) − (sum over column t). The row sums are zero in exact
// arithmetic but not in this one, where they cancel the columns' rounding; both come from the same dS, and are added in float64.
// No pair reaches across position 0 or across a cut, so there the sum is zero, and is made so.
template <typename Scalar>
at::Tensor gate_gradient(const Sizes& sizes, const GatePrefix& prefix, const std::vector<double>& row_sum,
                         const std::vector<double>& column_sum, const at::Tensor& log_forget) {
  at::Tensor gradient = at::empty({sizes.batch, sizes.query_heads, sizes.key_length}, log_forget.options());
  Scalar* data = gradient.mutable_data_ptr<Scalar>();
  at::parallel_for(0, sizes.all_heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t keys = head * sizes.key_length, queries = head * sizes.query_length - sizes.offset();
      double sum = 0.0;
      for (int64_t t = sizes.key_length - 1; t >= 0; --t) {
        sum -= column_sum[keys + t];
        if (t >= sizes.offset()) sum += row_sum[queries + t];
        if (t == prefix.first[keys + t]) sum = 0.0;
        data[keys + t] = static_cast<Scalar>(sum);
      }
    }
  });
  return gradient.transpose(1, 2).contiguous();
}

// delta from the values, Σ_d ∂o · o.
template <typename Scalar>
void row_products(const Sizes& sizes, const at::Tensor& grad_values, const at::Tensor& values,
                  std::vector<Scalar>& delta) {
  at::parallel_for(0, static_cast<int64_t>(delta.size()), kSegment, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Scalar* o = values.const_data_ptr<Scalar>() + row * sizes.value_dim;
      const Scalar* d_o = grad_values.const_data_ptr<Scalar>() + row * sizes.value_dim;
      Scalar sum = 0;
      for (int64_t d = 0; d < sizes.value_dim; ++d) sum += o[d] * d_o[d];
      delta[row] = sum;
    }
  });
}

template <typename Scalar>
AttentionGradients run_backward(const at::Tensor& grad_values, const AttentionInputs& in,
                                const AttentionOutputs& outputs) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value, &log_forget = in.log_forget;
  const Sizes sizes(query, key, value);
  const at::ScalarType stored = query.scalar_type(), dtype = accumulation_dtype(stored);
  const at::Tensor d_o = by_head(grad_values, dtype), q = by_head(query, dtype), k = by_head(key, dtype);
  const at::Tensor v = by_head(value, dtype), normalizer = outputs.log_normalizer.transpose(1, 2).contiguous();
  at::Tensor d_q = at::zeros_like(q), d_k = at::zeros_like(k), d_v = at::zeros_like(v);
  const at::Tensor first_blocks = outputs.boundary.contiguous();
  const GatePrefix prefix = gate_prefix(log_forget);
  std::vector<Scalar> delta(sizes.all_heads() * sizes.query_length);
  std::vector<double> row_sum(delta.size()), column_sum(sizes.all_heads() * sizes.key_length);
  const Backward<Scalar> work{sizes,
                              d_o,
                              q,
                              k,
                              v,
                              normalizer,
                              d_q,
                              d_k,
                              d_v,
                              prefix,
                              first_blocks.const_data_ptr<int32_t>(),
                              static_cast<Scalar>(in.scale),
                              delta,
                              row_sum,
                              column_sum};
  row_products<Scalar>(sizes, d_o, by_head(sums_of(outputs.values, outputs.residual), dtype), delta);
  work.run();
  return {by_position(d_q, stored), by_position(d_k, stored), by_position(d_v, stored),
          gate_gradient<Scalar>(sizes, prefix, row_sum, column_sum, log_forget)};
}

}  // namespace

AttentionGradients forgetting_attention_backward(const at::Tensor& grad_values, const AttentionInputs& in,
                                                 const AttentionOutputs& outputs) {
  const auto run = in.query.scalar_type() == at::kDouble ? run_backward<double> : run_backward<float>;
  return run(grad_values, in, outputs);
}

}  // namespace lethe::cpu

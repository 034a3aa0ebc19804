// The backward pass. A tile of queries × keys adds to the gradients of its queries and of its keys, so two tasks may run at the same
// time only where they share neither. Hence phases: in phase p the segment of queries m meets the segment of keys that lies p before
// its diagonal. Distinct m, distinct keys: no locks, no copies of gradients for each thread, and one order of summation whoever runs.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "optimized/torch/cpu/gemm.hpp"
#include "optimized/torch/cpu/problem.hpp"
#include "optimized/torch/cpu/tile_kernels.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kSegment = 256;  // positions of a segment of queries or keys
static_assert(kSegment % kQueryRows == 0 && kSegment % kKeyBlock == 0);

template <typename Scalar>
struct Scratch {
  std::vector<Scalar> weights = std::vector<Scalar>(kQueryRows * kSegment);
  std::vector<Scalar> gradients = std::vector<Scalar>(kQueryRows * kSegment);
  TileBiases<Scalar> biases{kSegment};
};

struct Task {
  int64_t batch, head, query_segment, key_segment;
};

template <typename Scalar>
struct Backward {
  Sizes sizes;
  const at::Tensor &grad_values, &query, &key, &value;  // [B, T, H, D] in Scalar
  const at::Tensor& log_normalizer;                     // [B, Hq, Tq] contiguous
  at::Tensor &grad_query, &grad_key, &grad_value;       // [B, T, H, D] in Scalar
  const GatePrefix& prefix;
  const int32_t* boundary;                      // [B, Hq, tiles]
  Scalar scale;
  std::vector<Scalar>& delta;                   // [B, Hq, Tq], Σ_d ∂o · o = Σ_j P dP
  std::vector<double>&row_sum, &column_sum;     // [B, Hq, Tq], [B, Hq, Tk]: sums of dS

  // The part of a segment of keys that a tile of queries visits.
  struct Block {
    int64_t batch, query_head, key_head, head, row, rows, column, columns;
  };

  Block block(int64_t batch, int64_t query_head, int64_t tile, int64_t key_segment) const {
    const int64_t head = batch * sizes.query_heads + query_head, row = tile * kQueryRows;
    const int64_t rows = std::min(kQueryRows, sizes.query_length - row);
    const int64_t begin = std::max(key_segment * kSegment, boundary[head * sizes.tiles() + tile] * kKeyBlock);
    const int64_t end = std::min((key_segment + 1) * kSegment, sizes.offset() + row + rows);
    return {batch, query_head, query_head / sizes.group(), head, row, rows, begin, end - begin};
  }

  // P and dS of one block, into scratch; adds the sums of dS to those of its rows and columns.
  void recompute(const Block& b, const Scalar* delta_of_rows, double* sums_of_rows, double* sums_of_columns,
                 Scratch<Scalar>& scratch) const {
    const auto q = head_rows<const Scalar>(query, b.batch, b.query_head), k = head_rows<const Scalar>(key, b.batch, b.key_head);
    const auto v = head_rows<const Scalar>(value, b.batch, b.key_head);
    const auto d_o = head_rows<const Scalar>(grad_values, b.batch, b.query_head);
    const Scalar* normalizer = log_normalizer.const_data_ptr<Scalar>() + b.head * sizes.query_length + b.row;
    multiply(Transpose::kNo, Transpose::kYes, b.rows, b.columns, sizes.key_dim, Scalar(1), q.at(b.row), q.stride,
             k.at(b.column), k.stride, Scalar(0), scratch.weights.data(), b.columns);
    multiply(Transpose::kNo, Transpose::kYes, b.rows, b.columns, sizes.value_dim, Scalar(1), d_o.at(b.row), d_o.stride,
             v.at(b.column), v.stride, Scalar(0), scratch.gradients.data(), b.columns);
    for (int64_t i = 0; i < b.rows; i += kFrameRows) {
      const int64_t frame = std::min(kFrameRows, b.rows - i);
      scratch.biases.fill(prefix.sum.data() + b.head * sizes.key_length, prefix.first.data() + b.head * sizes.key_length,
                          sizes.offset() + b.row + i, frame, b.column, b.columns);
      tile_kernels<Scalar>().gradient({scratch.biases.tile(frame, b.columns, scale), scratch.weights.data() + i * b.columns,
                                       scratch.gradients.data() + i * b.columns, b.columns, normalizer + i, delta_of_rows + i,
                                       sums_of_rows + i, sums_of_columns});
    }
  }

  void run_block(const Block& b, Scratch<Scalar>& scratch) const {
    const int64_t row_index = b.head * sizes.query_length + b.row;
    recompute(b, delta.data() + row_index, row_sum.data() + row_index,
              column_sum.data() + b.head * sizes.key_length + b.column, scratch);
    const auto q = head_rows<const Scalar>(query, b.batch, b.query_head), k = head_rows<const Scalar>(key, b.batch, b.key_head);
    const auto d_o = head_rows<const Scalar>(grad_values, b.batch, b.query_head);
    const auto d_q = head_rows<Scalar>(grad_query, b.batch, b.query_head), d_k = head_rows<Scalar>(grad_key, b.batch, b.key_head);
    const auto d_v = head_rows<Scalar>(grad_value, b.batch, b.key_head);
    multiply(Transpose::kYes, Transpose::kNo, b.columns, sizes.value_dim, b.rows, Scalar(1), scratch.weights.data(), b.columns,
             d_o.at(b.row), d_o.stride, Scalar(1), d_v.at(b.column), d_v.stride);
    multiply(Transpose::kYes, Transpose::kNo, b.columns, sizes.key_dim, b.rows, scale, scratch.gradients.data(), b.columns,
             q.at(b.row), q.stride, Scalar(1), d_k.at(b.column), d_k.stride);
    multiply(Transpose::kNo, Transpose::kNo, b.rows, sizes.key_dim, b.columns, scale, scratch.gradients.data(), b.columns,
             k.at(b.column), k.stride, Scalar(1), d_q.at(b.row), d_q.stride);
  }

  // delta from the weights themselves, for values that were stored in fewer bits than they were summed in: where a row's weight is
  // nearly all on one key, P (dP − delta) is a small difference of large numbers, and a rounded value would be all that is left.
  void recompute_delta() const {
    const int64_t tiles = sizes.tiles(), heads = sizes.batch * sizes.query_heads;
    parallel_tasks(heads * tiles, [&](auto next) {
      Scratch<Scalar> scratch;
      const std::vector<Scalar> zeros(kQueryRows);
      std::vector<double> unused(kSegment);
      while (const auto task = next()) {
        const int64_t head = *task % heads, tile = *task / heads;
        std::vector<double> sums(kQueryRows);
        for (int64_t segment = 0; segment * kSegment < sizes.key_length; ++segment) {
          const Block b = block(head / sizes.query_heads, head % sizes.query_heads, tile, segment);
          if (b.columns > 0) recompute(b, zeros.data(), sums.data(), unused.data(), scratch);
        }
        const int64_t row = tile * kQueryRows;
        std::copy_n(sums.begin(), std::min(kQueryRows, sizes.query_length - row), delta.begin() + head * sizes.query_length + row);
      }
    });
  }

  void run_task(const Task& task, Scratch<Scalar>& scratch) const {
    constexpr int64_t tiles_a_segment = kSegment / kQueryRows;
    const int64_t tile_begin = task.query_segment * tiles_a_segment;
    const int64_t tile_end = std::min(tile_begin + tiles_a_segment, sizes.tiles());
    for (int64_t query_head = task.head * sizes.group(); query_head < (task.head + 1) * sizes.group(); ++query_head) {
      for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const Block b = block(task.batch, query_head, tile, task.key_segment);
        if (b.columns > 0) run_block(b, scratch);
      }
    }
  }

  // The first key segment that any query head of the group visits from this query segment.
  int64_t first_segment(int64_t batch, int64_t head, int64_t query_segment) const {
    int64_t first = sizes.key_length;
    for (int64_t query_head = head * sizes.group(); query_head < (head + 1) * sizes.group(); ++query_head) {
      const int64_t tile = query_segment * (kSegment / kQueryRows);  // the boundary never falls with the tile
      first = std::min(first, boundary[(batch * sizes.query_heads + query_head) * sizes.tiles() + tile] * kKeyBlock / kSegment);
    }
    return first;
  }

  void run() const {
    const int64_t query_segments = (sizes.query_length + kSegment - 1) / kSegment;
    const int64_t key_segments = (sizes.key_length + kSegment - 1) / kSegment;
    const int64_t shift = (sizes.offset() + kSegment - 1) / kSegment;  // query segment m sees keys up to segment m + shift
    for (int64_t phase = 0; phase < query_segments + shift; ++phase) {
      std::vector<Task> tasks;
      for (int64_t m = query_segments - 1; m >= 0; --m) {
        const int64_t n = m + shift - phase;
        if (n < 0 || n >= key_segments) continue;
        for (int64_t batch = 0; batch < sizes.batch; ++batch) {
          for (int64_t head = 0; head < sizes.heads; ++head) {
            if (n >= first_segment(batch, head, m)) tasks.push_back({batch, head, m, n});
          }
        }
      }
      parallel_tasks(static_cast<int64_t>(tasks.size()), [&](auto next) {
        Scratch<Scalar> scratch;
        while (const auto task = next()) run_task(tasks[*task], scratch);
      });
    }
  }
};

// ∂loss/∂log f_l = Σ_{i ≥ l} ∂loss/∂c_i with ∂loss/∂c_t = (sum of dS over row t) − (sum over column t). The row sums are zero in exact
// arithmetic but not in this one, where they cancel the columns' rounding; both come from the same dS, and are added in float64.
template <typename Scalar>
at::Tensor gate_gradient(const Sizes& sizes, const std::vector<double>& row_sum, const std::vector<double>& column_sum,
                         const at::Tensor& log_forget) {
  at::Tensor gradient = at::empty({sizes.batch, sizes.key_length, sizes.query_heads}, log_forget.options());
  Scalar* data = gradient.mutable_data_ptr<Scalar>();
  at::parallel_for(0, sizes.batch * sizes.query_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      Scalar* out = data + head / sizes.query_heads * sizes.key_length * sizes.query_heads + head % sizes.query_heads;
      double sum = 0.0;
      for (int64_t t = sizes.key_length - 1; t >= 0; --t) {
        sum -= column_sum[head * sizes.key_length + t];
        if (t >= sizes.offset()) sum += row_sum[head * sizes.query_length + t - sizes.offset()];
        out[t * sizes.query_heads] = static_cast<Scalar>(sum);
      }
    }
  });
  return gradient;
}

// delta from the values, Σ_d ∂o · o.
template <typename Scalar>
void row_products(const Sizes& sizes, const at::Tensor& grad_values, const at::Tensor& values, std::vector<Scalar>& delta) {
  at::parallel_for(0, sizes.batch * sizes.query_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const auto o = head_rows<const Scalar>(values, head / sizes.query_heads, head % sizes.query_heads);
      const auto d_o = head_rows<const Scalar>(grad_values, head / sizes.query_heads, head % sizes.query_heads);
      for (int64_t i = 0; i < sizes.query_length; ++i) {
        Scalar sum = 0;
        for (int64_t d = 0; d < sizes.value_dim; ++d) sum += o.at(i)[d] * d_o.at(i)[d];
        delta[head * sizes.query_length + i] = sum;
      }
    }
  });
}

template <typename Scalar>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> run_backward(
    const at::Tensor& grad_values, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& log_forget, const at::Tensor& values, const at::Tensor& log_normalizer, const at::Tensor& boundary,
    double scale) {
  const Sizes sizes(query, key, value);
  const at::ScalarType stored = query.scalar_type(), dtype = accumulation_dtype(stored);
  const at::Tensor d_o = readable(grad_values, dtype), q = readable(query, dtype), k = readable(key, dtype);
  const at::Tensor v = readable(value, dtype), normalizer = log_normalizer.transpose(1, 2).contiguous();
  at::Tensor d_q = at::zeros(query.sizes(), q.options()), d_k = at::zeros(key.sizes(), q.options());
  at::Tensor d_v = at::zeros(value.sizes(), q.options());
  const at::Tensor first_blocks = boundary.contiguous();
  const GatePrefix prefix = gate_prefix(log_forget);
  std::vector<Scalar> delta(sizes.batch * sizes.query_heads * sizes.query_length);
  std::vector<double> row_sum(delta.size()), column_sum(sizes.batch * sizes.query_heads * sizes.key_length);
  const Backward<Scalar> work{sizes, d_o, q, k, v, normalizer, d_q, d_k, d_v, prefix, first_blocks.const_data_ptr<int32_t>(),
                              static_cast<Scalar>(scale), delta, row_sum, column_sum};
  if (stored == dtype) {
    row_products<Scalar>(sizes, d_o, readable(values, dtype), delta);
  } else {
    work.recompute_delta();
  }
  work.run();
  return {d_q.to(stored), d_k.to(stored), d_v.to(stored), gate_gradient<Scalar>(sizes, row_sum, column_sum, log_forget)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad_values, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& log_forget, const at::Tensor& values, const at::Tensor& log_normalizer, const at::Tensor& boundary,
    double scale) {
  check_backward_arguments(grad_values, query, key, value, log_forget, values, log_normalizer, boundary, scale);
  const auto run = query.scalar_type() == at::kDouble ? run_backward<double> : run_backward<float>;
  return run(grad_values, query, key, value, log_forget, values, log_normalizer, boundary, scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(lethe, CPU, library) { library.impl("_forgetting_attention_backward", backward); }

}  // namespace lethe::cpu

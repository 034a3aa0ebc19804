// The backward pass. A tile of queries × keys adds to the gradients of its queries and of its keys, so two tasks may run at the same time only where
// they share neither. Hence phases: in phase p the segment of queries m meets the segment of keys p before its diagonal. Distinct m, distinct keys:
// no locks, no copies of gradients for each thread, and one order of summation for every assignment of tasks to threads.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "optimized/cpu/gates.hpp"
#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/seen_product.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/residual.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kSegment = 256;  // positions of a segment of queries or keys
static_assert(kSegment % kQueryRows == 0 && kSegment % kKeyBlock == 0);

// The log-normaliser of a row that takes no part in the backward pass.
template <typename Scalar>
constexpr Scalar kNothingSeen = std::numeric_limits<Scalar>::infinity();

template <typename Scalar>
struct BackwardScratch {
  Buffer<Scalar> weights{kQueryRows * kSegment};
  Buffer<Scalar> gradients{kQueryRows * kSegment};
  TileBiases<Scalar> biases;
  explicit BackwardScratch(const Sizes& sizes) : biases(kSegment, sizes.window) {}
};

struct Task {
  int64_t key_head, query_segment, key_segment;
};

template <typename Scalar>
struct Backward {
  Sizes sizes;
  HeadRows<const Scalar> grad_values, query, key, value;
  HeadRows<Scalar> grad_query, grad_key, grad_value;
  const GatePrefix& prefix;
  const int32_t* boundary;  // [B, Hq, tiles]
  Scalar scale;
  bool finite;                                       // all inputs are
  const std::vector<Scalar>&delta, &log_normalizer;  // [B, Hq, Tq], see row_statistics
  std::vector<double>&row_sum, &column_sum;          // [B, Hq, Tq], [B, Hq, Tk]: sums of dS
  bool sums_alone = false;                           // these, and no gradients

  // The part of a segment of keys that a tile of queries visits.
  struct Block {
    int64_t head, key_head, row, rows, column, columns;
    int64_t stride() const { return row_stride(columns); }  // of the scratch memory
  };

  // The column of the first row's own position.
  int64_t diagonal(const Block& b) const { return sizes.offset() + b.row - b.column; }

  Block block(int64_t head, int64_t tile, int64_t key_segment) const {
    const int64_t row = tile * kQueryRows, rows = std::min(kQueryRows, sizes.query_length - row);
    const int64_t begin = std::max(key_segment * kSegment, boundary[head * sizes.tiles() + tile] * kKeyBlock);
    const int64_t end = std::min((key_segment + 1) * kSegment, sizes.offset() + row + rows);
    return {head, head / sizes.group(), row, rows, begin, end - begin};
  }

  // P and dS of one block, into scratch; adds the sums of dS to those of its rows and columns.
  void recompute(const Block& b, BackwardScratch<Scalar>& scratch) const {
    const int64_t row_index = b.head * sizes.query_length + b.row, stride = b.stride();
    Scalar *weights = scratch.weights.data(), *gradients = scratch.gradients.data();
    // A row that sees a non-finite value has no finite delta; any other row must ignore that value.
    const FinitePart<Scalar> v(b.columns, sizes.value_dim, value.at(b.key_head, b.column), value.stride(), finite);
    for_each_seen_part(b.rows, b.columns, diagonal(b), [&](int64_t i, int64_t m, int64_t j, int64_t n) {
      multiply(Transpose::kNo, Transpose::kYes, m, n, sizes.key_dim, Scalar(1), query.at(b.head, b.row + i),
               query.stride(), key.at(b.key_head, b.column + j), key.stride(), Scalar(0), weights + i * stride + j,
               stride);
      multiply(Transpose::kNo, Transpose::kYes, m, n, sizes.value_dim, Scalar(1), grad_values.at(b.head, b.row + i),
               grad_values.stride(), v.data() + j * v.stride(), v.stride(), Scalar(0), gradients + i * stride + j,
               stride);
    });
    const HeadGates gates = prefix.head(b.head);
    for (int64_t i = 0, frame; i < b.rows; i += frame) {
      const int64_t row = row_index + i, position = sizes.offset() + b.row + i;
      frame = frame_rows(gates, position, b.rows - i);
      const int64_t seen = strip_columns(i, frame, b.columns, diagonal(b));
      scratch.biases.fill(gates, position, frame, b.column, seen);
      for (int64_t r = 0; r < frame; ++r)
        if (log_normalizer[row + r] == kNothingSeen<Scalar>) scratch.biases.end[r] = 0;
      tile_kernels<Scalar>().gradient({scratch.biases.tile(frame, seen, scale), weights + i * stride,
                                       gradients + i * stride, stride, log_normalizer.data() + row, delta.data() + row,
                                       row_sum.data() + row, column_sum.data() + b.head * sizes.key_length + b.column});
    }
  }

  // Whether no row of the block takes part.
  bool sees_nothing(const Block& b) const {
    const auto row = log_normalizer.begin() + b.head * sizes.query_length + b.row;
    return std::all_of(row, row + b.rows, [](Scalar number) { return number == kNothingSeen<Scalar>; });
  }

  void run_block(const Block& b, BackwardScratch<Scalar>& scratch) const {
    const int64_t stride = b.stride();
    const Scalar *weights = scratch.weights.data(), *gradients = scratch.gradients.data();
    recompute(b, scratch);
    if (sums_alone) return;
    for_each_seen_part_by_columns(b.rows, b.columns, diagonal(b), [&](int64_t i, int64_t m, int64_t j, int64_t n) {
      add_seen_product(Transpose::kYes, n, sizes.value_dim, m, Scalar(1), weights + i * stride + j, stride,
                       grad_values.at(b.head, b.row + i), grad_values.stride(), finite,
                       grad_value.at(b.key_head, b.column + j), grad_value.stride());
      add_seen_product(Transpose::kYes, n, sizes.key_dim, m, scale, gradients + i * stride + j, stride,
                       query.at(b.head, b.row + i), query.stride(), finite, grad_key.at(b.key_head, b.column + j),
                       grad_key.stride());
    });
    for_each_seen_part(b.rows, b.columns, diagonal(b), [&](int64_t i, int64_t m, int64_t j, int64_t n) {
      add_seen_product(Transpose::kNo, m, sizes.key_dim, n, scale, gradients + i * stride + j, stride,
                       key.at(b.key_head, b.column + j), key.stride(), finite, grad_query.at(b.head, b.row + i),
                       grad_query.stride());
    });
  }

  void run_task(const Task& task, BackwardScratch<Scalar>& scratch) const {
    constexpr int64_t tiles_a_segment = kSegment / kQueryRows;
    const int64_t tile_begin = task.query_segment * tiles_a_segment;
    const int64_t tile_end = std::min(tile_begin + tiles_a_segment, sizes.tiles());
    for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
      for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const Block b = block(head, tile, task.key_segment);
        if (b.columns > 0 && !(sums_alone && sees_nothing(b))) run_block(b, scratch);
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
        BackwardScratch<Scalar> scratch(sizes);
        while (const auto task = next()) run_task(tasks[*task], scratch);
      });
    }
  }
};

// ∂loss/∂log f_l = Σ_{i ≥ l} ∂loss/∂c_i with ∂loss/∂c_t = (sum of dS over row t) − (sum over column t). The row sums are zero in exact
// arithmetic but not in this one, where they cancel the columns' rounding; both come from the same dS, and are added in float64.
// No pair reaches across the first visited position or across a cut: the sum there is zero, and is set to zero. All sums are finite.
template <typename Scalar>
at::Tensor gate_gradient(const Sizes& sizes, const GatePrefix& prefix, const std::vector<double>& row_sum,
                         const std::vector<double>& column_sum, const at::Tensor& log_forget) {
  at::Tensor gradient = at::zeros({sizes.batch, sizes.key_length, sizes.query_heads}, log_forget.options());
  at::parallel_for(0, sizes.all_heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t keys = head * sizes.key_length, queries = head * sizes.query_length - sizes.offset();
      Scalar* of_head = gradient.mutable_data_ptr<Scalar>() +
                        head / sizes.query_heads * sizes.key_length * sizes.query_heads + head % sizes.query_heads;
      const HeadGates gates = prefix.head(head);
      auto strong = gates.strong.rbegin();
      double sum = 0.0;
      for (int64_t t = sizes.key_length - 1; t > gates.begin; --t) {
        sum -= column_sum[keys + t];
        if (t >= sizes.offset()) sum += row_sum[queries + t];
        if (strong != gates.strong.rend() && strong->position == t && std::isinf((strong++)->log_forget)) sum = 0.0;
        of_head[t * sizes.query_heads] = static_cast<Scalar>(sum);
      }
    }
  });
  return gradient;
}

// Sets the gradients of the gates between each of `rows`, ascending places in [B, Hq, Tq], and the first key that it sees to NaN. That key never
// comes earlier for a later row, so that each gate is set once.
template <typename Scalar>
void spoil(const Sizes& sizes, const GatePrefix& prefix, const int32_t* boundary, const std::vector<int64_t>& rows,
           at::Tensor& gradient) {
  int64_t head_before = -1, set_from = 0;  // of the row after this one, in the same head
  for (auto index = rows.rbegin(); index != rows.rend(); ++index) {
    const int64_t head = *index / sizes.query_length, row = *index % sizes.query_length,
                  position = sizes.offset() + row;
    const HeadGates gates = prefix.head(head);
    int64_t first =
        std::max<int64_t>(boundary[head * sizes.tiles() + row / kQueryRows] * kKeyBlock, sizes.first_seen(position));
    for (int64_t n = gates.strong_up_to(position); n > 0; --n)
      if (std::isinf(gates.strong[n - 1].log_forget)) {
        first = std::max(first, gates.strong[n - 1].position);
        break;  // the last cut
      }
    Scalar* of_head = gradient.mutable_data_ptr<Scalar>() +
                      head / sizes.query_heads * sizes.key_length * sizes.query_heads + head % sizes.query_heads;
    const int64_t end = head == head_before ? std::min(position + 1, set_from) : position + 1;
    for (int64_t t = first + 1; t < end; ++t) of_head[t * sizes.query_heads] = std::numeric_limits<Scalar>::quiet_NaN();
    head_before = head, set_from = std::min(first + 1, end);
  }
}

// The gates' gradient where dS of some rows is not finite, which would reach every sum: of all others, and NaN where such a row sees across a gate.
template <typename Scalar>
at::Tensor gate_gradient_beside(const std::vector<int64_t>& rows, const Backward<Scalar>& first,
                                const at::Tensor& log_forget) {
  std::vector<Scalar> log_normalizer = first.log_normalizer;
  for (const int64_t row : rows) log_normalizer[row] = kNothingSeen<Scalar>;
  std::vector<double> row_sum(first.row_sum.size()), column_sum(first.column_sum.size());
  const Backward<Scalar> others{
      first.sizes,    first.grad_values, first.query,  first.key,      first.value, first.grad_query,
      first.grad_key, first.grad_value,  first.prefix, first.boundary, first.scale, first.finite,
      first.delta,    log_normalizer,    row_sum,      column_sum,     true};
  others.run();
  at::Tensor gradient = gate_gradient<Scalar>(first.sizes, first.prefix, row_sum, column_sum, log_forget);
  spoil<Scalar>(first.sizes, first.prefix, first.boundary, rows, gradient);
  return gradient;
}

// The backward pass's numbers of each row, [B, Hq, Tq].
template <typename Scalar>
struct RowStatistics {
  std::vector<Scalar> delta;           // Σ_d ∂o · o
  std::vector<Scalar> log_normalizer;  // kNothingSeen where ∂o is zero and o is not finite: their product would be NaN
  bool finite;                         // all of both numbers are, and so all of ∂o and of q, which each enter them
};

template <typename Scalar>
RowStatistics<Scalar> row_statistics(const Sizes& sizes, const at::Tensor& grad_values, const at::Tensor& values,
                                     const at::Tensor& log_normalizer) {
  const int64_t length = sizes.query_length, heads = sizes.query_heads;
  const HeadRows<const Scalar> rows_of_gradient(grad_values), rows_of_values(values);
  const at::Tensor normalizers = log_normalizer.contiguous();
  RowStatistics<Scalar> rows{std::vector<Scalar>(sizes.all_heads() * length),
                             std::vector<Scalar>(sizes.all_heads() * length), true};
  std::atomic<bool> finite{true};
  // In the order of values in memory: the heads of one token, then those of the next.
  at::parallel_for(0, sizes.batch * length, kSegment, [&](int64_t begin, int64_t end) {
    bool all = true;
    for (int64_t token = begin; token < end; ++token) {
      const int64_t first_head = token / length * heads, row = token % length;
      const Scalar* normalizer = normalizers.const_data_ptr<Scalar>() + token * heads;
      for (int64_t head = first_head; head < first_head + heads; ++head, ++normalizer) {
        const int64_t index = head * length + row;
        const Scalar *o = rows_of_values.at(head, row), *d_o = rows_of_gradient.at(head, row);
        Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < sizes.value_dim; ++d) sum += o[d] * d_o[d];
        const bool no_gradient =
            !std::isfinite(sum) && std::all_of(d_o, d_o + sizes.value_dim, [](Scalar x) { return x == 0; });
        rows.delta[index] = sum;
        rows.log_normalizer[index] = no_gradient ? kNothingSeen<Scalar> : *normalizer;
        all = all && std::isfinite(sum) && std::isfinite(rows.log_normalizer[index]);
      }
    }
    if (!all) finite = false;
  });
  rows.finite = finite;
  return rows;
}

// Zeros for the gradient of `operand` [B, T, H, D], packed as it is.
at::Tensor sums_like(const at::Tensor& operand, bool is_packed) {
  const auto sizes = operand.sizes();
  if (!is_packed) return at::zeros(sizes, operand.options());
  return at::zeros({sizes[0], sizes[2], sizes[1], sizes[3]}, operand.options()).transpose(1, 2);
}

// The gradient of `input` [B, T, H, D] in its dtype, zero before position `first`, where the sums begin.
at::Tensor gradient_of(const at::Tensor& input, const at::Tensor& sums, int64_t first) {
  if (first == 0) return sums.to(input.scalar_type()).contiguous();
  at::Tensor gradient = at::zeros(input.sizes(), input.options());
  gradient.narrow(1, first, sums.size(1)).copy_(sums);
  return gradient;
}

template <typename Scalar>
AttentionGradients run_backward(const at::Tensor& grad_values, const AttentionInputs& in,
                                const AttentionOutputs& outputs) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value, &log_forget = in.log_forget;
  const Sizes sizes(in);
  const at::ScalarType dtype = at::CppTypeToScalarType<Scalar>::value;
  const at::Tensor first_blocks = outputs.boundary.contiguous();
  const int32_t* first_block = first_blocks.const_data_ptr<int32_t>();
  std::vector<int64_t> first_visited(sizes.all_heads(), sizes.key_length);
  for (int64_t head = 0; sizes.tiles() > 0 && head < sizes.all_heads(); ++head)
    first_visited[head] = first_block[head * sizes.tiles()] * kKeyBlock;
  const GatePrefix prefix(log_forget, std::move(first_visited));
  const int64_t first = prefix.first_visited();

  const bool copies = copy_pays(sizes, first, first_block);
  const auto readable = [&](const at::Tensor& tensor) { return rows_of(tensor, dtype, copies); };
  const auto visited = [&](const at::Tensor& tensor) {
    return readable(tensor.narrow(1, first, sizes.key_length - first));
  };
  const at::Tensor d_o = readable(grad_values), q = readable(query), k = visited(key), v = visited(value);
  const at::Tensor d_q = sums_like(q, copies), d_k = sums_like(k, copies), d_v = sums_like(v, copies);
  const RowStatistics<Scalar> rows = row_statistics<Scalar>(
      sizes, d_o, with_readable_rows(sums_of(outputs.values, outputs.residual), dtype), outputs.log_normalizer);
  const bool finite = rows.finite && all_finite<Scalar>(k) && all_finite<Scalar>(v);
  std::vector<double> row_sum(rows.delta.size()), column_sum(sizes.all_heads() * sizes.key_length);
  const Backward<Scalar> work{sizes,
                              HeadRows<const Scalar>(d_o),
                              HeadRows<const Scalar>(q),
                              HeadRows<const Scalar>(k, first),
                              HeadRows<const Scalar>(v, first),
                              HeadRows<Scalar>(d_q),
                              HeadRows<Scalar>(d_k, first),
                              HeadRows<Scalar>(d_v, first),
                              prefix,
                              first_block,
                              static_cast<Scalar>(in.scale),
                              finite,
                              rows.delta,
                              rows.log_normalizer,
                              row_sum,
                              column_sum};
  work.run();
  std::vector<int64_t> not_finite;  // rows
  for (size_t row = 0; row < row_sum.size(); ++row)
    if (!std::isfinite(row_sum[row])) not_finite.push_back(static_cast<int64_t>(row));
  return {gradient_of(query, d_q, 0), gradient_of(key, d_k, first), gradient_of(value, d_v, first),
          not_finite.empty() ? gate_gradient<Scalar>(sizes, prefix, row_sum, column_sum, log_forget)
                             : gate_gradient_beside(not_finite, work, log_forget)};
}

}  // namespace

AttentionGradients forgetting_attention_backward(const at::Tensor& grad_values, const AttentionInputs& in,
                                                 const AttentionOutputs& outputs) {
  const auto run = in.query.scalar_type() == at::kDouble ? run_backward<double> : run_backward<float>;
  return run(grad_values, in, outputs);
}

}  // namespace lethe::cpu

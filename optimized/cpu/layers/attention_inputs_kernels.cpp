// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/attention_inputs_kernels.hpp"

#include "optimized/cpu/layers/sigmoid.hpp"
#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

using layers::AttentionInputs;
using layers::HeadRows;
using layers::MutableRows;
using layers::Rows;

template <typename Stored>
LETHE_INLINE const Stored* row_of(const Rows& rows, int64_t row) {
  return static_cast<const Stored*>(rows.data) + row * rows.pitch;
}
template <typename Stored>
LETHE_INLINE Stored* row_of(const MutableRows& rows, int64_t row) {
  return static_cast<Stored*>(rows.data) + row * rows.pitch;
}

LETHE_INLINE float inverse_root(float x) { return 1 / __builtin_sqrtf(x); }
LETHE_INLINE double inverse_root(double x) { return 1 / __builtin_sqrt(x); }

// log σ(x), finite and exact to rounding wherever σ itself is 0 or 1.
LETHE_INLINE float log_sigmoid(float x) {
  return (x < 0 ? x : 0) - __builtin_log1pf(__builtin_expf(-__builtin_fabsf(x)));
}
LETHE_INLINE double log_sigmoid(double x) {
  return (x < 0 ? x : 0) - __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}

// Tokens [begin, end) of a sequence, whose first row is `first`.
struct Chunk {
  int64_t first, begin, end;
};

LETHE_INLINE Chunk chunk_of(const AttentionInputs& call, int64_t index) {
  const int64_t chunks = (call.length + kAttentionInputsChunk - 1) / kAttentionInputsChunk;
  const int64_t begin = index % chunks * kAttentionInputsChunk, end = begin + kAttentionInputsChunk;
  return {index / chunks * call.length, begin, end < call.length ? end : call.length};
}

// One head of a token.
template <typename Stored>
struct Head {
  using Number = Wide<Stored>;

  LETHE_INLINE Head(const AttentionInputs& call, const HeadRows& part, int64_t first, int64_t t, int64_t head)
      : size(call.head_dim), column(head * size), u(row_of<Stored>(part.product, first + t) + column),
        weight_column(part.norm_per_head ? column : 0), epsilon(static_cast<Number>(call.epsilon)) {
    if (t > 0) previous = u - part.product.pitch;
    if (part.norm) norm = static_cast<const Number*>(part.norm) + weight_column;
    if (part.shift.data) alpha = sigmoid(widened(row_of<Stored>(part.shift, first + t)[head]));
    if (part.rotated) {
      cosine = static_cast<const Number*>(call.cosine) + t * (size / 2);
      sine = static_cast<const Number*>(call.sine) + t * (size / 2);
    }
  }

  int64_t size, column;
  const Stored *u, *previous = nullptr;
  int64_t weight_column;  // of the norm's gradient
  Number epsilon, alpha = 0;
  const Number *norm = nullptr, *cosine = nullptr, *sine = nullptr;
};

// x, and its rstd where there is a norm.
template <typename Stored>
LETHE_INLINE Wide<Stored> mixed(const Head<Stored>& head, Wide<Stored>* __restrict x) {
  using Number = Wide<Stored>;
  const Number alpha = head.alpha;
  const Stored* __restrict u = head.u, * __restrict previous = head.previous;
  if (alpha == 0) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) x[i] = widened(u[i]);
  } else if (!previous) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) x[i] = (1 - alpha) * widened(u[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) x[i] = widened(u[i]) + alpha * (widened(previous[i]) - widened(u[i]));
  }
  if (!head.norm) return 1;
  Number sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < head.size; ++i) sum += x[i] * x[i];
  return inverse_root(sum / static_cast<Number>(head.size) + head.epsilon);
}

template <typename Stored>
LETHE_INLINE void write_values(const Head<Stored>& head, Wide<Stored>* __restrict x, Stored* __restrict values) {
  using Number = Wide<Stored>;
  const Number rstd = mixed(head, x);
  if (head.norm) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) x[i] *= rstd * head.norm[i];
  }
  if (!head.cosine) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) store(x[i], values[i]);
    return;
  }
  const int64_t half = head.size / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Number low = x[i], high = x[i + half];
    store(low * head.cosine[i] - high * head.sine[i], values[i]);
    store(high * head.cosine[i] + low * head.sine[i], values[i + half]);
  }
}

// The arriving gradient, turned back.
template <typename Stored>
LETHE_INLINE void turned_back(const Head<Stored>& head, const Stored* __restrict grad_values,
                              Wide<Stored>* __restrict dx) {
  if (!head.cosine) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) dx[i] = widened(grad_values[i]);
    return;
  }
  const int64_t half = head.size / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Wide<Stored> low = widened(grad_values[i]), high = widened(grad_values[i + half]);
    dx[i] = low * head.cosine[i] + high * head.sine[i];
    dx[i + half] = high * head.cosine[i] - low * head.sine[i];
  }
}

// From the gradient of the norm's result to that of its argument x; adds to grad_norm where that is given.
template <typename Stored>
LETHE_INLINE void before_norm(const Head<Stored>& head, Wide<Stored>* __restrict x, Wide<Stored>* __restrict dx,
                              Wide<Stored>* __restrict grad_norm) {
  using Number = Wide<Stored>;
  const Number rstd = mixed(head, x);
  if (grad_norm) {
#pragma omp simd
    for (int64_t i = 0; i < head.size; ++i) grad_norm[i] += x[i] * rstd * dx[i];
  }
  Number along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t i = 0; i < head.size; ++i) {
    dx[i] *= head.norm[i];
    along += x[i] * dx[i];
  }
  along *= rstd * rstd / static_cast<Number>(head.size);
#pragma omp simd
  for (int64_t i = 0; i < head.size; ++i) dx[i] = rstd * (dx[i] - along * x[i]);
}

// Σ dx ∘ (u_{t−1} − u_t)
template <typename Stored>
LETHE_INLINE Wide<Stored> change_along(const Head<Stored>& head, const Wide<Stored>* __restrict dx) {
  Wide<Stored> sum = 0;
  if (head.previous) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head.size; ++i) sum += dx[i] * (widened(head.previous[i]) - widened(head.u[i]));
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head.size; ++i) sum -= dx[i] * widened(head.u[i]);
  }
  return sum;
}

// From the last token of a chunk to its first. scratch: x and dx of a head, then α_{t+1} dx_{t+1} of all heads.
template <typename Stored>
void part_gradients(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, Wide<Stored>* scratch,
                    Wide<Stored>* sums) {
  using Number = Wide<Stored>;
  Number *x = scratch, *dx = x + call.head_dim, *arriving = dx + call.head_dim;
  for (int64_t i = 0; i < call.heads * call.head_dim; ++i) arriving[i] = 0;
  // A shift begins at the next chunk's first token, for what it sends back.
  const bool looks_ahead = part.shift.data && chunk.end < call.length;
  for (int64_t t = looks_ahead ? chunk.end : chunk.end - 1; t >= chunk.begin; --t) {
    const bool own = t < chunk.end;
    const int64_t row = chunk.first + t;
    for (int64_t h = 0; h < call.heads; ++h) {
      const Head<Stored> head(call, part, chunk.first, t, h);
      turned_back(head, row_of<Stored>(part.grad_values, row) + head.column, dx);
      if (head.norm) before_norm(head, x, dx, own ? sums + head.weight_column : nullptr);
      Number* __restrict from_next = arriving + head.column;
      if (own) {
        Stored* __restrict du = row_of<Stored>(part.grad_product, row) + head.column;
#pragma omp simd
        for (int64_t i = 0; i < head.size; ++i) store((1 - head.alpha) * dx[i] + from_next[i], du[i]);
      }
      if (!part.shift.data) continue;
      if (own) store(head.alpha * (1 - head.alpha) * change_along(head, dx), row_of<Stored>(part.grad_shift, row)[h]);
#pragma omp simd
      for (int64_t i = 0; i < head.size; ++i) from_next[i] = head.alpha * dx[i];
    }
  }
}

template <typename Stored>
void part_values(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, Wide<Stored>* scratch) {
  for (int64_t t = chunk.begin; t < chunk.end; ++t) {
    Stored* values = static_cast<Stored*>(part.values) + (chunk.first + t) * call.heads * call.head_dim;
    for (int64_t h = 0; h < call.heads; ++h) {
      const Head<Stored> head(call, part, chunk.first, t, h);
      write_values(head, scratch, values + head.column);
    }
  }
}

template <typename Stored>
void gate_values(const AttentionInputs& call, const Chunk& chunk) {
  using Number = Wide<Stored>;
  const Number* bias = static_cast<const Number*>(call.gate_bias);
  for (int64_t row = chunk.first + chunk.begin; row < chunk.first + chunk.end; ++row) {
    const Stored* logits = row_of<Stored>(call.gate_logits, row);
    Number* values = static_cast<Number*>(call.log_forget) + row * call.heads;
    for (int64_t h = 0; h < call.heads; ++h) values[h] = log_sigmoid(widened(logits[h]) + (bias ? bias[h] : 0));
  }
}

template <typename Stored>
void gate_gradients(const AttentionInputs& call, const Chunk& chunk, Wide<Stored>* sums) {
  using Number = Wide<Stored>;
  const Number* bias = static_cast<const Number*>(call.gate_bias);
  for (int64_t row = chunk.first + chunk.begin; row < chunk.first + chunk.end; ++row) {
    const Stored* logits = row_of<Stored>(call.gate_logits, row);
    const Number* gradient = static_cast<const Number*>(call.grad_log_forget) + row * call.heads;
    Stored* grad_logits = row_of<Stored>(call.grad_gate_logits, row);
    for (int64_t h = 0; h < call.heads; ++h) {
      const Number df = gradient[h] * sigmoid(-(widened(logits[h]) + (bias ? bias[h] : 0)));
      store(df, grad_logits[h]);
      if (bias) sums[h] += df;
    }
  }
}

template <typename Stored>
void forward(const AttentionInputs& call, int64_t begin, int64_t end, void* scratch) {
  for (int64_t i = begin; i < end; ++i) {
    const Chunk chunk = chunk_of(call, i);
    for (const HeadRows& part : call.parts) {
      if (part.product.data) part_values<Stored>(call, part, chunk, static_cast<Wide<Stored>*>(scratch));
    }
    if (call.gate_logits.data) gate_values<Stored>(call, chunk);
  }
}

template <typename Stored>
void backward(const AttentionInputs& call, int64_t begin, int64_t end, void* scratch, const ChunkSums& places,
              void* all_sums) {
  using Number = Wide<Stored>;
  for (int64_t i = begin; i < end; ++i) {
    const Chunk chunk = chunk_of(call, i);
    Number* sums = static_cast<Number*>(all_sums) + i * places.size;
    for (int part = 0; part < 3; ++part) {
      if (call.parts[part].product.data)
        part_gradients<Stored>(call, call.parts[part], chunk, static_cast<Number*>(scratch), sums + places.norms[part]);
    }
    if (call.gate_logits.data) gate_gradients<Stored>(call, chunk, sums + places.bias);
  }
}

}  // namespace

extern const AttentionInputsKernels attention_inputs_kernels;
const AttentionInputsKernels attention_inputs_kernels{
    {forward<double>, forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<double>, backward<float>, backward<BFloat16>, backward<Float16>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET

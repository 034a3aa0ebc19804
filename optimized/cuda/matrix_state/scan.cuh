#pragma once
// The recurrence itself, token by token in float: every gate, the delta rule, every input type. A CTA is one head, whose state lies in registers:
// each thread holds 8 rows × 4 columns. The lanes of a warp cover all rows, so sums over rows stay in the warp; sums over columns are completed at
// the end of a chunk, in shared memory. Inputs come a chunk ahead, converted to float and with gates instead of their logarithms.

#include "optimized/cuda/matrix_state/scan_sums.cuh"

namespace lethe::matrix_state {

template <int kRows, int kColumns, Scan kPass, bool kDelta>
__global__ void __launch_bounds__(ScanShape<kRows, kColumns>::kThreads) scan(const __grid_constant__ ScanArguments p) {
  using Shape = ScanShape<kRows, kColumns>;
  constexpr int kTokens = Shape::kTokens, kThreads = Shape::kThreads, kRowPiece = Shape::kRowPiece,
                kColumnPiece = Shape::kColumnPiece;
  constexpr bool kReversed = kPass == Scan::kReverse, kSumsColumns = kPass != Scan::kForward;
  constexpr bool kReadsQuery = kPass != Scan::kCorrection, kReadsOther = kPass != Scan::kForward,
                 kReadsResidual = kDelta && (kReversed || kPass == Scan::kCorrection);
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<ScanShared<kRows, kColumns>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % Shape::kRowLanes, c = lane / Shape::kRowLanes;
  const int64_t head = blockIdx.x, b = head / p.heads, h = head % p.heads;
  const int chunks = static_cast<int>((p.length + kTokens - 1) / kTokens),
            segments = static_cast<int>((p.length + kSegment - 1) / kSegment);
  const auto row_of = [&](int i) { return i / 4 * (kRows / 2) + 4 * r + i % 4; };
  const int column0 = 4 * (warp * Shape::kColumnLanes + c);
  const bool has_value_gate = p.value_gate.data != nullptr, has_gate = p.key_gate.data != nullptr;

  // This thread's part of a chunk's arrays.
  const int row_token = threadIdx.x / (kRows / kRowPiece), row0 = threadIdx.x % (kRows / kRowPiece) * kRowPiece;
  const int column_token = threadIdx.x / (kColumns / kColumnPiece),
            piece0 = threadIdx.x % (kColumns / kColumnPiece) * kColumnPiece;
  const auto chunk_at = [&](int n) { return kReversed ? chunks - 1 - n : n; };
  Raw<kRowPiece> raw_query, raw_key, raw_gate;
  Raw<kColumnPiece> raw_value, raw_other, raw_value_gate;
  float raw_beta = 0.0f;
  const auto load = [&](int n) {
    const int64_t first = static_cast<int64_t>(chunk_at(n)) * kTokens;
    const auto piece = [&](auto& to, const Operand& from, int64_t token, int at, int end, int size) {
      const bool valid = token < p.length && at < end;
#pragma unroll
      for (auto& word : to.words) word = 0;
      if (valid)
        load_raw(to,
                 static_cast<const char*>(from.data) +
                     (b * from.batch_stride + token * from.token_stride + h * from.head_stride + at) * size,
                 size == 4);
    };
    const int size = p.dtype == Dtype::kFloat32 ? 4 : 2;
    const int64_t row_time = first + row_token, column_time = first + column_token;
    if constexpr (kReadsQuery) piece(raw_query, p.query, row_time, row0, p.rows, size);
    piece(raw_key, p.key, row_time, row0, p.rows, size);
    if (has_gate) {
      if (p.gate_per_row) {
        piece(raw_gate, p.key_gate, row_time, row0, p.rows, 4);
      } else {
        const float* gate = static_cast<const float*>(p.key_gate.data);
        raw_gate.words[0] = row_time < p.length
                                ? __float_as_uint(gate[b * p.key_gate.batch_stride +
                                                       row_time * p.key_gate.token_stride + h * p.key_gate.head_stride])
                                : 0;
      }
    }
    const auto contiguous = [&](const float* data) {
      return Operand{data, p.length * p.heads * p.columns, static_cast<int64_t>(p.heads) * p.columns, p.columns};
    };
    if constexpr (kReadsResidual) piece(raw_value, contiguous(p.residual), column_time, piece0, p.columns, 4);
    else piece(raw_value, p.value, column_time, piece0, p.columns, size);
    if constexpr (kPass == Scan::kCorrection)
      piece(raw_other, contiguous(p.written_gradient), column_time, piece0, p.columns, 4);
    else if constexpr (kReadsOther) piece(raw_other, p.grad_values, column_time, piece0, p.columns, size);
    if (has_value_gate) piece(raw_value_gate, p.value_gate, column_time, piece0, p.columns, 4);
    if (kDelta && threadIdx.x < kTokens) {
      const int64_t token = first + threadIdx.x;
      raw_beta = token < p.length
                     ? p.beta.log_forget[b * p.beta.batch_stride + token * p.beta.token_stride + h * p.beta.head_stride]
                     : 0.0f;
    }
  };
  const auto keep = [&] {
    ScanInputs<kRows, kColumns>& to = shared.inputs;
    const auto put_row = [&](auto& array, const Raw<kRowPiece>& raw, Dtype dtype, float factor) {
      float x[kRowPiece];
      to_floats(raw, dtype, x);
#pragma unroll
      for (float& number : x) number *= factor;
      store_floats(&array[row_token][row0], x);
    };
    const auto put_column = [&](auto& array, const Raw<kColumnPiece>& raw, Dtype dtype) {
      float x[kColumnPiece];
      to_floats(raw, dtype, x);
      store_floats(&array[column_token][piece0], x);
    };
    if constexpr (kReadsQuery) put_row(to.query, raw_query, p.dtype, p.scale);
    put_row(to.key, raw_key, p.dtype, 1.0f);
    float gates[kRowPiece];
#pragma unroll
    for (int i = 0; i < kRowPiece; ++i)
      gates[i] = has_gate ? expf(__uint_as_float(p.gate_per_row ? raw_gate.words[i] : raw_gate.words[0])) : 1.0f;
    store_floats(&to.gate[row_token][row0], gates);
    put_column(to.value, raw_value, kReadsResidual ? Dtype::kFloat32 : p.dtype);
    if constexpr (kReadsOther) put_column(to.other, raw_other, kPass == Scan::kCorrection ? Dtype::kFloat32 : p.dtype);
    if (has_value_gate) {
      float value_gates[kColumnPiece];
#pragma unroll
      for (int i = 0; i < kColumnPiece; ++i) value_gates[i] = expf(__uint_as_float(raw_value_gate.words[i]));
      store_floats(&to.value_gate[column_token][piece0], value_gates);
    }
    if (kDelta && threadIdx.x < kTokens) to.beta[threadIdx.x] = raw_beta;
  };

  float s[8][4] = {};  // S, or R
  const float* const initial = kReversed ? p.grad_last : p.initial;
  const auto place_of = [&](int i) { return (head * p.rows + row_of(i)) * p.columns + column0; };  // of a row of s
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (initial && row_of(i) < p.rows && column0 < p.columns) load_floats(initial + place_of(i), s[i]);

  const auto eight = [&](const float* array, float(&x)[8]) {
    const float4 near = *reinterpret_cast<const float4*>(array + 4 * r),
                 far = *reinterpret_cast<const float4*>(array + kRows / 2 + 4 * r);
    x[0] = near.x, x[1] = near.y, x[2] = near.z, x[3] = near.w, x[4] = far.x, x[5] = far.y, x[6] = far.z, x[7] = far.w;
  };
  const auto four = [&](const float* array, float(&x)[4]) {
    const float4 all = *reinterpret_cast<const float4*>(array + column0);
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
  };
  const int own_column = 2 * (lane & 1) + (lane >> 1 & 1);  // of the thread's four: that of sum_over_rows
  const auto decay = [&](const ScanInputs<kRows, kColumns>& in, int token) {
    float f[8];
    eight(in.gate[token], f);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= f[i];
    if (has_value_gate) {
      float g[4];
      four(in.value_gate[token], g);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) s[i][j] *= g[j];
    }
  };
  const auto add_product = [&](const float(&x)[8], const float(&y)[4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = fmaf(x[i], y[j], s[i][j]);
  };
  const bool stores_row_sum = r < 4;

  // A token of the passes forwards.
  const auto forward_token = [&](const ScanInputs<kRows, kColumns>& in, int token) {
    float k[8], written[4];
    decay(in, token);
    eight(in.key[token], k);
    four(in.value[token], written);
    if constexpr (kPass == Scan::kCorrection) {
      float m[4];
      four(in.other[token], m);
      sum_over_columns<Shape>(m, s, shared.column_sums[warp][token], r, c);
    }
    if constexpr (kDelta) {
      const float beta = in.beta[token];
      if constexpr (!kReadsResidual) {
        float held[4];
        gather_sums(sum_over_rows<Shape>(k, s, lane), held, lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) written[j] -= held[j];
        if (kPass == Scan::kQuery && r == 0)
          *reinterpret_cast<float4*>(&shared.second_row_sums[token][column0]) = {written[0], written[1], written[2],
                                                                                 written[3]};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) written[j] *= beta;
    }
    add_product(k, written);
    if constexpr (kPass == Scan::kForward || kPass == Scan::kQuery) {
      if (kPass == Scan::kForward || has_value_gate) {
        float q[8];
        eight(in.query[token], q);
        const float sum = sum_over_rows<Shape>(q, s, lane);
        if (stores_row_sum) shared.row_sums[token][column0 + own_column] = sum;
      }
    }
    if constexpr (kPass == Scan::kQuery) {
      float d[4];
      four(in.other[token], d);
      sum_over_columns<Shape>(d, s, shared.column_sums[warp][token], r, c);
    }
  };
  const auto reverse_token = [&](const ScanInputs<kRows, kColumns>& in, int token) {
    float q[8], k[8], d[4], written[4];
    eight(in.query[token], q);
    four(in.other[token], d);
    add_product(q, d);
    four(in.value[token], written);
    const float beta = kDelta ? in.beta[token] : 1.0f;
    if constexpr (kDelta) {
#pragma unroll
      for (int j = 0; j < 4; ++j) written[j] *= beta;
    }
    sum_over_columns<Shape>(written, s, shared.column_sums[warp][token], r, c);
    eight(in.key[token], k);
    const float sum = sum_over_rows<Shape>(k, s, lane);  // Rᵀk
    if (stores_row_sum) shared.row_sums[token][column0 + own_column] = sum * beta;
    if constexpr (kDelta) {
      float all[4], residual[4];
      gather_sums(sum, all, lane);
      four(in.value[token], residual);
      float strength = (all[0] * residual[0] + all[1] * residual[1]) + (all[2] * residual[2] + all[3] * residual[3]);
#pragma unroll
      for (int step = Shape::kRowLanes; step < 32; step *= 2) strength += __shfl_xor_sync(~0u, strength, step);
      if (lane == 0) shared.strength[warp][token] = strength;
#pragma unroll
      for (int j = 0; j < 4; ++j) all[j] *= -beta;
      add_product(k, all);
    }
    decay(in, token);
  };

  const auto completed = [&](int token, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) sum += shared.column_sums[w][token][row];
    return sum;
  };
  const auto state_at = [&](int segment) {
    return p.states + (head * segments + segment) * (kRows * kColumns) + threadIdx.x * 4;
  };
  // What the chunk's sums give, to global memory. Of the inputs a thread reads only what it has stored: the next chunk's take their place at once.
  const auto finish = [&](int n) {
    const ScanInputs<kRows, kColumns>& in = shared.inputs;
    const int64_t first = static_cast<int64_t>(chunk_at(n)) * kTokens, row_time = first + row_token,
                  column_time = first + column_token;
    const auto at = [&](int64_t token, int width, int from) {
      return ((b * p.length + token) * p.heads + h) * width + from;
    };
    if (kSumsColumns && row_time < p.length && row0 < p.rows) {
      const int64_t to = at(row_time, p.rows, row0);
      // Queries came with the scale, which dq has too.
      float sum[kRowPiece] = {}, terms[kRowPiece], factors[kRowPiece];
      load_floats(kPass == Scan::kQuery ? &in.query[row_token][row0] : &in.key[row_token][row0], factors);
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        float part[kRowPiece];
        load_floats(&shared.column_sums[w][row_token][row0], part);
#pragma unroll
        for (int i = 0; i < kRowPiece; ++i) sum[i] += part[i];
      }
#pragma unroll
      for (int i = 0; i < kRowPiece; ++i) terms[i] = (kPass == Scan::kQuery ? factors[i] : -factors[i]) * sum[i];
      if (p.row_terms) {
        if constexpr (kPass != Scan::kQuery) {
          float before[kRowPiece];
          load_floats(p.row_terms + to, before);
#pragma unroll
          for (int i = 0; i < kRowPiece; ++i) terms[i] += before[i];
        }
        store_floats(p.row_terms + to, terms);
      }
      if constexpr (kPass == Scan::kCorrection) {
        float key_part[kRowPiece];
        load_floats(p.key_part + to, key_part);
#pragma unroll
        for (int i = 0; i < kRowPiece; ++i) sum[i] = key_part[i] - sum[i];
      }
      if constexpr (kPass == Scan::kQuery) {
#pragma unroll
        for (float& number : sum) number *= p.scale;
        store_numbers(p.grad_query, to, sum, p.dtype);
      } else if constexpr (kReversed && kDelta) {
        store_floats(p.key_part + to, sum);
      } else {
        store_numbers(p.grad_key, to, sum, p.dtype);
      }
    }
    if (kPass != Scan::kCorrection && column_time < p.length && piece0 < p.columns) {
      const int64_t to = at(column_time, p.columns, piece0);
      float sum[kColumnPiece];
      load_floats(&shared.row_sums[column_token][piece0], sum);
      if constexpr (kPass == Scan::kForward) store_numbers(p.values, to, sum, p.values_dtype);
      if constexpr (kReversed) {
        store_numbers(p.grad_value, to, sum, p.dtype);
        if constexpr (kDelta) store_floats(p.written_gradient + to, sum);
      }
      if constexpr (kPass == Scan::kQuery && kDelta) {
        float residual[kColumnPiece];
        load_floats(&shared.second_row_sums[column_token][piece0], residual);
        store_floats(p.residual + to, residual);
      }
      if (kReadsOther && p.column_terms) {
        float terms[kColumnPiece], factors[kColumnPiece];
        load_floats(kPass == Scan::kQuery ? &in.other[column_token][piece0] : &in.value[column_token][piece0], factors);
        if constexpr (kPass != Scan::kQuery) load_floats(p.column_terms + to, terms);
#pragma unroll
        for (int i = 0; i < kColumnPiece; ++i)
          terms[i] = kPass == Scan::kQuery ? factors[i] * sum[i] : terms[i] - factors[i] * sum[i];
        store_floats(p.column_terms + to, terms);
      }
    }
    if (kReversed && kDelta && threadIdx.x < kTokens && first + threadIdx.x < p.length) {
      float sum = 0.0f;
      for (int w = 0; w < Shape::kWarps; ++w) sum += shared.strength[w][threadIdx.x];
      p.grad_beta[at(first + threadIdx.x, 1, 0)] = sum;
    }
  };
  // ⟨S, R⟩ of the state after a segment: what the gate after it has.
  const auto end_of_segment = [&](int segment) {
    const float* from = state_at(segment);
    float after[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 row = *reinterpret_cast<const float4*>(from + i * kThreads * 4);
      after[i][0] = row.x * s[i][0], after[i][1] = row.y * s[i][1], after[i][2] = row.z * s[i][2],
      after[i][3] = row.w * s[i][3];
    }
    if (p.row_ends) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float sum = (after[i][0] + after[i][1]) + (after[i][2] + after[i][3]);
#pragma unroll
        for (int step = Shape::kRowLanes; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (c == 0) shared.column_sums[warp][0][row_of(i)] = sum;
      }
      __syncthreads();
      for (int row = threadIdx.x; row < p.rows; row += kThreads)
        p.row_ends[(head * segments + segment) * p.rows + row] = completed(0, row);
      __syncthreads();
    }
    if (p.column_ends) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += after[i][j];
#pragma unroll
        for (int step = 1; step < Shape::kRowLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (r == 0 && column0 + j < p.columns)
          p.column_ends[(head * segments + segment) * p.columns + column0 + j] = sum;
      }
    }
  };

  load(0);
  keep();
  __syncthreads();
  for (int n = 0; n < chunks; ++n) {
    if (n + 1 < chunks) load(n + 1);
    const ScanInputs<kRows, kColumns>& in = shared.inputs;
    constexpr int kChunksASegment = kSegment / kTokens;
    const int chunk = chunk_at(n), tokens = static_cast<int>(min(p.length - static_cast<int64_t>(chunk) * kTokens,
                                                                 static_cast<int64_t>(kTokens)));
    const bool ends_segment = (chunk + 1) % kChunksASegment == 0 || chunk + 1 == chunks;
    if constexpr (kReversed) {
      if (ends_segment && p.states) end_of_segment(chunk / kChunksASegment);
#pragma unroll 2
      for (int token = tokens - 1; token >= 0; --token) reverse_token(in, token);
    } else {
#pragma unroll 2
      for (int token = 0; token < tokens; ++token) forward_token(in, token);
    }
    if constexpr (kPass == Scan::kQuery) {
      if (ends_segment && p.states) {
        float* to = state_at(chunk / kChunksASegment);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          *reinterpret_cast<float4*>(to + i * kThreads * 4) = {s[i][0], s[i][1], s[i][2], s[i][3]};
      }
    }
    __syncthreads();
    finish(n);
    if (n + 1 < chunks) keep();
    __syncthreads();
  }
  if constexpr (kReversed || kPass == Scan::kForward) {
    float* const to = kReversed ? p.grad_initial : p.last;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (to && row_of(i) < p.rows && column0 < p.columns) store_floats(to + place_of(i), s[i]);
  }
}

}  // namespace lethe::matrix_state

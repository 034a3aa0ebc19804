// The matrix state by passes over the tokens one by one: every gate, the delta rule, and float32 inputs.
//
// With the state S_t, its gradient R_t, and what is written n_t (v_t, or β_t r_t = β_t (v_t − S̄_tᵀ k_t)):
//
//   dq_t = S_t dO_t            R_t = f_{t+1} R̄_{t+1} g_{t+1} + q_t dO_tᵀ        dn_t = R_tᵀ k_t
//   gated  dv_t = dn_t         dk_t = R_t n_t                                   R̄_t = R_t
//   delta  dv_t = m_t = β_t dn_t,  dβ_t = dn_t·r_t,  dk_t = R_t n_t − S̄_t m_t   R̄_t = R_t − k_t m_tᵀ
//   d log f_t = ⟨S̄_t, R̄_t⟩ of each row = d log f_{t+1} + q_t ∘ dq_t − k_t ∘ dk'_t,   dk' = R n + S̄ m
//   d log g_t = the same of each column = d log g_{t+1} + dO_t ∘ o_t − v_t ∘ dv_t
//
// The last two are summed inside a segment of 64 tokens alone, in float, from ⟨S, R⟩ at its end.
#include "optimized/cuda/matrix_state/scan.cuh"

#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

template <int kRows, int kColumns, Scan kPass, bool kDelta>
void launch_instance(const ScanArguments& p, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ScanShared<kRows, kColumns>);
  static_assert(kBytes <= 1024 * shared_kilobytes(86));
  const auto kernel = scan<kRows, kColumns, kPass, kDelta>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "matrix state: shared memory");
  kernel<<<static_cast<unsigned>(p.batch * p.heads), ScanShape<kRows, kColumns>::kThreads, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

template <Scan kPass, bool kDelta>
void launch_shape(const ScanArguments& p, cudaStream_t stream) {
  if (p.rows <= 64)
    return p.columns <= 64 ? launch_instance<64, 64, kPass, kDelta>(p, stream)
                           : launch_instance<64, 128, kPass, kDelta>(p, stream);
  p.columns <= 64 ? launch_instance<128, 64, kPass, kDelta>(p, stream)
                  : launch_instance<128, 128, kPass, kDelta>(p, stream);
}

template <Scan kPass>
void launch(const ScanArguments& p, cudaStream_t stream) {
  p.beta.log_forget ? launch_shape<kPass, true>(p, stream) : launch_shape<kPass, false>(p, stream);
}

int64_t padded(int64_t size) { return size <= 64 ? 64 : 128; }
int64_t segments_of(const Shape& shape) { return (shape.key_length + kSegment - 1) / kSegment; }

ScanArguments arguments_of(const MatrixStateInput& in) {
  ScanArguments p{};
  p.dtype = p.values_dtype = in.dtype;
  p.length = in.shape.key_length;
  p.batch = static_cast<int>(in.shape.batch);
  p.heads = static_cast<int>(in.shape.heads);
  p.rows = static_cast<int>(in.shape.key_dim);
  p.columns = static_cast<int>(in.shape.value_dim);
  p.query = in.query;
  p.key = in.key;
  p.value = in.value;
  p.key_gate = in.key_gate;
  p.value_gate = in.value_gate;
  p.gate_per_row = in.form.key_gate == MatrixStateForm::Gate::kKey;
  p.beta = in.beta;
  p.scale = static_cast<float>(in.scale);
  p.initial = in.initial_state;
  return p;
}

// Arrays between the passes of a backward.
struct Between {
  float *residual = nullptr, *written_gradient = nullptr, *key_part = nullptr, *row_terms = nullptr,
        *column_terms = nullptr, *row_ends = nullptr, *column_ends = nullptr, *states = nullptr;

  Between(Workspace& memory, const Shape& shape, const MatrixStateForm& form) {
    const int64_t heads = shape.batch * shape.heads, tokens = heads * shape.key_length,
                  segments = heads * segments_of(shape);
    const bool row_gate = form.key_gate != MatrixStateForm::Gate::kNone;
    if (form.delta) {
      residual = memory.take<float>(tokens * shape.value_dim);
      written_gradient = memory.take<float>(tokens * shape.value_dim);
      key_part = memory.take<float>(tokens * shape.key_dim);
    }
    if (row_gate) {
      row_terms = memory.take<float>(tokens * shape.key_dim);
      row_ends = memory.take<float>(segments * shape.key_dim);
    }
    if (form.value_gate) {
      column_terms = memory.take<float>(tokens * shape.value_dim);
      column_ends = memory.take<float>(segments * shape.value_dim);
    }
    if (row_gate || form.value_gate)
      states = memory.take<float>(segments * padded(shape.key_dim) * padded(shape.value_dim));
  }
};

// The gradient of a gate a row [B, T, H, width]: of each segment, from its end, the sums of the terms. A gate of 0 has none.
__global__ void add_row_terms(const float* terms, const float* ends, Operand gate, float* to, int64_t length, int heads,
                              int width) {
  const int64_t segments = gridDim.y, head = blockIdx.x, b = head / heads, h = head % heads,
                first = blockIdx.y * static_cast<int64_t>(kSegment);
  for (int row = threadIdx.x; row < width; row += blockDim.x) {
    float sum = ends[(head * segments + blockIdx.y) * width + row];
    for (int64_t t = min(first + kSegment, length) - 1; t >= first; --t) {
      const int64_t at = ((b * length + t) * heads + h) * width + row;
      const float log_gate = static_cast<const float*>(
          gate.data)[b * gate.batch_stride + t * gate.token_stride + h * gate.head_stride + row];
      sum += terms[at];
      if (expf(log_gate) == 0.0f) sum = 0.0f;
      to[at] = sum;
    }
  }
}

// The same of one gate for all rows [B, T, H]: the terms of a token are added first, a warp a token.
__global__ void add_token_terms(const float* terms, const float* ends, Operand gate, float* to, int64_t length,
                                int heads, int width) {
  __shared__ float sums[kSegment + 1];
  const int64_t segments = gridDim.y, head = blockIdx.x, b = head / heads, h = head % heads,
                first = blockIdx.y * static_cast<int64_t>(kSegment);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i <= kSegment; i += blockDim.x / 32) {
    const int64_t t = first + i;
    if (i < kSegment && t >= length) continue;
    const float* from =
        i == kSegment ? ends + (head * segments + blockIdx.y) * width : terms + ((b * length + t) * heads + h) * width;
    float sum = 0.0f;
    for (int row = lane; row < width; row += 32) sum += from[row];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) sums[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = sums[kSegment];
  for (int64_t t = min(first + kSegment, length) - 1; t >= first; --t) {
    const float log_gate =
        static_cast<const float*>(gate.data)[b * gate.batch_stride + t * gate.token_stride + h * gate.head_stride];
    sum += sums[t - first];
    if (expf(log_gate) == 0.0f) sum = 0.0f;
    to[(b * length + t) * heads + h] = sum;
  }
}

}  // namespace

size_t scan_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  Workspace memory(nullptr);
  Between(memory, shape, form);
  return std::max<size_t>(memory.bytes(), 256);
}

void scan_forward(const MatrixStateForward& a) {
  ScanArguments p = arguments_of(a);
  p.values = a.values;
  if (a.float_values) p.values_dtype = Dtype::kFloat32;
  p.last = a.last_state;
  p.length == 1 ? step_forward(p, a.stream) : launch<Scan::kForward>(p, a.stream);
}

void scan_backward(const MatrixStateBackward& a) {
  Workspace memory(a.workspace);
  const Between between(memory, a.shape, a.form);
  ScanArguments p = arguments_of(a);
  p.grad_values = a.grad_values;
  p.grad_last = a.grad_last_state;
  p.grad_initial = a.grad_initial_state;
  p.grad_query = a.grad_query;
  p.grad_key = a.grad_key;
  p.grad_value = a.grad_value;
  p.grad_beta = a.grad_beta;
  p.residual = between.residual;
  p.written_gradient = between.written_gradient;
  p.key_part = between.key_part;
  p.row_terms = between.row_terms;
  p.column_terms = between.column_terms;
  p.row_ends = between.row_ends;
  p.column_ends = between.column_ends;
  p.states = between.states;
  launch<Scan::kQuery>(p, a.stream);
  launch<Scan::kReverse>(p, a.stream);
  if (a.form.delta) launch_shape<Scan::kCorrection, true>(p, a.stream);
  const dim3 grid(static_cast<unsigned>(p.batch * p.heads), static_cast<unsigned>(segments_of(a.shape)));
  if (between.row_terms) {
    const auto add = p.gate_per_row ? add_row_terms : add_token_terms;
    add<<<grid, 128, 0, a.stream>>>(between.row_terms, between.row_ends, a.key_gate, a.grad_key_gate, p.length, p.heads,
                                    p.rows);
    cuda_check(cudaGetLastError(), "matrix state: gate gradient");
  }
  if (between.column_terms) {
    add_row_terms<<<grid, 128, 0, a.stream>>>(between.column_terms, between.column_ends, a.value_gate,
                                              a.grad_value_gate, p.length, p.heads, p.columns);
    cuda_check(cudaGetLastError(), "matrix state: gate gradient");
  }
}

}  // namespace lethe::matrix_state

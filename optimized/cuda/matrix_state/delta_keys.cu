// delta_state with a gate a row, by windows of chunks of 64 tokens: what the state does not enter, of all chunks of a window at once, then a sweep over them.
#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/matrix_state/delta_keys_sweep.cuh"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

constexpr int64_t kWindowBytes = int64_t{256}
                                 << 20;  ///< of prepared chunks, at most: unless one chunk of all heads has more

int64_t heads_of(const Shape& shape) { return shape.batch * shape.heads; }
int64_t record_bytes(int64_t rows) { return rows <= 64 ? DeltaKeyRecord<64>::kBytes : DeltaKeyRecord<128>::kBytes; }

// Chunks of a window: windows of equal length.
int window_of(const Shape& shape) {
  const int64_t chunks = (shape.key_length + kChunk - 1) / kChunk,
                most = std::max<int64_t>(1, kWindowBytes / (heads_of(shape) * record_bytes(shape.key_dim))),
                windows = (chunks + most - 1) / most;
  return static_cast<int>((chunks + windows - 1) / windows);
}

char* take_records(Workspace& memory, const Shape& shape) {
  return memory.take<char>(heads_of(shape) * window_of(shape) * record_bytes(shape.key_dim));
}

void allow_bytes(const void* kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "delta rule: shared memory");
}

template <typename Element, int kRows>
void prepare(const DeltaKeyArguments& p, int64_t heads, cudaStream_t stream) {
  const auto kernel = prepare_delta_keys<Element, kRows>;
  constexpr int kBytes = DeltaKeyMemory<kRows>::kBytes;
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  kernel<<<static_cast<unsigned>(heads * p.chunks), kComputing, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

template <typename Element, int kRows, int kWidth>
void sweep(const DeltaKeyArguments& p, int64_t heads, cudaStream_t stream) {
  const auto kernel = sweep_delta_keys<Element, kRows, kWidth>;
  constexpr int kBytes = DeltaKeySweepMemory<kRows, kWidth>::kBytes;
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  kernel<<<static_cast<unsigned>(heads * ((p.columns + kWidth - 1) / kWidth)), 2 * kWidth, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

// The CTA of 128 columns needs more shared memory than one of compute capability 8.0 has.
bool sweeps_wide(int columns) {
  int device;
  cuda_check(cudaGetDevice(&device), "delta rule: device");
  return columns > 64 && compute_capability(device) >= 90;
}

template <typename Element, int kRows>
void launch_window(const DeltaKeyArguments& p, int64_t heads, bool wide, cudaStream_t stream) {
  prepare<Element, kRows>(p, heads, stream);
  wide ? sweep<Element, kRows, 128>(p, heads, stream) : sweep<Element, kRows, 64>(p, heads, stream);
}

template <typename Element>
void launch_windows(const MatrixStateForward& a, DeltaKeyArguments p) {
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk), window = window_of(a.shape);
  const bool wide = sweeps_wide(p.columns);
  for (p.first_chunk = 0; p.first_chunk < chunks; p.first_chunk += window, p.initial = p.last) {
    p.chunks = std::min(window, chunks - p.first_chunk);
    p.rows <= 64 ? launch_window<Element, 64>(p, heads_of(a.shape), wide, a.stream)
                 : launch_window<Element, 128>(p, heads_of(a.shape), wide, a.stream);
  }
}

DeltaKeyArguments arguments_of(const MatrixStateInput& in) {
  DeltaKeyArguments p{};
  p.query = in.query;
  p.key = in.key;
  p.value = in.value;
  p.gate = in.key_gate;
  p.beta = in.beta;
  p.scale = static_cast<float>(in.scale);
  p.length = in.shape.key_length;
  p.heads = static_cast<int>(in.shape.heads);
  p.rows = static_cast<int>(in.shape.key_dim);
  p.columns = static_cast<int>(in.shape.value_dim);
  p.initial = in.initial_state;
  return p;
}

}  // namespace

size_t delta_key_forward_workspace_bytes(const Shape& shape, const MatrixStateForm&) {
  Workspace memory(nullptr);
  take_records(memory, shape);
  return memory.bytes();
}

size_t delta_key_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  return scan_workspace_bytes(shape, form);
}

void delta_key_forward(const MatrixStateForward& a) {
  Workspace memory(a.workspace);
  DeltaKeyArguments p = arguments_of(a);
  p.records = take_records(memory, a.shape);
  p.out = a.values;
  p.last = a.last_state;
  a.dtype == Dtype::kBFloat16 ? launch_windows<__nv_bfloat16>(a, p) : launch_windows<__half>(a, p);
}

void delta_key_backward(const MatrixStateBackward& a) { scan_backward(a); }

}  // namespace lethe::matrix_state

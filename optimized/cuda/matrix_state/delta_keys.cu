// delta_state with a gate a row, by windows of chunks of 64 tokens: what the state does not enter, of all chunks of a window at once, then a sweep
// over them. While one window is swept, by a CTA a head (on 8.0 for 64 columns of it), the next one is prepared by the multiprocessors that are left:
// windows have two places in turn. On 9.0, where all chunks have a place, there is one window: some CTAs that prepare go on beside its sweep, which
// waits for chunk after chunk. The backward keeps all chunks, one window: prepared once, swept to the last one and back, and each chunk's gradients
// for themselves as soon as that sweep has passed it.
#include <algorithm>
#include <type_traits>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_keys_gradients.cuh"
#include "optimized/cuda/matrix_state/delta_keys_prepare.cuh"
#include "optimized/cuda/matrix_state/delta_keys_reverse.cuh"
#include "optimized/cuda/matrix_state/delta_launch.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/hopper/delta_keys.hpp"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

constexpr int64_t kWindowBytes =
    int64_t{256} << 20;  ///< of prepared chunks, half of what a forward keeps, unless one of all heads has more

int64_t heads_of(const Shape& shape) { return shape.batch * shape.heads; }
int64_t record_bytes(int64_t rows) { return rows <= 64 ? DeltaKeyRecord<64>::kBytes : DeltaKeyRecord<128>::kBytes; }

int chunks_of(const Shape& shape) { return static_cast<int>((shape.key_length + kChunk - 1) / kChunk); }

// Chunks of a window of a forward: windows of equal length.
int window_of(const Shape& shape) {
  const int64_t chunks = chunks_of(shape),
                most = std::max<int64_t>(1, kWindowBytes / (heads_of(shape) * record_bytes(shape.key_dim))),
                windows = (chunks + most - 1) / most;
  return static_cast<int>((chunks + windows - 1) / windows);
}

// Chunks that the forward has a place for.
int places_of(const Shape& shape) { return std::min(2 * window_of(shape), chunks_of(shape)); }

void take_records(Workspace& memory, const Shape& shape, DeltaKeyArguments& p) {
  const int64_t records = heads_of(shape) * p.stride;
  p.records = memory.take<char>(records * record_bytes(shape.key_dim));
  p.prepared = memory.take<int32_t>(records);
}

DeltaKeyArrays take_arrays(Workspace& memory, const Shape& shape) {
  const int64_t warps = heads_of(shape) * chunks_of(shape) * delta_key_warps(static_cast<int>(shape.value_dim)),
                of_state = warps * (shape.key_dim <= 64 ? 4 : 8) * 32, of_tokens = warps * kWarps * 32;
  DeltaKeyArrays arrays{};
  arrays.before = memory.take<uint4>(of_state);
  arrays.after = memory.take<uint4>(of_state);
  arrays.residual = memory.take<uint4>(of_tokens);
  arrays.written = memory.take<uint4>(of_tokens);
  for (float** units : {&arrays.before_unit, &arrays.after_unit, &arrays.residual_unit, &arrays.written_unit})
    *units = memory.take<float>(warps);
  arrays.strength = memory.take<float>(warps * kChunk);
  arrays.swept = memory.take<int32_t>(heads_of(shape) * ((shape.value_dim + 63) / 64));
  return arrays;
}

void allow_bytes(const void* kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "delta rule: shared memory");
}

template <typename Element, int kRows>
void prepare(const DeltaKeyArguments& p, int64_t heads, bool overlapping, cudaStream_t stream) {
  const auto kernel = prepare_delta_keys<Element, kRows, 1>;
  constexpr int kBytes = DeltaKeyMemory<kRows>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(80), "unsupported_by_delta_key_chunks");
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  const dim3 grid(static_cast<unsigned>(heads * p.chunks));
  if (overlapping) return launch_overlapping(kernel, grid, kComputing, kBytes, stream, p);
  kernel<<<grid, kComputing, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

template <int kRows, int kWidth>
void sweep(void (*kernel)(DeltaKeyArguments), const DeltaKeyArguments& p, int64_t heads, cudaStream_t stream) {
  constexpr int kBytes = DeltaKeySweepMemory<kRows, kWidth>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(kWidth == 64 ? 80 : 90), "sweeps_wide");
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  const dim3 grid(static_cast<unsigned>(heads * ((p.columns + kWidth - 1) / kWidth)));
  launch_overlapping(kernel, grid, 2 * kWidth, kBytes, stream, p);
}

template <typename Element>
constexpr Dtype kDtypeOf = std::is_same_v<Element, __nv_bfloat16> ? Dtype::kBFloat16 : Dtype::kFloat16;

template <typename Element, int kRows, int kWidth, bool kKeeps>
void sweep_forward(const DeltaKeyArguments& p, int64_t heads, cudaStream_t stream) {
  if (kWidth == 128 && runs_hopper_code()) return sweep_keys_by_warpgroups(p, kDtypeOf<Element>, kKeeps, heads, stream);
  sweep<kRows, kWidth>(sweep_delta_keys<Element, kRows, kWidth, kKeeps>, p, heads, stream);
}

template <typename Element, int kRows, int kWidth>
void sweep_back(const DeltaKeyArguments& p, int64_t heads, cudaStream_t stream) {
  if (kWidth == 128 && runs_hopper_code()) return reverse_keys_by_warpgroups(p, kDtypeOf<Element>, heads, stream);
  sweep<kRows, kWidth>(reverse_delta_keys<Element, kRows, kWidth>, p, heads, stream);
}

template <typename Element, int kRows, int kColumns>
void gradients(const DeltaKeyGradients& p, int64_t heads, cudaStream_t stream) {
  const auto kernel = delta_key_gradients<Element, kRows, kColumns>;
  constexpr int kBytes = DeltaKeyGradientMemory<kColumns>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(80), "unsupported_by_delta_key_chunks");
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  launch_overlapping(kernel, dim3(static_cast<unsigned>(heads * p.chunks * ((p.rows + 63) / 64))), kComputing, kBytes,
                     stream, p);
}

// The CTA of 128 columns needs, of 128 rows, more shared memory than one of compute capability 8.0 has.
bool sweeps_wide(int columns) {
  if (columns <= 64) return false;
  int device;
  cuda_check(cudaGetDevice(&device), "delta rule: device");
  return compute_capability(device) >= 90;
}

// Prepares and sweeps all chunks at once, and returns true, where the sweep leaves enough multiprocessors to prepare the last chunks meanwhile.
template <typename Element, int kRows, int kWidth, bool kKeeps>
bool launch_at_once(DeltaKeyArguments p, int64_t heads, cudaStream_t stream) {
  if (kWidth != 128 || !runs_hopper_code()) return false;
  const int64_t ctas = multiprocessors(), left = ctas - heads * ((p.columns + kWidth - 1) / kWidth);
  if (left < ctas / 8) return false;
  // The multiprocessors prepare the first chunks in whole turns, so that they end together. A benchmark's 96 heads of 64 chunks are swept after
  // 12 turns, beside 13 more.
  constexpr int kAtOnce = 3, kSweptMeanwhile = 5;
  const int64_t items = heads * p.chunks, beside = (p.chunks + kSweptMeanwhile - 1) / kSweptMeanwhile,
                before = std::max<int64_t>(0, items - kAtOnce * left * beside), turn = kAtOnce * ctas;
  p.items = static_cast<int>(items);
  p.staying = static_cast<int>(left);
  p.shared = static_cast<int>(std::min(items, (before + turn - 1) / turn * turn));
  prepare_keys_in_turn(p, kDtypeOf<Element>, static_cast<int>(ctas), stream);
  sweep_keys_by_warpgroups(p, kDtypeOf<Element>, kKeeps, heads, stream);
  return true;
}

// Prepares and sweeps all chunks: to keep them in one window, else in windows of equal length. `p` has what no window changes; the state goes from
// one to the next through `last`.
template <typename Element, int kRows, int kWidth, bool kKeeps>
void launch_windows(const Shape& shape, DeltaKeyArguments p, cudaStream_t stream) {
  const int chunks = chunks_of(shape), window = kKeeps ? chunks : window_of(shape);
  const int64_t heads = heads_of(shape);
  p.all_heads = static_cast<int>(heads);
  p.chunks = chunks;
  p.last_rows_first = !kKeeps && kWidth == 128 && runs_hopper_code();  // as sweep_keys_by_warpgroups reads them
  if (p.stride == chunks && launch_at_once<Element, kRows, kWidth, kKeeps>(p, heads, stream)) return;
  p.prepared = nullptr;
  char* const records = p.records;
  for (p.first_chunk = 0; p.first_chunk < chunks; p.first_chunk += window, p.initial = p.last) {
    p.chunks = std::min(window, chunks - p.first_chunk);
    p.records = records + int64_t{DeltaKeyRecord<kRows>::kBytes} * (p.first_chunk / window % 2 * window);
    prepare<Element, kRows>(p, heads, p.first_chunk > 0, stream);
    sweep_forward<Element, kRows, kWidth, kKeeps>(p, heads, stream);
  }
}

template <typename Element, int kRows, int kWidth>
void launch_gradients(const MatrixStateBackward& a, const DeltaKeyArguments& p) {
  const int64_t heads = heads_of(a.shape);
  launch_windows<Element, kRows, kWidth, true>(a.shape, p, a.stream);
  DeltaKeyArguments reverse = p;
  reverse.chunks = p.stride;
  reverse.value = a.grad_values;
  reverse.out = a.grad_value;
  reverse.initial = a.grad_last_state;
  reverse.last = a.grad_initial_state;
  sweep_back<Element, kRows, kWidth>(reverse, heads, a.stream);
  DeltaKeyGradients g{};
  g.query = p.query;
  g.key = p.key;
  g.grad_values = a.grad_values;
  g.gate = p.gate;
  g.beta = p.beta;
  g.scale = p.scale;
  g.length = p.length;
  g.heads = p.heads;
  g.rows = p.rows;
  g.columns = p.columns;
  g.chunks = p.stride;
  g.sweeps = (p.columns + kWidth - 1) / kWidth;
  g.grad_query = a.grad_query;
  g.grad_key = a.grad_key;
  g.grad_gate = a.grad_key_gate;
  g.grad_beta = a.grad_beta;
  g.arrays = p.arrays;
  p.columns <= 64 ? gradients<Element, kRows, 64>(g, heads, a.stream)
                  : gradients<Element, kRows, 128>(g, heads, a.stream);
}

template <typename Element, int kRows, int kWidth>
void launch(const MatrixStateForward& a, const DeltaKeyArguments& p) {
  launch_windows<Element, kRows, kWidth, false>(a.shape, p, a.stream);
}
template <typename Element, int kRows, int kWidth>
void launch(const MatrixStateBackward& a, const DeltaKeyArguments& p) {
  launch_gradients<Element, kRows, kWidth>(a, p);
}

template <typename Element, typename Call>
void launch_element(const Call& a, const DeltaKeyArguments& p) {
  if (sweeps_wide(p.columns)) p.rows <= 64 ? launch<Element, 64, 128>(a, p) : launch<Element, 128, 128>(a, p);
  else p.rows <= 64 ? launch<Element, 64, 64>(a, p) : launch<Element, 128, 64>(a, p);
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
  DeltaKeyArguments p{};
  p.stride = places_of(shape);
  take_records(memory, shape, p);
  return memory.bytes();
}

size_t delta_key_workspace_bytes(const Shape& shape, const MatrixStateForm&) {
  Workspace memory(nullptr);
  DeltaKeyArguments p{};
  p.stride = chunks_of(shape);
  take_records(memory, shape, p);
  take_arrays(memory, shape);
  return memory.bytes();
}

void delta_key_forward(const MatrixStateForward& a) {
  Workspace memory(a.workspace);
  DeltaKeyArguments p = arguments_of(a);
  p.stride = places_of(a.shape);
  take_records(memory, a.shape, p);
  p.out = a.values;
  p.last = a.last_state;
  a.dtype == Dtype::kBFloat16 ? launch_element<__nv_bfloat16>(a, p) : launch_element<__half>(a, p);
}

void delta_key_backward(const MatrixStateBackward& a) {
  Workspace memory(a.workspace);
  DeltaKeyArguments p = arguments_of(a);
  p.stride = chunks_of(a.shape);
  take_records(memory, a.shape, p);
  p.arrays = take_arrays(memory, a.shape);
  a.dtype == Dtype::kBFloat16 ? launch_element<__nv_bfloat16>(a, p) : launch_element<__half>(a, p);
}

}  // namespace lethe::matrix_state

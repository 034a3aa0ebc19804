// The launches of the delta rule's kernels of wgmma (delta.hpp).
#include "optimized/cuda/matrix_state/hopper/delta.hpp"

#include <cstddef>

#include "optimized/cuda/matrix_state/delta_launch.hpp"
#include "optimized/cuda/matrix_state/hopper/delta_back_sweep.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_gradients.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_solve_beside.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep.cuh"
#include "optimized/cuda/matrix_state/hopper/maps.hpp"
#include "optimized/cuda/workspace.hpp"

#include <algorithm>

namespace lethe::matrix_state {
namespace {

int chunks_of(const Shape& shape) { return static_cast<int>((shape.key_length + kChunk - 1) / kChunk); }
int64_t heads_of(const Shape& shape) { return shape.batch * shape.heads; }

Gates gate_of(const MatrixStateInput& in) {
  return {static_cast<const float*>(in.key_gate.data), in.key_gate.batch_stride, in.key_gate.token_stride,
          in.key_gate.head_stride};
}

void allow_bytes(const void* kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "delta rule: shared memory");
}

DeltaSolveArguments solve_arguments(const MatrixStateInput& a, SolvedChunk* solved, const DeltaArrays& arrays) {
  DeltaSolveArguments p{};
  p.map = Maps{a}(a.key, a.shape.key_dim);
  p.key = a.key;
  p.gate = gate_of(a);
  p.beta = a.beta;
  p.length = a.shape.key_length;
  p.heads = static_cast<int>(a.shape.heads);
  p.all_heads = static_cast<int>(heads_of(a.shape));
  p.chunks = chunks_of(a.shape);
  p.solved = solved;
  p.transposed = arrays.inverse;
  p.cleared = arrays.stored;
  p.marks = static_cast<unsigned>(2 * (arrays.swept - arrays.stored));
  return p;
}

template <typename Element, int kBlocks>
void solve(const DeltaSolveArguments& p, cudaStream_t stream) {
  using Shared = SolveAlone<kBlocks>;
  const auto kernel = solve_chunks<Element, kBlocks>;
  allow_bytes(reinterpret_cast<const void*>(kernel), Shared::kBytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
             "delta rule: shared memory");
  const int64_t all = int64_t{1} * p.all_heads * p.chunks,
                ctas = std::min<int64_t>(int64_t{1} * multiprocessors() * Shared::kCtas,
                                         (all + Shared::kSolvers - 1) / Shared::kSolvers);
  kernel<<<static_cast<unsigned>(ctas), Shared::kThreads, Shared::kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

/// Beside a sweep on so many multiprocessors. False where that leaves too few to solve beside it: nothing is launched.
/// How many multiprocessors the device really has free decides the time alone.
template <typename Element, int kBlocks>
bool solve_beside(DeltaSolveArguments p, int64_t sweeping, int32_t* ready, cudaStream_t stream) {
  using Shared = SolveBesideShared<kBlocks>;
  constexpr int kSweptMeanwhile = 3;  // chunks of a head, while a warp solves one
  const int64_t places = multiprocessors(), left = places - sweeping;
  if (left < std::max<int64_t>(1, places / 8)) return false;
  const int64_t all = int64_t{1} * p.all_heads * p.chunks,
                most = std::min(places, (all + Shared::kSolvers - 1) / Shared::kSolvers);
  const auto meanwhile = [&](int64_t ctas) { return ctas * Shared::kSolvers * p.chunks / kSweptMeanwhile; };
  int64_t ctas = most, staying = std::min(most, left);  // one at least: each chunk has a CTA
  // Where those that stay are enough they are all there is, and the sweep begins with them: in pairs on neighbouring multiprocessors, since next to a
  // sweep one takes half as long again.
  const bool at_once = kBlocks == 2 && all <= meanwhile(staying / 2 * 2);
  if (at_once) ctas = staying = staying / 2 * 2;
  const int64_t a_round = ctas * Shared::kSolvers, rounds = (all - meanwhile(staying) + a_round - 1) / a_round;
  p.rounds = at_once ? 0 : static_cast<int>(std::max<int64_t>(1, rounds));
  p.staying = static_cast<int>(staying);
  p.ready = ready;
  const auto kernel = solve_chunks_beside<Element, kBlocks>;
  allow_bytes(reinterpret_cast<const void*>(kernel), Shared::kBytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
             "delta rule: shared memory");  // the sweep's, for which it needn't change
  cudaLaunchAttribute pairs{};
  pairs.id = cudaLaunchAttributeClusterDimension;
  pairs.val.clusterDim.x = 2, pairs.val.clusterDim.y = pairs.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Shared::kThreads);
  config.dynamicSmemBytes = Shared::kBytes;
  config.stream = stream;
  config.attrs = &pairs;  // no programmatic launch: a sweep reads its inputs early, so this kernel must start after they are written
  config.numAttrs = at_once ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, p), "delta rule: launch");
  return true;
}

DeltaSweepArguments sweep_arguments(const MatrixStateInput& a, const SolvedChunk* solved) {
  const Maps map{a};
  DeltaSweepArguments p{};
  p.maps[0] = map(a.query, a.shape.key_dim);
  p.maps[1] = map(a.key, a.shape.key_dim);
  p.maps[2] = map(a.value, a.shape.value_dim);
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.gate = gate_of(a);
  p.beta = a.beta;
  p.scale = static_cast<float>(a.scale);
  p.length = a.shape.key_length;
  p.heads = static_cast<int>(a.shape.heads);
  p.all_heads = static_cast<int>(heads_of(a.shape));
  p.chunks = chunks_of(a.shape);
  p.rows = static_cast<int>(a.shape.key_dim);
  p.columns = static_cast<int>(a.shape.value_dim);
  p.solved = solved;
  p.initial = a.initial_state;
  return p;
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
void sweep(const DeltaSweepArguments& p, cudaStream_t stream) {
  using Shared = DeltaSweepShared<kBlocks, kGroups, kSweepsByTiles<kBlocks, kGroups, kReads, kKeeps>>;
  const auto kernel = delta_sweep<Element, kBlocks, kGroups, kReads, kKeeps>;
  allow_bytes(reinterpret_cast<const void*>(kernel), Shared::kBytes);
  const int64_t ctas = int64_t{1} * p.all_heads * delta_ctas(p.columns, kGroups);
  launch_overlapping(kernel, dim3(static_cast<unsigned>(ctas)), Shared::kThreads, Shared::kBytes, stream, p);
}

template <typename Element, bool kReads, bool kKeeps>
void launch(const MatrixStateInput& a, SolvedChunk* solved, int32_t* ready, DeltaTokens* tokens, DeltaSweepArguments p,
            cudaStream_t stream) {
  DeltaSolveArguments to_solve = solve_arguments(a, solved, p.arrays);
  p.tokens = to_solve.tokens = tokens;
  if (p.rows <= 64) {
    constexpr int kTogether = DeltaSweepShared<1, 1>::kTogether;
    const int64_t sweeping = (int64_t{1} * p.all_heads * delta_ctas(p.columns, 1) + kTogether - 1) / kTogether;
    if (ready && solve_beside<Element, 1>(to_solve, sweeping, ready, stream)) p.ready = ready;
    else solve<Element, 1>(to_solve, stream);
    return sweep<Element, 1, 1, kReads, kKeeps>(p, stream);
  }
  const int64_t sweeping = int64_t{1} * p.all_heads * delta_ctas(p.columns, p.columns <= 64 ? 1 : 2);
  if (ready && solve_beside<Element, 2>(to_solve, sweeping, ready, stream)) p.ready = ready;
  else solve<Element, 2>(to_solve, stream);
  p.columns <= 64 ? sweep<Element, 2, 1, kReads, kKeeps>(p, stream) : sweep<Element, 2, 2, kReads, kKeeps>(p, stream);
}

template <bool kReads, bool kKeeps>
void launch(const MatrixStateInput& a, SolvedChunk* solved, int32_t* ready, DeltaTokens* tokens,
            const DeltaSweepArguments& p, cudaStream_t stream) {
  a.dtype == Dtype::kBFloat16 ? launch<__nv_bfloat16, kReads, kKeeps>(a, solved, ready, tokens, p, stream)
                              : launch<__half, kReads, kKeeps>(a, solved, ready, tokens, p, stream);
}

template <typename Element, int kBlocks, int kGroups>
void sweep_back(const DeltaSweepArguments& p, cudaStream_t stream) {
  using Shared = DeltaBackShared<kBlocks, kGroups>;
  const auto kernel = delta_back_sweep<Element, kBlocks, kGroups>;
  allow_bytes(reinterpret_cast<const void*>(kernel), Shared::kBytes);
  const int64_t ctas = int64_t{1} * p.all_heads * delta_ctas(p.columns, kGroups);
  if (p.arrays.stored)  // after the states' sweep
    return launch_overlapping(kernel, dim3(static_cast<unsigned>(ctas)), Shared::kThreads, Shared::kBytes, stream, p);
  kernel<<<static_cast<unsigned>(ctas), Shared::kThreads, Shared::kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

template <typename Element>
void sweep_back(const DeltaSweepArguments& p, cudaStream_t stream) {
  if (p.rows <= 64) return sweep_back<Element, 1, 1>(p, stream);
  p.columns <= 64 ? sweep_back<Element, 2, 1>(p, stream) : sweep_back<Element, 2, 2>(p, stream);
}

template <typename Element, int kTiles, bool kOneUnit>
void launch_gradients(const DeltaChunkGradients& p, cudaStream_t stream) {
  const auto kernel = delta_chunk_gradients<Element, kTiles, kOneUnit>;
  using Shared = ChunkGradientsShared<kTiles, kOneUnit>;
  allow_bytes(reinterpret_cast<const void*>(kernel), Shared::kBytes);
  const int64_t ctas = p.all_chunks * ((p.rows + 63) / 64);
  launch_overlapping(kernel, dim3(static_cast<unsigned>(ctas)), Shared::kThreads, Shared::kBytes, stream, p);
}

template <typename Element>
void launch_gradients(const DeltaChunkGradients& p, int64_t columns, cudaStream_t stream) {
  if (columns <= 64) return launch_gradients<Element, 1, true>(p, stream);
  // The CTA that sweeps both tiles of a state of more than 64 rows gives them one unit.
  p.rows <= 64 ? launch_gradients<Element, 2, false>(p, stream) : launch_gradients<Element, 2, true>(p, stream);
}

SolvedChunk* take_solved(Workspace& memory, const Shape& shape) {
  return memory.take<SolvedChunk>(heads_of(shape) * chunks_of(shape));
}
/// Of the forward, after that.
int32_t* take_ready(Workspace& memory, const Shape& shape) {
  return memory.take<int32_t>(heads_of(shape) * chunks_of(shape));
}
/// After that; null where the sweep prepares gates.
DeltaTokens* take_tokens(Workspace& memory, const Shape& shape) {
  return shape.key_dim > 64 ? memory.take<DeltaTokens>(heads_of(shape) * chunks_of(shape)) : nullptr;
}

}  // namespace

size_t delta_warpgroup_workspace_bytes(const Shape& shape) {
  Workspace memory(nullptr);
  take_solved(memory, shape);
  take_ready(memory, shape);
  take_tokens(memory, shape);
  return memory.bytes();
}

void delta_forward_by_warpgroups(const MatrixStateForward& a) {
  Workspace memory(a.workspace);
  SolvedChunk* const solved = take_solved(memory, a.shape);
  DeltaSweepArguments p = sweep_arguments(a, solved);
  p.maps[3] = Maps{a}.of_result(a.values, a.shape.value_dim);
  p.last = a.last_state;
  int32_t* const ready = take_ready(memory, a.shape);
  DeltaTokens* const tokens = take_tokens(memory, a.shape);
  if (!a.kept_states) return launch<true, false>(a, solved, ready, tokens, p, a.stream);
  Workspace left(a.kept_states);
  p.arrays = take_left_arrays(left, a.shape, true, inverse_parts(a.dtype));
  launch<true, true>(a, solved, ready, tokens, p, a.stream);
}

void delta_states_by_warpgroups(const MatrixStateInput& in, const DeltaArrays& arrays, void* workspace,
                                cudaStream_t stream) {
  Workspace memory(workspace);
  SolvedChunk* const solved = take_solved(memory, in.shape);
  DeltaSweepArguments p = sweep_arguments(in, solved);
  p.arrays = arrays;
  launch<false, true>(in, solved, nullptr, take_tokens(memory, in.shape), p, stream);
}

void delta_reverse_by_warpgroups(const MatrixStateBackward& a, const DeltaArrays& arrays, void* workspace) {
  Workspace memory(workspace);
  const SolvedChunk* const solved = arrays.keys ? nullptr : take_solved(memory, a.shape);
  DeltaSweepArguments p = sweep_arguments(a, solved);
  p.chunk_keys = solved ? solved->key_unit : arrays.keys->unit;
  static_assert(offsetof(SolvedChunk, key_norm) - offsetof(SolvedChunk, key_unit) == offsetof(ChunkKeys, norm));
  p.keys_stride = (solved ? sizeof(SolvedChunk) : sizeof(ChunkKeys)) / sizeof(float);
  const Maps map{a};
  p.maps[2] = map(a.grad_values, a.shape.value_dim);
  p.maps[3] = map.of_result(a.grad_value, a.shape.value_dim);
  p.value = a.grad_values;
  p.initial = a.grad_last_state;
  p.last = a.grad_initial_state;
  p.arrays = arrays;
  a.dtype == Dtype::kBFloat16 ? sweep_back<__nv_bfloat16>(p, a.stream) : sweep_back<__half>(p, a.stream);
}

void delta_gradients_by_warpgroups(const MatrixStateBackward& a, const DeltaArrays& arrays) {
  const Maps map{a};
  const Shape& shape = a.shape;
  DeltaChunkGradients p{};
  p.maps[0] = map(a.query, shape.key_dim);
  p.maps[1] = map(a.key, shape.key_dim);
  p.maps[2] = map(a.grad_values, shape.value_dim);
  p.maps[3] = map.of_result(a.grad_query, shape.key_dim);
  p.maps[4] = map.of_result(a.grad_key, shape.key_dim);
  p.query = a.query;
  p.key = a.key;
  p.grad_values = a.grad_values;
  p.gate = gate_of(a);
  p.beta = a.beta;
  p.scale = static_cast<float>(a.scale);
  p.length = shape.key_length;
  p.heads = static_cast<int>(shape.heads);
  p.chunks = chunks_of(shape);
  p.all_heads = static_cast<int>(heads_of(shape));
  p.all_chunks = heads_of(shape) * p.chunks;
  p.rows = static_cast<int>(shape.key_dim);
  p.columns = static_cast<int>(shape.value_dim);
  p.grad_gate = a.grad_key_gate;
  p.grad_beta = a.grad_beta;
  p.arrays = arrays;
  a.dtype == Dtype::kBFloat16 ? launch_gradients<__nv_bfloat16>(p, shape.value_dim, a.stream)
                              : launch_gradients<__half>(p, shape.value_dim, a.stream);
  if (!p.gate.log_forget || p.rows <= 64) return;
  const int64_t size = heads_of(shape) * shape.key_length;
  add_gate_shares<<<static_cast<unsigned>((size + 255) / 256), 256, 0, a.stream>>>(p.grad_gate, arrays.gate_share,
                                                                                   size);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

}  // namespace lethe::matrix_state

#pragma once
// The gate's gradient from the sums of dS, after the main backward kernel.
//
//   d log f_l = Σ_{t ≥ l} (u_t − Σ_i dS_it),   u_j = Σ_{i ≥ j} r_i e^{c_i − c_j} / Z_i,   Z_i = Σ_{j ≤ i} e^{c_i − c_j},   r_i = Σ_j dS_ij
//
// A row of dS sums to 0 in exact arithmetic: r_i is the rounding error of P and o, and of dS where it is summed in 16 bits, in that row's
// keys. It is subtracted from them in the proportions of a row whose logits are all equal, which the gate alone decides. Subtracted from
// the diagonal instead (d log f_l = Σ r_t − column sums), the errors of all rows after l would add up in d log f_l. Z and u are first-order
// recurrences, Z_i = 1 + f_i Z_{i−1} and u_j = r_j / Z_j + f_{j+1} u_{j+1}: scans of affine maps. Rows that share a float sum
// (row_groups.cuh) get its mean.
//
// `RowSums` is a kernel family's storage of r, a device functor with
//   join_groups(row, begin, end, queries)   by a whole CTA: replaces the parts of each shared sum that begins in [begin, end) by one mean
//   at(row, query)                          r of (batch, query head) `row` after that
//
// O(Tk), bound by latency. A head of few chunks has one CTA: forwards for Z, then backwards for u and the sum, chunk by chunk. Of longer heads every
// 1024 tokens have their own, in four passes (gradient_passes.cuh). Both give the same bits.

#include "optimized/cuda/gate/gradient_passes.cuh"

namespace lethe {
namespace gate_gradient {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32, kChunk = kThreads * kTokensAThread;
static_assert(kChunk == kChunkTokens);

// From so many chunks on the passes take less time.
inline constexpr int kChunksOfPasses = 3;

// A chunk's loads are issued before the chunk before it is computed: the kernel would wait for memory longer than it computes.
template <typename RowSums>
__global__ void __launch_bounds__(kThreads) finish_gate(const __grid_constant__ Parameters p, RowSums row_sums) {
  let_next_kernel_start();
  __shared__ Affine maps_of_warps[kWarps];
  __shared__ double sums_of_warps[kWarps];
  const int64_t row_of_heads = blockIdx.x;
  const HeadOfGates head(p, row_of_heads);

  row_sums.join_groups(row_of_heads, 0, p.query_length, p.query_length);
  __syncthreads();

  const int chunks = (head.key_length + kChunk - 1) / kChunk;
  struct Forwards {
    Gates gates;
    OfTokens sums;
  };
  const auto first_of = [](int chunk) { return chunk * kChunk + int(threadIdx.x) * kTokensAThread; };
  const auto load_forwards = [&](int chunk) {
    return Forwards{head.load(first_of(chunk), false), load_row_sums(p, row_sums, row_of_heads, first_of(chunk))};
  };
  float weight = 0;  // Z of the last token before the chunk
  Forwards forwards = load_forwards(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = first_of(chunk);
    const Steps steps = weight_steps(head, forwards.gates, first);
    const OfTokens sums = forwards.sums;
    if (chunk + 1 < chunks) forwards = load_forwards(chunk + 1);
    shares_of(steps, scan(steps.all, weight, maps_of_warps), sums, first, p.query_offset)
        .store(p.row_shares + head.row, first, head.key_length);
  }
  __syncthreads();

  // Lower threads hold later tokens, so an upward scan is a suffix sum; a thread's own four run backwards.
  struct Backwards {
    Gates gates;
    OfTokens shares, columns;
  };
  const auto first_behind = [](int chunk) {
    return chunk * kChunk + (kThreads - int(threadIdx.x) - 1) * kTokensAThread;
  };
  const auto load_backwards = [&](int chunk) {
    const int first = first_behind(chunk);
    return Backwards{head.load(first, true), OfTokens::load(p.row_shares + head.row, first, head.key_length),
                     OfTokens::load(p.column_sums + head.row, first, head.key_length)};
  };
  float carry = 0;    // u of the first token after the chunk
  double behind = 0;  // the sum over all later chunks
  Backwards backwards = load_backwards(chunks - 1);
#pragma unroll 1
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    const int first = first_behind(chunk);
    const Steps steps = taken_steps(head, backwards.gates, first, backwards.shares);
    const uint32_t nothing = without_gradient(backwards.gates.cuts, first);
    const OfTokens columns = backwards.columns;
    if (chunk > 0) backwards = load_backwards(chunk - 1);
    const SuffixSums sums(taken_of(steps, scan(steps.all, carry, maps_of_warps)), columns, first, head.key_length);
    const double inclusive = scan_warp(sums.sum);
    if (threadIdx.x % 32 == 31) sums_of_warps[threadIdx.x / 32] = inclusive;
    __syncthreads();
    const double after = sum_before(inclusive, sums.sum, behind, sums_of_warps, threadIdx.x / 32);
    for (const double sum : sums_of_warps) behind += sum;
    __syncthreads();
    store_gradient(p, row_of_heads, first, after, sums, nothing);
  }
}

}  // namespace gate_gradient

/// The arrays that launch_gate_gradient reads and writes.
struct GateGradientArguments {
  Shape shape;
  GatePrefix prefix;
  const float* column_sums;  ///< [B·Hq, N·128]  Σ_i dS_ij
  float*
      row_shares;  ///< [B·Hq, N·128]  scratch, by position: r_i / Z_i; then the passes' maps and sums of blocks: gate_gradient_floats()
  float* grad_log_forget;  ///< [B, Tk, Hq] contiguous
  cudaStream_t stream;
};

/// d log f from the row and column sums of dS: by one kernel, or by four where a head has several chunks, as its length alone decides.
template <typename RowSums>
void launch_gate_gradient(const GateGradientArguments& a, const RowSums& row_sums) {
  using namespace gate_gradient;
  const Shape& s = a.shape;
  const int64_t rows = s.batch * s.query_heads, ctas = rows * pieces(s.key_length), blocks = ctas * kPieceWarps;
  Affine* maps = reinterpret_cast<Affine*>(a.row_shares + rows * gate_blocks(s.key_length) * kGateBlock);
  const Parameters parameters{.column_sums = a.column_sums,
                              .row_shares = a.row_shares,
                              .weight_maps = maps,
                              .taken_maps = maps + blocks,
                              .sums = reinterpret_cast<double*>(maps + 2 * blocks),
                              .prefix = a.prefix,
                              .grad_log_forget = a.grad_log_forget,
                              .query_length = int(s.query_length),
                              .query_offset = int(s.key_length - s.query_length),
                              .query_heads = int(s.query_heads),
                              .key_blocks = int(gate_blocks(s.key_length)),
                              .pieces = int(pieces(s.key_length))};
  if (s.key_length <= (kChunksOfPasses - 1) * kChunk) {
    finish_gate<<<rows, kThreads, 0, a.stream>>>(parameters, row_sums);
    cuda_check(cudaGetLastError(), "backward: gate");
    return;
  }
  weigh_blocks<<<ctas, kPieceThreads, 0, a.stream>>>(parameters, row_sums);
  cuda_check(cudaGetLastError(), "backward: gate");
  launch_overlapping(share_rows<RowSums>, ctas, kPieceThreads, 0, a.stream, parameters, row_sums);
  launch_overlapping(sum_blocks_taken<RowSums>, ctas, kPieceThreads, 0, a.stream, parameters);
  launch_overlapping(suffix_sums<RowSums>, ctas, kPieceThreads, 0, a.stream, parameters);
}

}  // namespace lethe

#pragma once
// The gates of a chunk of 64 tokens, from their logarithms.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// The gates of a chunk, by time. A gate below e^-104, which no float holds, is a cut: it is in no sum.
struct ChunkGates {
  float sum[kChunk];       ///< log₂ of the gates up to here, without cuts
  float read[kChunk];      ///< read_scale · E_i
  float write[kChunk];     ///< write_scale · D_Cj
  int first_seen[kChunk];  ///< of the chunk: the last cut, or 0
  float total;             ///< E_C
  float entry;             ///< in reverse: the gate of the chunk's first token in time
};

struct RawGates {
  float first, second, entry;
};

__device__ inline bool is_cut(float log_forget) { return log_forget < -104.0f; }

/// Lane l's gates: of rows 2l and 2l + 1 of the chunk that begins at token `first`; 0 outside the sequence.
__device__ inline RawGates load_gates(const float* gate, int64_t stride, int64_t first, int64_t length, bool reverse,
                                      int lane) {
  const auto at = [&](int64_t token) { return token < length ? load_global(gate + token * stride) : 0.0f; };
  const int64_t row = 2 * lane;
  return {at(reverse ? first + kChunk - row : first + row), at(reverse ? first + kChunk - row - 1 : first + row + 1),
          at(first)};
}

/// A warp: the sums in double, rounded once. Row i's depends on rows up to i alone. kFactors: else sums and cuts alone.
template <bool kFactors = true>
__device__ inline void prepare_gates(ChunkGates& to, const RawGates& raw, float read_scale, float write_scale,
                                     bool reverse, int lane) {
  constexpr double kLog2e = std::numbers::log2e;
  const bool cut0 = is_cut(raw.first), cut1 = is_cut(raw.second);
  const uint32_t even = __ballot_sync(kAllLanes, cut0), odd = __ballot_sync(kAllLanes, cut1);
  const double first = cut0 ? 0.0 : raw.first * kLog2e, both = first + (cut1 ? 0.0 : raw.second * kLog2e);
  double before = both;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  const double whole = __shfl_sync(kAllLanes, before, 31);
  before = __shfl_up_sync(kAllLanes, before, 1);
  if (lane == 0) before = 0.0;
  // The last cut at or before rows 2l and 2l + 1, of the chunk: -1 where there is none.
  const auto last = [](uint32_t evens, uint32_t odds) {
    return max(evens ? 2 * (31 - __clz(evens)) : -1, odds ? 2 * (31 - __clz(odds)) + 1 : -1);
  };
  const uint32_t up_to = 0xffffffffu >> (31 - lane), below = up_to >> 1;
  const int cut_of[2] = {last(even & up_to, odd & below), last(even & up_to, odd & up_to)}, last_cut = last(even, odd);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int step = 2 * lane + i, row = reverse ? kChunk - 1 - step : step;
    const double sum = before + (i == 0 ? first : both);
    to.sum[row] = static_cast<float>(sum);
    if constexpr (kFactors) {
      to.read[row] = cut_of[i] < 0 ? read_scale * exp2f(static_cast<float>(sum)) : 0.0f;
      to.write[row] = last_cut <= step ? write_scale * exp2f(static_cast<float>(whole - sum)) : 0.0f;
    }
    to.first_seen[row] = max(cut_of[i], 0);
  }
  if (kFactors && lane == 0) {
    to.total = last_cut < 0 ? exp2f(static_cast<float>(whole)) : 0.0f;
    to.entry = is_cut(raw.entry) ? 0.0f : expf(raw.entry);
  }
}

}  // namespace lethe::matrix_state

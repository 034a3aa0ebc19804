#pragma once
// O of a forward with gates or a normaliser by one warpgroup. P of a chunk is computed beside the products of the chunk before, whose rows leave beside the
// first of this one. Queries and keys are handed back before P V, after which values are.

#include "optimized/cuda/matrix_state/hopper/forward_output.cuh"
#include "optimized/cuda/matrix_state/hopper/forward_weights.cuh"

namespace lethe::matrix_state {

/// What the warpgroup has of a chunk, and its products.
template <typename Call>
struct WeightedReader {
  using Element = typename Call::Element;
  using Shared = typename Call::Shared;
  using Major = ptx::Major;
  static constexpr bool kGated = Call::kGated, kHalf = Call::kHalf, kNormalized = Call::kNormalized;
  static constexpr int kBlocks = Shared::kBlocks;
  /// Whether the column that is divided by is one of the product's.
  static constexpr bool kPanels = Call::kPanels;
  const Call& call;
  const Place place;
  float sums[32 + (kNormalized ? 4 : 0)], row_unit[2];
  float divisor[2];  ///< where those are left: a lane's part of the rows' z·q
  uint32_t weights[16];

  __device__ __forceinline__ explicit WeightedReader(const Call& of) : call(of), place{of.warp, of.lane} {}
  /// Of the values' columns, and of the column that they are divided by.
  __device__ __forceinline__ float (&out())[32] { return reinterpret_cast<float(&)[32]>(sums); }
  __device__ __forceinline__ float (&divisors())[4] {
    return reinterpret_cast<float(&)[4]>(sums[kNormalized ? 32 : 0]);
  }

  /// The products with the rounded state: Q S, and with a normaliser Q z.
  __device__ __forceinline__ void issue_state(const char* queries, int rounded) {
    if constexpr (kPanels) {
      const uint64_t a = ptx::operand_descriptor(queries, kPanel),
                     b = with_column(call.rounded_state(rounded), call.state_panel(), 4 * rounded);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::wgmma<Major::kK, Major::kMN>(Element{}, sums, ptx::advance<kStepBytes<Major::kK>>(a, k),
                                          advance_with_column<1>(b, k), k > 0);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        issue_product<Element, Major::kK, Major::kMN>(out(), queries + i * kPanel,
                                                      call.rounded_state(rounded) + i * kPanel, i > 0);
      if constexpr (kNormalized) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
          issue_column<Element, Major::kK>(divisors(), queries + i * kPanel, call.small().columns[rounded][i], i > 0);
      }
    }
  }
  /// P V is added, and with a normaliser the rows' sums of P.
  __device__ __forceinline__ void issue_pairs(const char* values) {
    if constexpr (kPanels) {
      const uint64_t b = with_column(values, call.ones_panel(), 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::wgmma<Major::kMN>(Element{}, sums, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2],
                               weights[4 * k + 3], advance_with_column<0>(b, k), true);
    } else {
      issue_product<Element, Major::kMN>(out(), weights, values, true);
      if constexpr (kNormalized) issue_column<Element>(divisors(), weights, call.small().ones);
    }
  }
  __device__ __forceinline__ void fence() { ptx::fence_registers(sums); }

  /// Q S and Q z of the chunk in `stage`, from their units and times the gates, to P in its rows' units.
  __device__ __forceinline__ void scale_state(int stage, int rounded) {
    const int row = 16 * place.block + place.lane / 4;
    const auto factor = [&](int of, int half) {
      return (kHalf ? call.small().units[rounded][of] : 1.0f) *
             (kGated ? call.gates(stage).read[row + 8 * half] : 1.0f) * reciprocal_of_power(row_unit[half]);
    };
    scale_rows(out(), factor(0, 0), factor(0, 1));
    if constexpr (kNormalized) {
#pragma unroll
      for (int i = 0; i < 4; ++i) divisors()[i] *= factor(1, i / 2);
    }
  }

  /// P of the chunk in `stage`, weighted, as a left operand in its rows' units.
  __device__ __forceinline__ void take_weights(float (&scores)[32]) {
    if constexpr (Call::kLeavesDivisors) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float even = scores[2 * half], odd = scores[2 * half + 1];
#pragma unroll
        for (int n = 1; n < 8; ++n) {
          even += scores[4 * n + 2 * half];
          odd += scores[4 * n + 2 * half + 1];
        }
        divisor[half] = even + odd;
      }
    }
    pack_weights<Element>(weights, row_unit, scores);
  }

  /// Before P's sums are added to Q z, which lanes with t = 0 have.
  __device__ __forceinline__ void take_state() {
    if constexpr (Call::kLeavesDivisors) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_state = divisors()[2 * half] + divisors()[2 * half + 1];
        divisor[half] = fmaf(place.lane % 4 == 0 ? of_state : 0.0f, row_unit[half], divisor[half]);
      }
    }
  }
  /// z·q for the backward. Its P is in float: were it divided by z·q of P in 16 bits, the difference of both would be a gradient.
  __device__ __forceinline__ void leave_divisors(int n) const {
    if constexpr (Call::kLeavesDivisors) {
      float* const to = call.p.divisors + call.head * call.p.kept.stride + call.first_of(n);
      const float near = quad_sum(divisor[0]), far = quad_sum(divisor[1]);
      if (place.lane % 4 == 0) {
        to[16 * place.block + place.lane / 4] = near;
        to[16 * place.block + place.lane / 4 + 8] = far;
      }
    }
  }
};

/// A warpgroup: every chunk.
template <typename Call>
__device__ __forceinline__ void read_weighted(const Call& call) {
  auto& small = call.small();
  const int lane = call.lane;
  WeightedReader<Call> reader(call);
  ptx::RingPosition at, rounded;
  ptx::mbarrier_wait(&small.full[0], 0);
  {
    float scores[32];
    compute_first_weights(call, scores);
    reader.take_weights(scores);
  }
  for (int n = 0; n < call.chunks; ++n, rounded.advance(2)) {
    const ptx::RingPosition now = at;
    const char* const tiles = call.stage(now.index);
    float scores[32];
    ptx::mbarrier_wait(&small.state_full[rounded.index], rounded.parity);
    ptx::undefined(reader.sums);
    reader.fence();
    ptx::wgmma_fence();
    reader.issue_state(tiles, rounded.index);
    ptx::wgmma_commit();
    if (n > 0) send_rows(call, n - 1);
    if (n + 1 < call.chunks) {
      at.advance(call.p.stages);
      ptx::mbarrier_wait(&small.full[at.index], at.parity);
    }
    // P of the next chunk; after the last one its own once more, so that no product depends on a branch.
    ptx::undefined(scores);
    ptx::fence_registers(scores);
    ptx::wgmma_fence();
    call.issue_scores(scores, call.stage(at.index));
    ptx::wgmma_commit();
    if constexpr (Call::kNormalizer == Normalizer::kGradients) load_grad_values(call, call.first_of(n));
    ptx::wgmma_wait<1>();
    reader.fence();
    reader.scale_state(now.index, rounded.index);
    reader.take_state();
    reader.fence();
    ptx::mbarrier_wait(&small.values_full[now.index], now.parity);
    ptx::wgmma_fence();
    ptx::fence_registers(reader.weights);
    reader.issue_pairs(tiles + Call::Shared::kValue);
    ptx::wgmma_commit();
    reader.leave_divisors(n);
    ptx::wgmma_wait<1>();
    ptx::fence_registers(scores);
    arrive_warp(&small.state_empty[rounded.index], &small.empty[now.index], lane);
    call.weigh(scores, at.index);
    ptx::wgmma_wait<0>();
    reader.fence();
    ptx::fence_registers(reader.weights);
    arrive_warp(&small.values_empty[now.index], lane);
    const float row_unit[2] = {reader.row_unit[0], reader.row_unit[1]};
    float divisor[2] = {};
    // Under the weights, which come before the rows: these then have their registers.
    if constexpr (Call::kNormalized) take_divisors(call, divisor, reader.divisors());
    reader.take_weights(scores);
    ptx::fence_registers(reader.weights);
    place_rows(call, reader.out(), divisor, row_unit, n, reader.place);
  }
  send_rows(call, call.chunks - 1);
  if (!Call::kLoaderSends && lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state

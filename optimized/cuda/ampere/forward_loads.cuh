#pragma once
// Copies of a tile's keys and values, and of what the gate adds to them, to a ring of stages.

#include "optimized/cuda/ampere/forward_shared.cuh"

namespace lethe::ampere {

template <typename Element, typename Sizes>
struct ForwardLoads {
  using Shared = ForwardSharedOf<Element, Sizes>;
  static constexpr int kKeys = Sizes::kKeys, kStages = Sizes::kStages;
  using Copies = RowCopies<Sizes::kPitch, Sizes::kThreads>;

  const ForwardParameters& p;
  Shared& shared;
  const uint32_t key_address, value_address;
  const int near_block;                // the first of the tile's queries
  const int64_t row_blocks, row_bias;  // of the head's numbers of blocks, and of pairs of keys
  const Copies keys, values;

  __device__ __forceinline__ ForwardLoads(const ForwardParameters& p, Shared& shared, int first_position)
      : ForwardLoads(p, shared, first_position, shared.tile.batch, shared.tile.head / (p.query_heads / p.heads)) {}
  __device__ __forceinline__ ForwardLoads(const ForwardParameters& p, Shared& shared, int first_position, int batch,
                                          int head)
      : ForwardLoads(p, shared, first_position, batch, head, shared.tile.row) {}
  __device__ __forceinline__ ForwardLoads(const ForwardParameters& p, Shared& shared, int first_position, int batch,
                                          int head, int row)
      : p(p), shared(shared), key_address(ptx::shared_address(shared.key)),
        value_address(ptx::shared_address(shared.value)), near_block(first_position / tile::kColumns),
        row_blocks(int64_t{row} * (p.key_blocks + 1)), row_bias(int64_t{row} * p.key_blocks * (tile::kColumns / 2)),
        keys(p.key, batch, head, p.key_length, p.key_dim * sizeof(Element) / 2),
        values(p.value, batch, head, p.key_length, p.value_dim * sizeof(Element) / 2) {}

  static __device__ __forceinline__ constexpr int stage(int n) { return n & (kStages - 1); }

  /// Whether a block has positions of the tile's queries or later ones. There c_i and c_j may be large and their difference small: it is added to each
  /// logit, and no bias enters the product.
  __device__ __forceinline__ bool is_near(int n) const { return n * kKeys / tile::kColumns >= near_block; }

  /// kNear: of blocks that may be near. The bias of a near block, which is added after the product, comes with its values.
  template <bool kNear>
  __device__ __forceinline__ void load_keys(int n) const {
    keys.template copy<kKeys>(key_address + stage(n) * sizeof(shared.key[0]), n * kKeys);
    if (threadIdx.x < kKeys / 2)
      ptx::copy_chunk(ptx::shared_address(&shared.bias[stage(n)][threadIdx.x]),
                      p.scratch.key_bias + row_bias + n * (kKeys / 2) + threadIdx.x, !kNear || !is_near(n));
  }
  template <bool kNear>
  __device__ __forceinline__ void load_values(int n) const {
    values.template copy<kKeys>(value_address + stage(n) * sizeof(shared.value[0]), n * kKeys);
    if (kNear && is_near(n) && threadIdx.x < kKeys / 2)
      ptx::copy_chunk(ptx::shared_address(&shared.near_bias[stage(n)][threadIdx.x]),
                      p.scratch.key_bias + row_bias + n * (kKeys / 2) + threadIdx.x);
    if (threadIdx.x == Sizes::kThreads - 1)
      ptx::copy_chunk(ptx::shared_address(&shared.base[stage(n)]),
                      p.scratch.base_log2 + row_blocks + n * kKeys / tile::kColumns + 1);
  }

  /// The first stages of a tile whose last block is `last`: a group of K, then kStages − 1 of V of a block and K of the one before.
  __device__ __forceinline__ void begin(int last) const {
    load_keys<true>(last);
    ptx::copies_commit();
#pragma unroll
    for (int n = last; n > last - (kStages - 1); --n) {
      if (n >= 0) load_values<true>(n);
      if (n >= 1) load_keys<true>(n - 1);
      ptx::copies_commit();
    }
  }

  /// Waits for V of block n and K of the one before, in order from the last one; loads the next ones down to `first`.
  template <bool kNear>
  __device__ __forceinline__ void advance(int n, int first) const {
    ptx::copies_wait<kStages - 2>();
    __syncthreads();
    if (n - (kStages - 1) >= first) load_values<kNear>(n - (kStages - 1));
    if (n - kStages >= first) load_keys<kNear>(n - kStages);
    ptx::copies_commit();
  }
};

}  // namespace lethe::ampere

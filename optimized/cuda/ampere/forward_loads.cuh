#pragma once
// Copies of a tile's keys and values, and of what the gate adds to them, to a ring of stages.

#include "optimized/cuda/ampere/forward_shared.cuh"

namespace lethe::ampere {

/// As RowCopies::copy() of rows that are all there, from the thread's place in the first of them on; nothing is read unless `valid`.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void copy_from(const RowCopies<kDim, kThreads>& copies, uint32_t shared, const char* source,
                                          bool valid) {
  using Copies = RowCopies<kDim, kThreads>;
  constexpr int kLanes = Copies::kLanes, kRowsAtOnce = Copies::kRowsAtOnce;
  const int row = threadIdx.x / kLanes;
  shared += ptx::swizzled_chunk<kDim>(row, threadIdx.x % kLanes);
#pragma unroll
  for (int begin = 0; begin < kRows; begin += kRowsAtOnce, source += kRowsAtOnce * copies.token_stride * 2) {
    if (kRows % kRowsAtOnce != 0 && begin + row >= kRows) break;
#pragma unroll
    for (int i = 0; i < kDim / 8 / kLanes; ++i)
      ptx::copy_chunk(shared + tile_bytes<kDim>(begin) + i * kLanes * 16, source + i * kLanes * 16,
                      valid && i * kLanes < copies.chunks);
  }
}

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
      : p(p), shared(shared), key_address(ptx::shared_address(shared.key)),
        value_address(ptx::shared_address(shared.value)), near_block(first_position / tile::kColumns),
        row_blocks(int64_t{shared.tile.row} * (p.key_blocks + 1)),
        row_bias(int64_t{shared.tile.row} * p.key_blocks * (tile::kColumns / 2)),
        keys(p.key, batch, head, p.key_length, p.key_dim * sizeof(Element) / 2),
        values(p.value, batch, head, p.key_length, p.value_dim * sizeof(Element) / 2) {}

  static __device__ __forceinline__ constexpr int stage(int n) { return n & (kStages - 1); }

  /// Whether a block has positions of the tile's queries or later ones. There c_i and c_j may be large and their difference small: it is added to
  /// each logit, and no bias enters the product.
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

  /// What a thread copies next below the tile's own blocks: of K, of V and of the keys' bias.
  struct Sources {
    const char *keys, *values;
    const float4* bias;
  };

  /// Before advance() from block n on.
  __device__ __forceinline__ Sources sources_from(int n) const {
    const int of_keys = n - kStages, of_values = n - (kStages - 1);
    return {keys.data + of_keys * p.key_block_bytes, values.data + of_values * p.value_block_bytes,
            p.scratch.key_bias + row_bias + of_keys * (kKeys / 2) + threadIdx.x};
  }

  /// As advance<false>(), one block after the other, with fewer instructions: all keys are there.
  __device__ __forceinline__ void advance(Sources& from, int n, int first) const {
    ptx::copies_wait<kStages - 2>();
    __syncthreads();
    const int of_keys = n - kStages, of_values = n - (kStages - 1);
    copy_from<kKeys>(values, value_address + stage(of_values) * sizeof(shared.value[0]), from.values,
                     of_values >= first);
    copy_from<kKeys>(keys, key_address + stage(of_keys) * sizeof(shared.key[0]), from.keys, of_keys >= first);
    if (threadIdx.x < kKeys / 2)
      ptx::copy_chunk(ptx::shared_address(&shared.bias[stage(of_keys)][threadIdx.x]), from.bias, of_keys >= first);
    if (threadIdx.x == Sizes::kThreads - 1 && of_values >= first)
      ptx::copy_chunk(ptx::shared_address(&shared.base[stage(of_values)]),
                      p.scratch.base_log2 + row_blocks + unsigned(of_values) / (tile::kColumns / kKeys) + 1);
    ptx::copies_commit();
    from.keys -= p.key_block_bytes, from.values -= p.value_block_bytes, from.bias -= kKeys / 2;
  }
};

}  // namespace lethe::ampere

#pragma once
// Sections of heads: those whose tiles run at a time, because what they read shares the L2 cache.

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {

/// The heads of a section: of tiles of queries, which read keys and values, and of tiles of keys, which read what queries have. Then the queries of a
/// tile.
struct Sections {
  int queries, keys, tile_rows;
};

/// reads  element_bytes: of keys and values
inline int section_of_queries(const Shape& s, int64_t element_bytes) {
  return heads_in_cache(s.key_length * (s.key_dim + s.value_dim) * element_bytes * s.heads / s.query_heads,
                        s.batch * s.query_heads);
}

/// reads  query_bytes: what a tile of keys reads of a query
inline int section_of_keys(const Shape& s, int64_t query_bytes) {
  return heads_in_cache(s.query_length * query_bytes * (s.query_heads / s.heads), s.batch * s.heads);
}

#ifdef __CUDACC__
/// The place in the order of tiles of the head that has this rank by work, of `count` heads. Of long ones, with more than half of the first one's work,
/// there may be more than a section has: those beyond whole sections come first, beside the shortest heads. After the others their longest tiles would
/// begin when the rest is almost done.
__host__ __device__ inline int place_of_rank(int rank, int count, int long_heads, int section) {
  const int odd = long_heads > section ? long_heads % section : 0, beside = odd > 0 ? section - odd : 0;
  if (count - long_heads < beside) return rank;
  const int shortest = count - beside;  // their first rank
  return rank < odd ? rank : rank < shortest ? rank + beside : rank - shortest + odd;
}
#endif

}  // namespace lethe

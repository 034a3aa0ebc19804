#pragma once
// Sections of heads: those whose tiles run at a time, because what they read shares the L2 cache.

#include <algorithm>
#include <climits>

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/gate/visibility.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {

/// The heads of a section: of tiles of queries, which read keys and values, and of tiles of keys, which read what queries have. Then the queries of a
/// tile, and the least heads for tiles of queries where sequences are short.
struct Sections {
  int queries, keys, tile_rows, short_queries;
};

/// The same where a tile reads a window of a head's `tokens`: at a time a section reads a window of each head, and as many tokens as its running
/// tiles have. Sections of nearly equal size: the shortest tiles of the last one end the kernel.
///
/// reads  head_bytes: of all tokens; running: tokens of all tiles that run at a time; most: heads, where whole ones in the cache are fewer
inline int heads_in_cache(int64_t head_bytes, int64_t heads, int64_t tokens, int64_t window, int64_t running,
                          int64_t most = INT_MAX) {
  const int whole = heads_in_cache(head_bytes, heads);
  if (window >= tokens) return whole;
  const int64_t in_cache = heads_in_cache(head_bytes / tokens, INT_MAX),  // tokens
      limit = std::min(heads, std::max<int64_t>(whole, most)),
                section = std::clamp<int64_t>((in_cache - running) / window, whole, limit),
                sections = (heads + section - 1) / section;
  return static_cast<int>((heads + sections - 1) / sections);
}

/// reads  element_bytes: of keys and values; running: queries of all tiles that run at a time; most: as above
inline int section_of_queries(const Shape& s, int64_t element_bytes, int window = kNoWindow, int64_t running = 0,
                              int64_t most = INT_MAX) {
  return heads_in_cache(s.key_length * (s.key_dim + s.value_dim) * element_bytes * s.heads / s.query_heads,
                        s.batch * s.query_heads, s.key_length, window, running, most);
}

/// Some heads at least of several sequences: the tiles of fewer end unevenly.
///
/// reads  query_bytes: what a tile of keys reads of a query; running: keys of all tiles that run at a time; most: as above; of_sequences: the least
inline int section_of_keys(const Shape& s, int64_t query_bytes, int window, int64_t running, int64_t most,
                           int64_t of_sequences) {
  const int64_t heads = s.batch * s.heads;
  const int section = heads_in_cache(s.query_length * query_bytes * (s.query_heads / s.heads), heads, s.query_length,
                                     window, running, most);
  return window == kLargestWindow ? std::max<int>(section, std::min(heads, of_sequences)) : section;
}

#ifdef __CUDACC__
/// The place in the order of tiles of the head that has this rank by work, of `count` heads. Of long ones, with more than half of the first one's
/// work, there may be more than a section has: those beyond whole sections come first, beside the shortest heads. After the others their longest
/// tiles would begin when the rest is almost done.
__host__ __device__ inline int place_of_rank(int rank, int count, int long_heads, int section) {
  const int odd = long_heads > section ? long_heads % section : 0, beside = odd > 0 ? section - odd : 0;
  if (count - long_heads < beside) return rank;
  const int shortest = count - beside;  // their first rank
  return rank < odd ? rank : rank < shortest ? rank + beside : rank - shortest + odd;
}
#endif

}  // namespace lethe

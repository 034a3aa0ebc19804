#pragma once
// The keys that a query sees, and the queries that see a key. For the kernels' masks, their boundary search and the host: includes nothing of CUDA.

#ifdef __CUDACC__
#define LETHE_HOST_DEVICE __host__ __device__
#else
#define LETHE_HOST_DEVICE
#endif

namespace lethe {

/// Query i sees key j, both by position among the keys, where first_key(i) ≤ j ≤ last_key(i): the past, from the last cut on.
///
/// `Cuts`, of one (batch, query head), has the first of these for masks over queries, the second for masks over keys:
///   last_cut(i)  the last cut at or before i, 0 where there is none
///   next_cut(j)  the first cut after j, INT_MAX where there is none
/// A window or a document boundary is one more member: first_key() takes a maximum with it, end_query() a minimum.
template <typename Cuts>
struct Visibility {
  Cuts cuts;

  LETHE_HOST_DEVICE int first_key(int query) const { return cuts.last_cut(query); }
  LETHE_HOST_DEVICE static int last_key(int query) { return query; }
  /// A key's queries are those of [first_query, end_query).
  LETHE_HOST_DEVICE static int first_query(int key) { return key; }
  LETHE_HOST_DEVICE int end_query(int key) const { return cuts.next_cut(key); }

  /// Whether the tile of queries from `query` on and keys up to `key` needs the causal mask.
  LETHE_HOST_DEVICE static bool masks_last_key(int query, int key) { return last_key(query) < key; }
};

}  // namespace lethe

#pragma once
// The keys that a query sees, and the queries that see a key. For the kernels' masks, their boundary search and the host: includes nothing of CUDA.

#ifdef __CUDACC__
#define LETHE_HOST_DEVICE __host__ __device__
#else
#define LETHE_HOST_DEVICE
#endif

namespace lethe {

/// kNoWindow: of a call without a window or several sequences. kLargestWindow: the largest of a call with either; it hides nothing, but by it a
/// family chooses kernels and the order of its tiles. Results do not depend on it, but for rounding.
inline constexpr int kNoWindow = 1 << 30, kLargestWindow = kNoWindow - 1;

/// Query i sees key j, both by position among the keys, where first_key(i) ≤ j ≤ last_key(i): the past, from the last cut and the window's begin on.
///
/// `Cuts`, of one (batch, query head), has the first of these for masks over queries, the second for masks over keys:
///   last_cut(i)  the last cut at or before i, 0 where there is none
///   next_cut(j)  the first cut after j, INT_MAX where there is none
/// A document boundary is a cut.
template <typename Cuts>
struct Visibility {
  Cuts cuts;
  int window;  // keys that a query sees at most, its own included

  LETHE_HOST_DEVICE int first_key(int query) const {
    const int cut = cuts.last_cut(query), first = query - window + 1;
    return cut > first ? cut : first;
  }
  LETHE_HOST_DEVICE static int last_key(int query) { return query; }
  /// A key's queries are those of [first_query, end_query).
  LETHE_HOST_DEVICE static int first_query(int key) { return key; }
  LETHE_HOST_DEVICE int end_query(int key) const {
    const int cut = cuts.next_cut(key), end = key + window;
    return cut < end ? cut : end;
  }

  /// Whether the tile of queries from `query` on and keys up to `key` needs the causal mask.
  LETHE_HOST_DEVICE static bool masks_last_key(int query, int key) { return last_key(query) < key; }
};

}  // namespace lethe

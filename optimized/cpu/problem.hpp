#pragma once
// What forward and backward share: sizes, the gate's prefix sums, block sizes, and how tasks reach the cores.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/subnormals.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/attention.hpp"

namespace lethe::cpu {

/// Pruning is decided for tiles of kQueryRows queries and blocks of this many keys.
inline constexpr int64_t kKeyBlock = 64;

/// Rows of a tile that share the float64 origin of their biases, at most, and what they forget, at most: no bias within a frame is a
/// large number.
inline constexpr int64_t kFrameRows = 32;
inline constexpr double kFrameDecay = 32;

inline constexpr double kCut = -1e4;  ///< log f below this cuts: no logits can bring such a weight back

struct Sizes {
  int64_t batch, query_length, key_length, query_heads, heads, key_dim, value_dim;

  Sizes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)
      : batch(query.size(0)), query_length(query.size(1)), key_length(key.size(1)), query_heads(query.size(2)),
        heads(key.size(2)), key_dim(query.size(3)), value_dim(value.size(3)) {}

  int64_t offset() const { return key_length - query_length; }  ///< position of query row 0
  int64_t group() const { return query_heads / heads; }         ///< query heads that read one key head
  int64_t all_heads() const { return batch * query_heads; }  ///< `head` below counts them, (batch, query head), through
  int64_t tiles() const { return (query_length + kQueryRows - 1) / kQueryRows; }
};

/// The gate's running sum c_t = Σ_{l ≤ t} log f_l and its cuts, for every (batch, query head).
///
/// A gate of zero (log f = −∞, or below kCut) cuts the past off exactly: c goes on as though log f were 0 there, so that no cut's
/// magnitude drowns the gates after it, and first[.., t] is the first position that t still sees.
struct GatePrefix {
  std::vector<double> sum;     ///< [B, Hq, Tk]
  std::vector<int64_t> first;  ///< [B, Hq, Tk]
};

/// throws  c10::Error where a log_forget is positive or NaN
GatePrefix gate_prefix(const at::Tensor& log_forget);

/// How many blocks of kKeyBlock keys each tile of kQueryRows queries skips, [B, Hq, tiles] int32.
///
///   skip block n where every D_ij < δ = −2U − log Tk + log ε; D is largest for the tile's first row and the block's last key
///
/// source   Adaptive Computation Pruning, Eq. 3 and Appendix A
/// reads    query, key [B, H, T, D] in float32 or float64; logit_bound as forgetting_attention; U from the norms where it is absent
/// returns  zeros without a tolerance
/// throws   c10::Error where a bound is negative or NaN
/// cost     O(tiles · log Tk) a head by binary search (D falls with the distance), plus one pass over query and key for U
at::Tensor pruning_boundary(const Sizes& sizes, const GatePrefix& prefix, const at::Tensor& query,
                            const at::Tensor& key, double scale, std::optional<double> log_pruning_tolerance,
                            const std::optional<at::Tensor>& logit_bound);

/// `tensor` [B, T, H, D] as [B, H, T, D] in `dtype`, contiguous. The copy pays: with the rows of all heads interleaved, a tile's rows
/// lie a power of two apart and share a few sets of the cache, which took a quarter of the speed.
inline at::Tensor by_head(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.transpose(1, 2).contiguous().to(dtype);
}

/// The way back, for a result.
inline at::Tensor by_position(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.to(dtype).transpose(1, 2).contiguous();
}

/// Row `row` of one (batch, head) of a contiguous tensor [B, H, T, D]; head counts batches and heads through.
template <typename Scalar>
Scalar* head_row(const at::Tensor& tensor, int64_t head, int64_t row) {
  return static_cast<Scalar*>(tensor.data_ptr()) + (head * tensor.size(2) + row) * tensor.size(3);
}

/// Scratch memory, uninitialised, on a boundary of 64 bytes: the matrix products may sum in another order elsewhere, and equal calls
/// shall give equal bits.
template <typename Scalar>
class Buffer {
 public:
  explicit Buffer(int64_t size) : memory_(at::empty({size}, at::CppTypeToScalarType<Scalar>::value)) {}
  Scalar* data() { return memory_.mutable_data_ptr<Scalar>(); }
  int64_t size() const { return memory_.numel(); }

 private:
  at::Tensor memory_;
};

/// Calls run(next) on every thread of Torch's pool; next() hands out 0 … count − 1, each once, first come first served, so that
/// tasks of unequal size keep all of them busy. Scratch memory belongs at the top of run.
template <typename Run>
void parallel_tasks(int64_t count, const Run& run) {
  std::atomic<int64_t> taken{0};
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    const SingleThreadedProducts alone;
    const FlushSubnormals flush;
    run([&]() -> std::optional<int64_t> {
      const int64_t task = taken.fetch_add(1);
      return task < count ? std::optional<int64_t>(task) : std::nullopt;
    });
  });
}

/// How many of the `rows` from `position` on one origin serves. A single strong gate ends a frame: two tokens behind it may be next to
/// each other, and the difference of their biases, each as large as that gate, would have its rounding error.
inline int64_t frame_rows(const double* sum, int64_t position, int64_t rows) {
  const int64_t most = std::min(rows, kFrameRows);
  int64_t count = 1;
  while (count < most && sum[position] - sum[position + count] <= kFrameDecay) ++count;
  return count;
}

/// The biases of rows × columns of one head, see Tile, and the visible columns of each row.
///
/// reads  sum, first: the head's prefix; positions of the first row and of the first column
template <typename Scalar>
struct TileBiases {
  std::vector<Scalar> row, column;
  std::vector<int64_t> begin, end;
  explicit TileBiases(int64_t columns) : row(kFrameRows), column(columns), begin(kFrameRows), end(kFrameRows) {}

  void fill(const double* sum, const int64_t* first, int64_t row_position, int64_t rows, int64_t column_position,
            int64_t columns) {
    const double origin = sum[row_position];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = row_position + i;
      row[i] = static_cast<Scalar>(sum[position] - origin);
      begin[i] = std::max<int64_t>(first[position] - column_position, 0);
      end[i] = std::min(position + 1 - column_position, columns);
    }
    for (int64_t j = 0; j < columns; ++j) column[j] = static_cast<Scalar>(origin - sum[column_position + j]);
  }

  Tile<Scalar> tile(int64_t rows, int64_t columns, Scalar scale) const {
    return {rows, columns, scale, row.data(), column.data(), begin.data(), end.data()};
  }
};

}  // namespace lethe::cpu

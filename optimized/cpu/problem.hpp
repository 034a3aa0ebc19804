#pragma once
// Shared by forward and backward: sizes, block sizes, the layout of a head's rows, and the distribution of tasks.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/subnormals.hpp"
#include "optimized/cpu/tile_kernels.hpp"
#include "optimized/operators/attention.hpp"

namespace lethe::cpu {

/// Pruning is decided for tiles of kQueryRows queries and blocks of this many keys.
inline constexpr int64_t kKeyBlock = kCpuKeyBlock;

/// Rows of a strip beside the diagonal.
inline constexpr int64_t kStripRows = 32;

struct Sizes {
  int64_t batch, query_length, key_length, query_heads, heads, key_dim, value_dim;
  int64_t window;  ///< at most key_length, which hides nothing

  explicit Sizes(const AttentionInputs& in)
      : batch(in.query.size(0)), query_length(in.query.size(1)), key_length(in.key.size(1)),
        query_heads(in.query.size(2)), heads(in.key.size(2)), key_dim(in.query.size(3)), value_dim(in.value.size(3)),
        window(std::min(in.window.value_or(key_length), key_length)) {}

  /// The first position inside the window of the query at `position`.
  int64_t first_seen(int64_t position) const { return std::max<int64_t>(position - window + 1, 0); }

  int64_t offset() const { return key_length - query_length; }  ///< position of query row 0
  int64_t group() const { return query_heads / heads; }         ///< query heads that read one key head
  int64_t all_heads() const { return batch * query_heads; }     ///< `head` below counts (batch, query head) pairs
  int64_t tiles() const { return (query_length + kQueryRows - 1) / kQueryRows; }
};

/// `tensor` [B, T, H, D] in `dtype` with rows that a matrix product can read in place; copied only where they are not.
inline at::Tensor with_readable_rows(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor rows = tensor.to(dtype);
  const bool readable = (rows.stride(3) == 1 || rows.size(3) == 1) && rows.stride(1) >= rows.size(3) &&
                        rows.stride(1) <= std::numeric_limits<int>::max();
  return readable ? rows : rows.contiguous();
}

/// The same [B, T, H, D] with each head's rows side by side in memory.
inline at::Tensor packed(const at::Tensor& tensor) { return tensor.transpose(1, 2).contiguous().transpose(1, 2); }

/// Calls run(row, rows, column, columns) for parts of rows × columns that together hold every pair with column ≤ diagonal + row: the columns before
/// the diagonal, then strips of rows beside it, each up to its last row's column.
template <typename Run>
void for_each_seen_part(int64_t rows, int64_t columns, int64_t diagonal, const Run& run) {
  const int64_t before = std::min(std::max<int64_t>(diagonal, 0), columns);
  if (before > 0) run(0, rows, 0, before);
  for (int64_t row = 0; row < rows && before < columns; row += kStripRows) {
    const int64_t strip = std::min(kStripRows, rows - row), end = std::min(diagonal + row + strip, columns);
    if (end > before) run(row, strip, before, end - before);
  }
}

/// The same pairs in parts for products that add up over rows: the columns before the diagonal, then strips of columns beside it, each from the first
/// row that sees one of them on.
template <typename Run>
void for_each_seen_part_by_columns(int64_t rows, int64_t columns, int64_t diagonal, const Run& run) {
  const int64_t before = std::min(std::max<int64_t>(diagonal, 0), columns);
  if (before > 0) run(0, rows, 0, before);
  for (int64_t row = 0; row < rows; row += kStripRows) {
    const int64_t begin = std::max(diagonal + row, before), end = std::min(diagonal + row + kStripRows, columns);
    if (end > begin) run(row, rows - row, begin, end - begin);
  }
}

/// The columns that the strips of for_each_seen_part hold of the rows from `row` on, `count` of one strip or two.
inline int64_t strip_columns(int64_t row, int64_t count, int64_t columns, int64_t diagonal) {
  const int64_t strips = (row + count + kStripRows - 1) / kStripRows;
  return std::clamp<int64_t>(diagonal + strips * kStripRows, 0, columns);
}

/// The distance between the rows of scratch memory for `columns` numbers each.
inline int64_t row_stride(int64_t columns) { return (columns + kRowUnit - 1) / kRowUnit * kRowUnit; }

/// The number of reads of a key from which a copy of its head pays: with the rows of all heads interleaved, those of one are a power of two apart and
/// share a few sets of the cache.
inline constexpr int64_t kReadsThatPayACopy = 8;

/// Whether the tiles' queries read the keys from position `first` on as often as that.
///
/// reads  boundary [B, Hq, tiles]
inline bool copy_pays(const Sizes& sizes, int64_t first, const int32_t* boundary) {
  int64_t reads = 0;
  for (int64_t i = 0; i < sizes.all_heads() * sizes.tiles(); ++i)
    reads += sizes.offset() + i % sizes.tiles() * kQueryRows - boundary[i] * kKeyBlock;
  return reads >= kReadsThatPayACopy * sizes.batch * sizes.heads * (sizes.key_length - first);
}

/// `tensor` [B, T, H, D] for HeadRows, in `dtype`; packed where asked.
inline at::Tensor rows_of(const at::Tensor& tensor, at::ScalarType dtype, bool is_packed) {
  return is_packed ? packed(tensor).to(dtype) : with_readable_rows(tensor, dtype);
}

/// The rows of every (batch, head) of a tensor [B, T, H, D] that with_readable_rows or packed returned. `head` counts (batch, head) pairs; row 0 of
/// the tensor has position `first_position`.
template <typename Scalar>
class HeadRows {
 public:
  explicit HeadRows(const at::Tensor& tensor, int64_t first_position = 0)
      : data_(static_cast<Scalar*>(tensor.data_ptr())), heads_(tensor.size(2)), batch_stride_(tensor.stride(0)),
        head_stride_(tensor.stride(2)), stride_(tensor.stride(1)), first_position_(first_position) {}

  Scalar* at(int64_t head, int64_t position) const {
    return data_ + head / heads_ * batch_stride_ + head % heads_ * head_stride_ +
           (position - first_position_) * stride_;
  }
  int64_t stride() const { return stride_; }

 private:
  Scalar* data_;
  int64_t heads_, batch_stride_, head_stride_, stride_, first_position_;
};

/// Scratch memory, uninitialised, on a boundary of 64 bytes: at other addresses the matrix products may sum in another order, and equal calls must
/// return equal bits.
template <typename Scalar>
class Buffer {
 public:
  explicit Buffer(int64_t size) : memory_(at::empty({size}, at::CppTypeToScalarType<Scalar>::value)) {}
  Scalar* data() { return memory_.mutable_data_ptr<Scalar>(); }
  const Scalar* const_data() const { return memory_.const_data_ptr<Scalar>(); }
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

}  // namespace lethe::cpu

#pragma once
// The forget gates of one call: prefix sums over the visited positions, and the biases of a tile computed from them.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/tile_kernels.hpp"

namespace lethe::cpu {

/// The largest number of rows of a tile that share the float64 origin of their biases, and the largest decay over them: no bias within a frame is
/// large.
inline constexpr int64_t kFrameRows = 32;
inline constexpr double kFrameDecay = 32;

/// A gate outside all prefix sums: below kStrongGate, or a cut (log f = −∞).
struct StrongGate {
  int64_t position;
  double log_forget;
};

/// One head's gates from position `begin` on, the first that any query visits.
///
///   D_ij = sum(i) − sum(j) + Σ log f of the strong gates in (j, i]
///
/// The strong gates are added one by one, the nearest first, so D keeps its relative accuracy for any finite gates.
struct HeadGates {
  const double* sums;  ///< [Tk − begin], in which a strong gate counts as 0
  int64_t begin;
  const std::vector<StrongGate>& strong;  ///< by position

  double sum(int64_t position) const { return sums[position - begin]; }
  /// The number of strong gates at positions ≤ `position`.
  int64_t strong_up_to(int64_t position) const;
  /// Whether D_ij < threshold, or −∞: the pair has no weight.
  bool is_below(int64_t i, int64_t j, double threshold) const;
};

/// The gates of every (batch, query head).
class GatePrefix {
 public:
  /// reads   log_forget [B,Tk,Hq]; first_visited [B·Hq], where each head's sums begin
  /// throws  c10::Error where a visited log_forget is positive or NaN
  GatePrefix(const at::Tensor& log_forget, std::vector<int64_t> first_visited);

  HeadGates head(int64_t head) const {
    return {sums_.const_data() + offset_[head], first_visited_[head], strong_[head]};
  }
  /// The first position that a query of any head visits.
  int64_t first_visited() const { return first_visited_of_all_; }

 private:
  std::vector<int64_t> first_visited_, offset_;
  int64_t first_visited_of_all_ = 0;
  Buffer<double> sums_;
  std::vector<std::vector<StrongGate>> strong_;
};

/// The number of `rows` from `position` on that one origin serves. A strong gate ends a frame: two tokens after it may be neighbours, and the
/// difference of their biases, each as large as that gate, would have its rounding error.
int64_t frame_rows(const HeadGates& gates, int64_t position, int64_t rows);

/// The biases of rows × columns of one head, see Tile, and the visible columns of each row.
template <typename Scalar>
struct TileBiases {
  std::vector<Scalar> row, column;
  std::vector<int64_t> begin, end;
  int64_t window;
  TileBiases(int64_t columns, int64_t window)
      : row(kFrameRows), column(columns), begin(kFrameRows), end(kFrameRows), window(window) {}

  /// reads  rows: of one frame; positions of the first row and of the first column
  void fill(const HeadGates& gates, int64_t row_position, int64_t rows, int64_t column_position, int64_t columns) {
    double origin = gates.sum(row_position);
    for (int64_t i = 0; i < rows; ++i) row[i] = static_cast<Scalar>(gates.sum(row_position + i) - origin);
    // From the rows back, since a strong gate is in the biases of all columns before it.
    int64_t right = std::min(columns, row_position + rows - column_position), left = 0;
    for (int64_t i = gates.strong_up_to(row_position); right > 0; right = std::min(right, left)) {
      left = i > 0 ? std::max<int64_t>(gates.strong[i - 1].position - column_position, 0) : 0;
      for (int64_t j = left; j < right; ++j) column[j] = static_cast<Scalar>(origin - gates.sum(column_position + j));
      if (left == 0 || std::isinf(gates.strong[i - 1].log_forget)) break;
      origin += gates.strong[--i].log_forget;
    }
    for (int64_t i = 0; i < rows; ++i) {
      begin[i] = std::max(left, row_position + i - window + 1 - column_position);
      end[i] = std::min(row_position + i + 1 - column_position, columns);
    }
  }

  Tile<Scalar> tile(int64_t rows, int64_t columns, Scalar scale) const {
    return {rows, columns, scale, row.data(), column.data(), begin.data(), end.data()};
  }
};

}  // namespace lethe::cpu

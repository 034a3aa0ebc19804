#pragma once
// Heads for the fast-weight rules: any shape, extreme gates, and a loss on all that a form returns.

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/heads.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {

struct StateShape {
  int64_t queries, keys, key_dim, value_dim;
};

inline std::string describe(const StateShape& shape) {
  return "Tq = " + std::to_string(shape.queries) + ", Tk = " + std::to_string(shape.keys) +
         ", K = " + std::to_string(shape.key_dim) + ", V = " + std::to_string(shape.value_dim);
}

/// One token, K < V, K > V, one dimension, more dimensions than tokens, and sizes that are no multiple of anything.
inline constexpr StateShape kStateShapes[] = {{1, 1, 4, 4},   {1, 1, 1, 1},    {2, 2, 3, 7},   {19, 19, 7, 3},
                                              {19, 19, 3, 7}, {37, 37, 1, 5},  {37, 37, 5, 1}, {13, 13, 29, 2},
                                              {1, 67, 6, 11}, {41, 67, 13, 17}};

/// A random head of that shape with every input of the linear family.
inline Head random_head(const StateShape& shape, Gate gate, uint64_t seed = 7) {
  Head head = random_head(shape.keys, shape.key_dim, shape.value_dim, gate, seed);
  head.query = head.query.bottomRows(shape.queries).eval();
  fill_linear_inputs(head, gate, seed);
  return head;
}

/// Difficult log gates: zero, one and their neighbours, alone and mixed.
inline constexpr double kExtremeGates[] = {
    -std::numeric_limits<double>::infinity(), -27.631021115928547 /* log 1e-12 */,
    -9.210340371976182 /* log 1e-4 */,        -2.5,
    -1.00000005e-7 /* log(1 − 1e-7) */,       0.0};

/// A gate [rows, columns] drawn evenly from kExtremeGates.
inline Matrix<double> mixed_gates(Eigen::Index rows, Eigen::Index columns, uint64_t seed) {
  std::mt19937_64 generator(seed);
  return Matrix<double>::NullaryExpr(rows, columns,
                                     [&] { return kExtremeGates[generator() % std::size(kExtremeGates)]; });
}

inline double inner(const Matrix<double>& a, const Matrix<double>& b) { return a.cwiseProduct(b).sum(); }

/// Σ over everything that a form returns of its product with a random tensor.
struct LinearLoss {
  Matrix<double> values, state;

  explicit LinearLoss(const Head& head, uint64_t seed = 11)
      : values(random_matrix(head.query.rows(), head.value.cols(), seed)),
        state(random_matrix(head.key.cols(), head.value.cols(), seed + 1)) {}
  double of(const Output& output) const { return inner(output.values, values) + inner(output.state, state); }
};

}  // namespace lethe

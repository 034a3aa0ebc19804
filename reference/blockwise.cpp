#include "reference/blockwise.hpp"

#include <algorithm>
#include <vector>

#include "reference/biased_softmax.hpp"
#include "reference/decay_bias.hpp"

namespace lethe::reference::blockwise {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Range {
  Eigen::Index first, size;
};

// Walks the grid in the order of the papers: for each row of blocks its visited key blocks, oldest first.
class Grid {
 public:
  Grid(const Head& head, Blocks blocks, double threshold)
      : head_(head), blocks_(blocks), bias_(head.log_forget),
        first_column_(computation_pruning::boundary_by_search(head.log_forget, head.query.rows(), blocks, threshold)) {}

  Eigen::Index rows() const { return std::ssize(first_column_); }
  Range queries(Eigen::Index row) const { return range(row, blocks_.query, head_.query.rows()); }

  // The key blocks from the boundary to the one that holds the last query's own position.
  std::vector<Range> keys(Eigen::Index row) const {
    const Range rows = queries(row);
    const Eigen::Index last_position = position_of(head_, rows.first + rows.size - 1);
    std::vector<Range> visited;
    for (Eigen::Index column = first_column_[row]; column * blocks_.key <= last_position; ++column) {
      visited.push_back(range(column, blocks_.key, head_.key.rows()));
    }
    return visited;
  }

  // S = scale · Q Kᵀ + D, −∞ above the diagonal. [queries, keys]
  Matrix<double> logits(const Range& queries, const Range& keys) const {
    Matrix<double> logits = head_.scale * head_.query.middleRows(queries.first, queries.size) *
                            head_.key.middleRows(keys.first, keys.size).transpose();
    for (Eigen::Index r = 0; r < queries.size; ++r) {
      const Eigen::Index i = position_of(head_, queries.first + r);
      for (Eigen::Index c = 0; c < keys.size; ++c) {
        const Eigen::Index j = keys.first + c;
        logits(r, c) = j <= i ? logits(r, c) + bias_(i, j) : kMinusInfinity;
      }
    }
    return logits;
  }

 private:
  static Range range(Eigen::Index index, Eigen::Index block, Eigen::Index length) {
    return {index * block, std::min(block, length - index * block)};
  }

  const Head& head_;
  Blocks blocks_;
  DecayBias<double> bias_;
  std::vector<int64_t> first_column_;
};

void check(const Head& head) {
  check_shapes(head);
  expect_size("log_forget", "entries, one a key", head.key.rows(), head.log_forget.size());
}

}  // namespace

Output forward(const Head& head, Blocks blocks, double threshold) {
  check(head);
  const Grid grid(head, blocks, threshold);
  Output output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < grid.rows(); ++row) {
    const Range queries = grid.queries(row);
    Matrix<double> values = Matrix<double>::Zero(queries.size, head.value.cols());
    Vector<double> normalizer = Vector<double>::Zero(queries.size);
    Vector<double> largest = Vector<double>::Constant(queries.size, kMinusInfinity);
    for (const Range& keys : grid.keys(row)) {
      const Matrix<double> logits = grid.logits(queries, keys);
      const Vector<double> new_largest = largest.cwiseMax(logits.rowwise().maxCoeff());
      // A query that a gate of zero cuts off from every key so far has no largest logit yet; any finite shift will do.
      const Vector<double> shift = (new_largest.array() == kMinusInfinity).select(0.0, new_largest);
      const Vector<double> rescale = exponential(largest - shift);
      const Matrix<double> weights = exponential(logits.colwise() - shift);
      normalizer = rescale.cwiseProduct(normalizer) + weights.rowwise().sum();
      values = rescale.asDiagonal() * values + weights * head.value.middleRows(keys.first, keys.size);
      largest = new_largest;
    }
    output.values.middleRows(queries.first, queries.size) = normalizer.cwiseInverse().asDiagonal() * values;
    output.log_normalizer.segment(queries.first, queries.size) = largest.array() + normalizer.array().log();
  }
  return output;
}

Gradients backward(const Head& head, const Output& output, const Matrix<double>& values_gradient, Blocks blocks,
                   double threshold) {
  check(head);
  expect_size("output.values", "rows, as query has", head.query.rows(), output.values.rows());
  expect_size("output.log_normalizer", "entries, one a query", head.query.rows(), output.log_normalizer.size());
  expect_size("values_gradient", "rows, as query has", head.query.rows(), values_gradient.rows());
  expect_size("values_gradient", "columns, as value has", head.value.cols(), values_gradient.cols());
  const Grid grid(head, blocks, threshold);
  const Vector<double> mean_gradient = values_gradient.cwiseProduct(output.values).rowwise().sum();  // Σ_j P_ij dP_ij
  Gradients gradients;
  gradients.query.setZero(head.query.rows(), head.query.cols());
  gradients.key.setZero(head.key.rows(), head.key.cols());
  gradients.value.setZero(head.value.rows(), head.value.cols());
  Vector<double> prefix_gradient = Vector<double>::Zero(head.key.rows());  // dc
  for (Eigen::Index row = 0; row < grid.rows(); ++row) {
    const Range queries = grid.queries(row);
    const auto query = head.query.middleRows(queries.first, queries.size);
    const auto value_gradient = values_gradient.middleRows(queries.first, queries.size);
    const auto log_normalizer = output.log_normalizer.segment(queries.first, queries.size);
    for (const Range& keys : grid.keys(row)) {
      const auto key = head.key.middleRows(keys.first, keys.size);
      const Matrix<double> weights = exponential(grid.logits(queries, keys).colwise() - log_normalizer);
      const Matrix<double> weights_gradient = value_gradient * head.value.middleRows(keys.first, keys.size).transpose();
      const Matrix<double> logits_gradient =
          weights.cwiseProduct(weights_gradient.colwise() - mean_gradient.segment(queries.first, queries.size));
      gradients.value.middleRows(keys.first, keys.size) += weights.transpose() * value_gradient;
      gradients.query.middleRows(queries.first, queries.size) += head.scale * logits_gradient * key;
      gradients.key.middleRows(keys.first, keys.size) += head.scale * logits_gradient.transpose() * query;
      prefix_gradient.segment(position_of(head, queries.first), queries.size) += logits_gradient.rowwise().sum();
      prefix_gradient.segment(keys.first, keys.size) -= logits_gradient.colwise().sum().transpose();
    }
  }
  gradients.log_forget.setZero(head.key.rows());
  double later = 0.0;  // Σ_{t ≥ l} dc_t
  for (Eigen::Index l = head.key.rows() - 1; l >= 1; --l) gradients.log_forget[l] = later += prefix_gradient[l];
  return gradients;
}

}  // namespace lethe::reference::blockwise

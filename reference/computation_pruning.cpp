#include "reference/computation_pruning.hpp"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>

#include "reference/biased_softmax.hpp"
#include "reference/decay_bias.hpp"

namespace lethe::reference::computation_pruning {
namespace {

void require(bool holds, const std::string& expected, double found) {
  if (!holds) throw std::invalid_argument(expected + ", found " + std::to_string(found));
}

int64_t ceil_divide(int64_t size, int64_t block) { return (size + block - 1) / block; }

// The grid of blocks, with the predicate that the searches evaluate.
class Grid {
 public:
  // log_mass: of the keys up to each, for the boundary by mass; empty for the boundary by weight
  Grid(const Vector<double>& log_forget, int64_t query_length, Blocks blocks, double threshold,
       Vector<double> log_mass = {})
      : bias_(log_forget), keys_(log_forget.size()), queries_(query_length), blocks_(blocks), threshold_(threshold),
        log_mass_(std::move(log_mass)) {
    require(blocks.query >= 1, "blocks.query: expected at least 1", static_cast<double>(blocks.query));
    require(blocks.key >= 1, "blocks.key: expected at least 1", static_cast<double>(blocks.key));
    require(query_length >= 0 && query_length <= keys_,
            "query_length: expected 0 to " + std::to_string(keys_) + ", the length of log_forget",
            static_cast<double>(query_length));
    require(threshold <= 0, "threshold: expected a number <= 0", threshold);
  }

  int64_t rows() const { return ceil_divide(queries_, blocks_.query); }
  int64_t columns() const { return ceil_divide(keys_, blocks_.key); }

  // By weight: every pair of the block is below the threshold if its nearest pair is. By mass: so are the sums of all
  // queries over the keys up to the block's last if the first query's is.
  bool pruned(int64_t row, int64_t column) const {
    const int64_t first_query = keys_ - queries_ + row * blocks_.query;
    const int64_t last_key = std::min((column + 1) * blocks_.key, keys_) - 1;
    if (last_key >= first_query) return false;
    const double mass = log_mass_.size() == 0 ? 0 : log_mass_[last_key];
    return bias_(first_query, last_key) + mass < threshold_;
  }

 private:
  DecayBias<double> bias_;
  int64_t keys_, queries_;
  Blocks blocks_;
  double threshold_;
  Vector<double> log_mass_;
};

std::vector<int64_t> walk(const Grid& grid) {
  std::vector<int64_t> boundary(grid.rows());
  int64_t column = 0;
  for (int64_t row = 0; row < grid.rows(); ++row) {
    while (grid.pruned(row, column)) ++column;  // ends at the diagonal
    boundary[row] = column;
  }
  return boundary;
}

void check_boundary(const std::vector<int64_t>& boundary, int64_t query_length, Blocks blocks) {
  const int64_t rows = ceil_divide(query_length, blocks.query);
  require(std::ssize(boundary) == rows, "boundary: expected " + std::to_string(rows) + " rows of blocks",
          static_cast<double>(boundary.size()));
}

}  // namespace

double threshold(double logit_bound, int64_t length, double log_tolerance) {
  require(logit_bound >= 0, "logit_bound: expected a number >= 0", logit_bound);
  require(length >= 1, "length: expected at least 1", static_cast<double>(length));
  require(log_tolerance <= 0, "log_tolerance: expected a number <= 0", log_tolerance);
  return -2.0 * logit_bound - std::log(static_cast<double>(length)) + log_tolerance;
}

double mass_threshold(double logit_bound, double log_tolerance) { return threshold(logit_bound, 1, log_tolerance); }

double logit_bound_from_norms(const Head& head) {
  if (head.query.rows() == 0 || head.key.rows() == 0) return 0.0;
  return std::abs(head.scale) * head.query.rowwise().norm().maxCoeff() * head.key.rowwise().norm().maxCoeff();
}

double logit_bound_from_gains(const Vector<double>& query_gain, const Vector<double>& key_gain, double scale) {
  expect_size("key_gain", "entries, as query_gain has", query_gain.size(), key_gain.size());
  const double dimensions = static_cast<double>(query_gain.size());
  return std::abs(scale) * query_gain.lpNorm<Eigen::Infinity>() * key_gain.lpNorm<Eigen::Infinity>() * dimensions;
}

std::vector<int64_t> boundary_by_walk(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                      double threshold) {
  return walk(Grid(log_forget, query_length, blocks, threshold));
}

Vector<double> log_mass(const Vector<double>& log_forget) {
  Vector<double> of_keys(log_forget.size());
  double mass = 0;
  for (Eigen::Index t = 0; t < of_keys.size(); ++t) {
    mass = 1 + std::exp(log_forget[t]) * mass;
    of_keys[t] = std::log(mass);
  }
  return of_keys;
}

std::vector<int64_t> boundary_by_mass(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                      double mass_threshold) {
  return walk(Grid(log_forget, query_length, blocks, mass_threshold, log_mass(log_forget)));
}

std::vector<int64_t> boundary_by_search(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                        double threshold) {
  const Grid grid(log_forget, query_length, blocks, threshold);
  std::vector<int64_t> boundary(grid.rows());
  const auto columns = std::views::iota(int64_t{0}, grid.columns());
  for (int64_t row = 0; row < grid.rows(); ++row) {
    const auto pruned = [&](int64_t column) { return grid.pruned(row, column); };
    boundary[row] = *std::ranges::partition_point(columns, pruned);
  }
  return boundary;
}

Vector<double> discarded_weight(const Head& head, Blocks blocks, const std::vector<int64_t>& boundary) {
  check_boundary(boundary, head.query.rows(), blocks);
  const DecayBias<double> bias(head.log_forget);
  Vector<double> discarded(head.query.rows());
  for (Eigen::Index row = 0; row < discarded.size(); ++row) {
    const int64_t skipped = boundary[row / blocks.query] * blocks.key;
    discarded[row] = biased_softmax_weights(head, bias, row).head(skipped).sum();
  }
  return discarded;
}

int64_t visited_pairs(int64_t query_length, int64_t key_length, Blocks blocks, const std::vector<int64_t>& boundary) {
  if (!boundary.empty()) check_boundary(boundary, query_length, blocks);
  int64_t pairs = 0;
  for (int64_t row = 0; row < query_length; ++row) {
    const int64_t past = key_length - query_length + row + 1;
    pairs += past - (boundary.empty() ? 0 : boundary[row / blocks.query] * blocks.key);
  }
  return pairs;
}

}  // namespace lethe::reference::computation_pruning

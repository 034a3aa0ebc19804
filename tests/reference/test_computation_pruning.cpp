// Adaptive Computation Pruning: where the boundary is, and how much weight pruning discards.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "reference/computation_pruning.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Blocks;
using namespace reference::computation_pruning;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr Blocks kPruningBlocks[] = {{1, 1}, {7, 5}, {16, 16}, {16, 64}, {64, 16}, {300, 300}};
constexpr double kThresholds[] = {0.0, -0.5, -3.0, -17.25, -200.0, -1e6, kMinusInfinity};

// Gates in steps of 2⁻¹⁰, whose sums a double holds exactly in every order: the boundary has one right answer, also
// where a D_ij equals the threshold.
Vector<double> dyadic_gates(int64_t length, Gate gate) {
  Vector<double> log_forget = random_head({1, length}, gate).log_forget;
  for (double& x : log_forget) x = std::isinf(x) ? x : std::round(x * 1024) / 1024;
  return log_forget;
}

double decay(const Vector<double>& log_forget, int64_t i, int64_t j) {
  return std::accumulate(log_forget.begin() + j + 1, log_forget.begin() + i + 1, 0.0);
}

// The definition: a block is visited where any of its pairs is above the diagonal or not below the threshold.
std::vector<int64_t> boundary_by_force(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                       double threshold) {
  const int64_t keys = log_forget.size(), before = keys - query_length;
  std::vector<int64_t> boundary;
  for (int64_t first = 0; first < query_length; first += blocks.query) {
    const int64_t end = std::min(first + blocks.query, query_length);
    int64_t earliest = keys;  // key of a pair that must be computed
    for (int64_t i = before + first; i < before + end; ++i) {
      double bias = 0.0;
      for (int64_t j = i; j >= 0 && !(bias < threshold); bias += log_forget[j--]) earliest = std::min(earliest, j);
    }
    boundary.push_back(earliest / blocks.key);
  }
  return boundary;
}

// Algorithm 1 to the letter, indices from 1.
std::vector<int64_t> boundary_as_printed(const Vector<double>& c, Blocks blocks, double threshold) {
  const int64_t length = c.size();
  std::vector<int64_t> n;
  int64_t l = 1;
  for (int64_t m = 1; m <= (length + blocks.query - 1) / blocks.query; ++m) {
    double largest = kMinusInfinity;
    while (largest < threshold) {
      largest = c[(m - 1) * blocks.query] - c[std::min(l * blocks.key, length) - 1];
      l = l + 1;
    }
    n.push_back(l);
  }
  return n;
}

TEST(PruningBoundary, EqualsBruteForceExactlyByWalkAndBySearch) {
  int64_t pruned_rows = 0;
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      const Vector<double> gates = dyadic_gates(lengths.key, gate);
      for (const Blocks& blocks : kPruningBlocks) {
        for (double threshold : kThresholds) {
          SCOPED_TRACE(describe(lengths, gate) + ", blocks of " + std::to_string(blocks.query) + " × " +
                       std::to_string(blocks.key) + ", threshold " + std::to_string(threshold));
          const auto expected = boundary_by_force(gates, lengths.query, blocks, threshold);
          EXPECT_EQ(boundary_by_walk(gates, lengths.query, blocks, threshold), expected);
          EXPECT_EQ(boundary_by_search(gates, lengths.query, blocks, threshold), expected);
          pruned_rows += std::ranges::count_if(expected, [](int64_t first) { return first > 0; });
        }
      }
    }
  }
  EXPECT_GT(pruned_rows, 1000);
}

TEST(PruningBoundary, KeepsAPairExactlyAtTheThreshold) {
  Vector<double> gates = Vector<double>::Zero(4);
  gates[2] = -3.0;
  EXPECT_EQ(boundary_by_walk(gates, 4, {1, 1}, -3.0), (std::vector<int64_t>{0, 0, 0, 0}));
  gates[2] = std::nextafter(-3.0, kMinusInfinity);
  EXPECT_EQ(boundary_by_walk(gates, 4, {1, 1}, -3.0), (std::vector<int64_t>{0, 0, 2, 2}));
  EXPECT_EQ(boundary_by_search(gates, 4, {1, 1}, -3.0), (std::vector<int64_t>{0, 0, 2, 2}));
}

// The definition: blocks are skipped from the oldest on while every query's Σ exp(D_ij) over all their keys is below the threshold.
std::vector<int64_t> mass_boundary_by_force(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                            double mass_threshold) {
  const int64_t keys = log_forget.size(), before = keys - query_length;
  std::vector<int64_t> boundary;
  for (int64_t first = 0; first < query_length; first += blocks.query) {
    int64_t skipped = keys / blocks.key;
    for (int64_t i = before + first; i < before + std::min(first + blocks.query, query_length); ++i) {
      std::vector<double> weight(i + 1);
      double bias = 0;
      for (int64_t j = i; j >= 0; bias += log_forget[j--]) weight[j] = std::exp(bias);
      double mass = 0;
      int64_t fit = 0;  // blocks that query i allows to skip
      for (int64_t j = 0; j < i; ++j) {
        mass += weight[j];
        if (!(mass < std::exp(mass_threshold))) break;
        if ((j + 1) % blocks.key == 0) fit = (j + 1) / blocks.key;
      }
      skipped = std::min(skipped, fit);
    }
    boundary.push_back(skipped);
  }
  return boundary;
}

TEST(PruningBoundary, ByMassEqualsBruteForce) {
  int64_t pruned_rows = 0;
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      const Vector<double> gates = random_head({1, lengths.key}, gate).log_forget;
      for (const Blocks& blocks : kPruningBlocks) {
        for (double threshold : {-0.5001, -3.0001, -17.25001, -200.0001}) {
          SCOPED_TRACE(describe(lengths, gate) + ", blocks of " + std::to_string(blocks.query) + " × " +
                       std::to_string(blocks.key) + ", threshold " + std::to_string(threshold));
          const auto expected = mass_boundary_by_force(gates, lengths.query, blocks, threshold);
          EXPECT_EQ(boundary_by_mass(gates, lengths.query, blocks, threshold), expected);
          pruned_rows += std::ranges::count_if(expected, [](int64_t first) { return first > 0; });
        }
      }
    }
  }
  EXPECT_GT(pruned_rows, 1000);
}

TEST(PruningBoundary, ByMassIsNeverBeforeTheOneByWeight) {
  int64_t further = 0;
  for (Gate gate : kEveryGate) {
    for (const Head& head : random_heads({257, 257}, gate)) {
      for (double log_tolerance : {-0.1, -3.0, -10.0, kMinusInfinity}) {
        for (const Blocks& blocks : kPruningBlocks) {
          const double bound = logit_bound_from_norms(head);
          const auto by_weight = boundary_by_walk(head.log_forget, 257, blocks, threshold(bound, 257, log_tolerance));
          const auto by_mass = boundary_by_mass(head.log_forget, 257, blocks, mass_threshold(bound, log_tolerance));
          for (size_t row = 0; row < by_mass.size(); ++row) {
            EXPECT_GE(by_mass[row], by_weight[row]) << gate_name(gate);
            further += by_mass[row] > by_weight[row];
          }
        }
      }
    }
  }
  EXPECT_GT(further, 100);
}

TEST(PruningBoundary, AlgorithmOneAsPrintedSkipsTheDiagonal) {
  const Vector<double> gates = dyadic_gates(257, Gate::kStrong);
  Vector<double> c(gates.size());
  std::partial_sum(gates.begin(), gates.end(), c.begin());
  constexpr Blocks kBlocks{16, 16};
  constexpr double kThreshold = -17.25;
  std::vector<int64_t> printed = boundary_as_printed(c, kBlocks, kThreshold);
  for (int64_t& column : printed) --column;  // counted from 0
  const auto right = boundary_by_force(gates, gates.size(), kBlocks, kThreshold);
  EXPECT_EQ(right.front(), 0);
  EXPECT_EQ(printed.front(), 1) << "the only block of the first row, on the diagonal, is skipped";
  for (size_t row = 0; row < right.size(); ++row) EXPECT_GT(printed[row], right[row]) << row;
}

TEST(PruningThreshold, IsTheBoundsTheLengthsAndTheTolerancesSum) {
  EXPECT_NEAR(threshold(8.0, 16384, -10.0), -35.704060527839, 1e-12);
  EXPECT_EQ(threshold(0.0, 1, 0.0), 0.0);
  EXPECT_EQ(threshold(8.0, 16384, kMinusInfinity), kMinusInfinity);
}

TEST(PruningThreshold, BoundFromGainsIsGammaTimesGammaTimesRootOfTheDimension) {
  const Vector<double> ones = Vector<double>::Ones(64);
  EXPECT_EQ(logit_bound_from_gains(ones, ones, 1.0 / 8.0), 8.0);
  Vector<double> query_gain = ones, key_gain = ones;
  query_gain[3] = -2.0;
  key_gain[60] = 1.5;
  EXPECT_EQ(logit_bound_from_gains(query_gain, key_gain, 1.0 / 8.0), 24.0);
  EXPECT_THROW(logit_bound_from_gains(ones, Vector<double>::Ones(63), 1.0), std::invalid_argument);
}

TEST(PruningThreshold, BoundFromNormsCoversEveryLogitAndIsReachedByAlignedVectors) {
  for (Head head : random_heads({65, 65}, Gate::kZero)) {
    const double largest = (head.scale * head.query * head.key.transpose()).cwiseAbs().maxCoeff();
    EXPECT_GE(logit_bound_from_norms(head), largest);
    head.key.row(7) = -100.0 * head.query.row(5);
    head.query.row(5) *= 100.0;
    EXPECT_NEAR(logit_bound_from_norms(head), -head.scale * head.query.row(5).dot(head.key.row(7)), 1e-9);
  }
}

double log_sum_exp(const Vector<double>& logits) {
  return logits.maxCoeff() + std::log((logits.array() - logits.maxCoeff()).exp().sum());
}

TEST(DiscardedWeight, IsTheSoftmaxWeightInFrontOfTheBoundary) {
  const Head head = random_head({40, 60}, Gate::kInitial);
  constexpr Blocks kBlocks{8, 4};
  const auto boundary = boundary_by_walk(head.log_forget, 40, kBlocks, -5.0);
  const Vector<double> discarded = discarded_weight(head, kBlocks, boundary);
  for (Eigen::Index row = 0; row < 40; ++row) {
    Vector<double> logits = head.scale * head.key.topRows(21 + row) * head.query.row(row).transpose();
    for (Eigen::Index j = 0; j < logits.size(); ++j) logits[j] += decay(head.log_forget, 20 + row, j);
    const int64_t skipped = boundary[row / 8] * 4;
    const double expected = skipped == 0 ? 0.0 : std::exp(log_sum_exp(logits.head(skipped)) - log_sum_exp(logits));
    EXPECT_NEAR(discarded[row], expected, 1e-14) << row;
  }
  EXPECT_GT(discarded.maxCoeff(), 0.0);
}

TEST(DiscardedWeight, IsAtMostTheToleranceForEveryKindOfGate) {
  int64_t pruned = 0;
  for (Gate gate : kEveryGate) {
    for (const Head& head : random_heads({257, 257}, gate)) {
      for (double log_tolerance : {-0.1, -3.0, -10.0}) {
        for (const Blocks& blocks : kPruningBlocks) {
          const double delta = threshold(logit_bound_from_norms(head), 257, log_tolerance);
          const auto boundary = boundary_by_walk(head.log_forget, 257, blocks, delta);
          EXPECT_LE(discarded_weight(head, blocks, boundary).maxCoeff(), std::exp(log_tolerance)) << gate_name(gate);
          const auto by_mass = boundary_by_mass(head.log_forget, 257, blocks,
                                                mass_threshold(logit_bound_from_norms(head), log_tolerance));
          EXPECT_LE(discarded_weight(head, blocks, by_mass).maxCoeff(), std::exp(log_tolerance)) << gate_name(gate);
          pruned += 257 * 258 / 2 - visited_pairs(257, 257, blocks, boundary);
        }
      }
    }
  }
  EXPECT_GT(pruned, 0);
}

// The worst head: the last query is opposite to its own key (logit −U) and along every older one (+U), and
// one gate before it moves all older pairs just below the threshold.
Head adversary(int64_t length, double bound, double delta) {
  Head head;
  head.query = Matrix<double>::Constant(length, 1, 1.0);
  head.key = Matrix<double>::Constant(length, 1, bound);
  head.key(length - 1, 0) = -bound;
  head.value = Matrix<double>::Zero(length, 1);
  head.log_forget = Vector<double>::Zero(length);
  head.log_forget[length - 1] = std::nextafter(delta, kMinusInfinity);
  return head;
}

TEST(DiscardedWeight, OfTheWorstHeadIsJustBelowTheTolerance) {
  constexpr int64_t kLength = 129;
  constexpr double kBound = 4.0, kLogTolerance = -10.0;
  const auto discarded = [&](double delta, Blocks blocks) {
    const Head head = adversary(kLength, kBound, delta);
    EXPECT_EQ(logit_bound_from_norms(head), kBound);
    return discarded_weight(head, blocks, boundary_by_walk(head.log_forget, kLength, blocks, delta)).maxCoeff();
  };
  const double delta = threshold(kBound, kLength, kLogTolerance);
  for (const Blocks& blocks : {Blocks{1, 1}, Blocks{16, 16}, Blocks{64, 32}}) {  // the last query begins a block
    EXPECT_LE(discarded(delta, blocks), std::exp(kLogTolerance));
    EXPECT_GT(discarded(delta, blocks), 0.9 * std::exp(kLogTolerance));
    EXPECT_GT(discarded(delta + kBound, blocks), 3.0 * std::exp(kLogTolerance)) << "δ with U instead of 2U";
    EXPECT_GT(discarded(delta + std::log(kLength), blocks), 3.0 * std::exp(kLogTolerance)) << "δ without log T";
  }
}

// The worst head of the boundary by mass: as above, with old keys that decay, so that their mass is far from T times the largest.
TEST(DiscardedWeight, ByMassOfTheWorstHeadIsJustBelowTheTolerance) {
  constexpr int64_t kLength = 129;
  constexpr double kBound = 4.0, kLogTolerance = -10.0;
  Head head = adversary(kLength, kBound, 0);
  for (int64_t t = 0; t < kLength - 1; ++t) head.log_forget[t] = -0.25;
  const double mass = log_mass(head.log_forget)[kLength - 2];
  EXPECT_NEAR(mass, -std::log1p(-std::exp(-0.25)), 1e-9);  // of a geometric series
  const auto discarded = [&](double threshold, Blocks blocks) {
    head.log_forget[kLength - 1] = std::nextafter(threshold - mass, kMinusInfinity) - 1e-12;
    return discarded_weight(head, blocks, boundary_by_mass(head.log_forget, kLength, blocks, threshold)).maxCoeff();
  };
  const double threshold = mass_threshold(kBound, kLogTolerance);
  for (const Blocks& blocks : {Blocks{1, 1}, Blocks{16, 16}, Blocks{64, 32}}) {
    EXPECT_LE(discarded(threshold, blocks), std::exp(kLogTolerance));
    EXPECT_GT(discarded(threshold, blocks), 0.9 * std::exp(kLogTolerance));
    EXPECT_GT(discarded(threshold + kBound, blocks), 3.0 * std::exp(kLogTolerance)) << "U instead of 2U";
    EXPECT_GT(discarded(threshold + mass, blocks), 3.0 * std::exp(kLogTolerance)) << "without the mass";
  }
}

TEST(VisitedPairs, CountTheCausalPairsOfTheBlocksThatAreLeft) {
  EXPECT_EQ(visited_pairs(257, 257, {64, 64}, {}), 257 * 258 / 2);
  EXPECT_EQ(visited_pairs(2, 5, {1, 1}, {}), 4 + 5);
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    const Vector<double> gates = dyadic_gates(lengths.key, Gate::kStrong);
    for (const Blocks& blocks : kPruningBlocks) {
      const auto boundary = boundary_by_force(gates, lengths.query, blocks, -17.25);
      int64_t expected = 0;
      for (int64_t row = 0; row < lengths.query; ++row) {
        const int64_t i = lengths.key - lengths.query + row;
        for (int64_t j = 0; j <= i; ++j) expected += j / blocks.key >= boundary[row / blocks.query];
      }
      EXPECT_EQ(visited_pairs(lengths.query, lengths.key, blocks, boundary), expected);
    }
  }
}

TEST(ComputationPruning, NamesTheArgumentOutsideItsDomain) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(threshold(-1.0, 8, -10.0), std::invalid_argument);
  EXPECT_THROW(threshold(kNaN, 8, -10.0), std::invalid_argument);
  EXPECT_THROW(threshold(1.0, 0, -10.0), std::invalid_argument);
  EXPECT_THROW(threshold(1.0, 8, 0.1), std::invalid_argument);
  const Vector<double> gates = Vector<double>::Zero(8);
  EXPECT_THROW(boundary_by_walk(gates, 9, {4, 4}, -1.0), std::invalid_argument);
  EXPECT_THROW(boundary_by_walk(gates, 8, {0, 4}, -1.0), std::invalid_argument);
  EXPECT_THROW(boundary_by_search(gates, 8, {4, 0}, -1.0), std::invalid_argument);
  EXPECT_THROW(boundary_by_search(gates, 8, {4, 4}, 1.0), std::invalid_argument);
  EXPECT_THROW(boundary_by_search(gates, 8, {4, 4}, kNaN), std::invalid_argument);
  EXPECT_THROW(mass_threshold(-1.0, -10.0), std::invalid_argument);
  EXPECT_THROW(mass_threshold(1.0, 0.1), std::invalid_argument);
  EXPECT_THROW(boundary_by_mass(gates, 9, {4, 4}, -1.0), std::invalid_argument);
  EXPECT_THROW(boundary_by_mass(gates, 8, {4, 4}, kNaN), std::invalid_argument);
  EXPECT_THROW(visited_pairs(8, 8, {4, 4}, {0, 0, 0}), std::invalid_argument);
  EXPECT_THROW(discarded_weight(random_head({8, 8}, Gate::kZero), {4, 4}, {0}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe

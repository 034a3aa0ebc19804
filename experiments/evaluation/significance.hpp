#pragma once
// Tests of means: whether a difference is larger than its scatter explains. Distributions are those of Boost.Math.

#include <vector>

namespace lethe {

/// The two-sided probability, under no effect, of a mean difference of pairs at least as large as found:
///
///   t = mean(d)·√n / s(d),  d_i = a_i − b_i,  p = P(|t_{n−1}| ≥ |t|)
///
/// returns  p; 1 where all pairs are alike, 0 where all differ by the same
/// throws   std::invalid_argument for fewer than two pairs, and values without a partner
double paired_t_test(const std::vector<double>& a, const std::vector<double>& b);

/// A statistic, and the probability of one at least as large where all groups have the same distribution.
struct TestOfGroups {
  double statistic = 0;
  double p = 1;
};

/// One-way analysis of variance of k groups with n values: F = (SS_between / (k − 1)) / (SS_within / (n − k)).
///
/// returns  p = 1 where all values are alike; F = ∞ and p = 0 where groups differ without scatter
/// throws   std::invalid_argument for fewer than two groups, an empty one, or as many groups as values
TestOfGroups one_way_anova(const std::vector<std::vector<double>>& groups);

/// Kruskal and Wallis' test of ranks, corrected for ties of t values:
///
///   H = (12 / (n(n+1)) · Σ_g R_g²/n_g − 3(n+1)) / (1 − Σ(t³ − t)/(n³ − n)),  p = P(χ²_{k−1} ≥ H)
///
/// returns  H = 0 and p = 1 where all values are alike
/// throws   std::invalid_argument for fewer than two groups, or an empty one
TestOfGroups kruskal_wallis(const std::vector<std::vector<double>>& groups);

}  // namespace lethe

#include "experiments/evaluation/significance.hpp"

#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/fisher_f.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

namespace lethe {
namespace {

using boost::math::cdf;
using boost::math::complement;

double average(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double squared_deviations(const std::vector<double>& values, double centre) {
  double sum = 0;
  for (const double value : values) sum += (value - centre) * (value - centre);
  return sum;
}

// Not by the deviations: those of equal values need not be zero.
bool are_alike(const std::vector<double>& values) { return std::ranges::min(values) == std::ranges::max(values); }

void check(const std::vector<std::vector<double>>& groups) {
  if (groups.size() < 2)
    throw std::invalid_argument("groups: expected at least two, found " + std::to_string(groups.size()));
  if (std::ranges::any_of(groups, [](const auto& group) { return group.empty(); }))
    throw std::invalid_argument("groups: expected values in each, found an empty one");
}

std::vector<double> joined(const std::vector<std::vector<double>>& groups) {
  std::vector<double> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace

double paired_t_test(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.size() < 2)
    throw std::invalid_argument("pairs: expected at least two, found " + std::to_string(a.size()) + " values and " +
                                std::to_string(b.size()));
  std::vector<double> differences(a.size());
  std::ranges::transform(a, b, differences.begin(), std::minus());
  if (are_alike(differences)) return differences.front() == 0 ? 1 : 0;
  const double centre = average(differences);
  const double degrees = static_cast<double>(a.size()) - 1;
  const double error = std::sqrt(squared_deviations(differences, centre) / degrees / (degrees + 1));
  return 2 * cdf(complement(boost::math::students_t(degrees), std::abs(centre / error)));
}

TestOfGroups one_way_anova(const std::vector<std::vector<double>>& groups) {
  check(groups);
  const std::vector<double> all = joined(groups);
  if (all.size() == groups.size())
    throw std::invalid_argument("groups: expected more values than groups, found " + std::to_string(all.size()));
  if (are_alike(all)) return {};
  if (std::ranges::all_of(groups, are_alike)) return {std::numeric_limits<double>::infinity(), 0};
  const double centre = average(all);
  double between = 0, within = 0;
  for (const auto& group : groups) {
    const double own = average(group);
    between += static_cast<double>(group.size()) * (own - centre) * (own - centre);
    within += squared_deviations(group, own);
  }
  const auto k = static_cast<double>(groups.size()), n = static_cast<double>(all.size());
  const double f = (between / (k - 1)) / (within / (n - k));
  return {f, cdf(complement(boost::math::fisher_f(k - 1, n - k), f))};
}

TestOfGroups kruskal_wallis(const std::vector<std::vector<double>>& groups) {
  check(groups);
  const std::vector<double> all = joined(groups);
  if (are_alike(all)) return {};
  const auto n = static_cast<double>(all.size());
  std::map<double, double> rank;  // of a value: the number of values of that size, then the mean of their ranks
  for (const double value : all) rank[value] += 1;
  double before = 0, ties = 0;
  for (auto& [_, entry] : rank) {
    const double count = entry;
    entry = before + (count + 1) / 2;
    before += count;
    ties += count * (count * count - 1);
  }
  double sum = 0;
  for (const auto& group : groups) {
    double ranks = 0;
    for (const double value : group) ranks += rank.at(value);
    sum += ranks * ranks / static_cast<double>(group.size());
  }
  const double h = (12 / (n * (n + 1)) * sum - 3 * (n + 1)) / (1 - ties / (n * (n * n - 1)));
  return {h, cdf(complement(boost::math::chi_squared(static_cast<double>(groups.size()) - 1), std::max(0.0, h)))};
}

}  // namespace lethe

#pragma once
// The verdict of a measurement on a paper's statement: rules written before the run.

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lethe {

enum class Verdict { kReproduced, kTrendReproduced, kDirectionReproduced, kRefuted, kInconclusive, kOutOfReach };

/// "reproduced", "trend reproduced", "direction reproduced, size contradicted", "refuted", "inconclusive at this scale", "out of reach here"
std::string to_string(Verdict verdict);

/// A paper's statement on one number.
///
/// The range bounds the number; an infinite end is a bound that the paper doesn't give. The direction is the number's side of zero,
/// for numbers whose size isn't comparable with ours (another data set, another size). A range around zero without a direction
/// states that there is no effect beyond that margin.
struct Expectation {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  int direction = 0;  ///< +1: greater than zero; −1: less; 0: not stated

  static Expectation positive() { return {.direction = +1}; }
  static Expectation negative() { return {.direction = -1}; }
  static Expectation within(double margin) { return {-margin, margin, 0}; }
  static Expectation between(double low, double high) { return {low, high, low > 0 ? 1 : high < 0 ? -1 : 0}; }
};

/// Judges `measured`, a value with the half width `band`:
///   reproduced         the range is stated and the whole of measured ± band lies in it
///   direction, size    else, a range and a direction are stated, and the whole of measured ± band lies on that side of zero and outside the
///                      range
///   trend reproduced   else, a direction is stated and the whole of measured ± band lies on that side of zero
///   refuted            else, the whole of measured ± band contradicts: it lies on the other side of zero or, where no direction
///                      is stated, outside the range
///   inconclusive       else: the band is too wide for a verdict; also for a value that is NaN and for an infinite band
Verdict judge(const Expectation& expectation, double measured, double band);

/// The same number of a model that can't do what the statement says: one that is untrained, or blind beyond a window.
struct Control {
  std::string what;  ///< "untrained"
  double measured = 0, band = 0;
};

/// One statement of a paper, and its measurement.
struct Comparison {
  std::string statement = {};  ///< in our words: "FoX (Pro) is better than Transformer (Pro)"
  std::string source = {};     ///< "FoX Table 3"
  std::string unit = {};       ///< of measured and band
  bool headline = false;       ///< the verdict on the claim depends on it
  Expectation expectation = {};
  double paper = std::numeric_limits<double>::quiet_NaN();  ///< in the same unit; NaN where the paper gives none
  double measured = 0;
  double band = 0;  ///< half width of the noise
  std::optional<Control> control = {};
  std::string absent_row = {};     ///< the row that the statement needs and no run has
  std::string out_of_reach = {};   ///< why nothing here can decide it, e.g. a row that this scale doesn't train
  std::string open = {};           ///< why the measurement says nothing, e.g. runs that don't differ
  std::string no_refutation = {};  ///< why a contradiction doesn't refute, e.g. another precision than the paper's
  std::string would_decide = {};   ///< what a band that is too wide lacks, e.g. "9 seeds a row, 4 are here"
  std::string note = {};           ///< for readers, e.g. a rule that was changed after a run

  /// judge() of the measurement, but
  ///   out of reach   where out_of_reach has a reason
  ///   inconclusive   where `open` has one; where it would be refuted and no_refutation has one; and where the control gets the same
  ///                  verdict or a better one on the paper's side
  Verdict verdict() const;

  /// Whether there is no verdict because the control gets the same one, or a better.
  bool control_does_as_well() const;

  /// "would be decided by " and would_decide, where the band alone is why there is no verdict, and without it there would be one; that no number of
  /// runs would, where the control does as well or the mean is the bound itself; else empty.
  std::string lacks() const;
};
void to_json(nlohmann::json& json, const Comparison& comparison);
void from_json(const nlohmann::json& json, Comparison& comparison);  ///< members that are absent have their defaults

/// The verdict on the claim, from its headline comparisons, the first of these that one of them has: refuted, inconclusive, out of reach, direction
/// reproduced, trend reproduced, reproduced.
///
/// throws  std::invalid_argument where no comparison is a headline
Verdict overall(const std::vector<Comparison>& comparisons);

constexpr double kConfidence = 0.95;  ///< of a band, where a scale's `confidence` doesn't say otherwise

/// Student's t that |t| stays below with this confidence.
///
/// throws     std::invalid_argument for degrees < 1, or a confidence outside (0, 1)
/// cost       some microseconds
/// precision  that of Boost.Math: the last few bits of a double
double student_t(int degrees, double confidence = kConfidence);

double mean(const std::vector<double>& values);
double median(std::vector<double> values);

/// Standard deviation of a sample; NaN for fewer than two values.
double deviation(const std::vector<double>& values);

/// Half width of the interval of the mean of independent values: t standard errors; infinite for fewer than two.
double band_of_mean(const std::vector<double>& values, double confidence = kConfidence);

}  // namespace lethe

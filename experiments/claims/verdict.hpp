#pragma once
// The verdict of a measurement on a paper's statement: rules written before the run.

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lethe {

enum class Verdict { kReproduced, kTrendReproduced, kRefuted, kInconclusive };

/// "reproduced", "trend reproduced", "refuted", "inconclusive at this scale"
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
///   reproduced        the range is stated and the whole of measured ± band lies in it
///   trend reproduced  else, a direction is stated and the whole of measured ± band lies on that side of zero
///   refuted           else, the whole of measured ± band contradicts: it lies on the other side of zero or, where no direction
///                     is stated, outside the range
///   inconclusive      else: the band is too wide for a verdict; also for a value that is NaN and for an infinite band
Verdict judge(const Expectation& expectation, double measured, double band);

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

  Verdict verdict() const { return judge(expectation, measured, band); }
};
void to_json(nlohmann::json& json, const Comparison& comparison);

/// The verdict on the claim, from its headline comparisons: refuted where one is; else inconclusive where one is; else reproduced
/// where all are, else trend reproduced.
///
/// throws  std::invalid_argument where no comparison is a headline
Verdict overall(const std::vector<Comparison>& comparisons);

/// The scatter of a number from seed to seed, pooled over rows that were run with several seeds.
class Noise {
 public:
  /// reads  one list of values a row; rows with a single value are skipped, since they hold no noise estimate
  explicit Noise(const std::vector<std::vector<double>>& rows);

  double deviation() const { return deviation_; }  ///< pooled standard deviation; infinite where no row has two seeds
  int degrees() const { return degrees_; }         ///< of freedom

  /// Half width of the 95 % interval of Σ weight·(mean of a row): t(0.975, degrees) · s · √parts. Infinite where no row has two
  /// seeds.
  ///
  /// reads  parts: Σ weight²/seeds, e.g. 1/n_a + 1/n_b for a difference
  double band(double parts) const;

 private:
  double deviation_ = 0;
  int degrees_ = 0;
};

/// The part of a sum Σ weight·(mean of a row) whose rows share their noise.
struct NoisePart {
  Noise noise;
  double parts;  ///< as Noise::band reads; 0: none of these rows is in the sum
};

/// Half width of the 95 % interval of such a sum: t(0.975, degrees) · √(Σ_k s_k²·parts_k). With several kinds of noise the degrees
/// are (Σ_k u_k)² / Σ_k u_k²/degrees_k with u_k = s_k²·parts_k, rounded down (Welch and Satterthwaite). Infinite where no row of a
/// kind in the sum has two seeds.
double band_of(const std::vector<NoisePart>& kinds);

/// The 97.5 % quantile of Student's t.
///
/// throws     std::invalid_argument for degrees < 1
/// cost       some microseconds
/// precision  that of Boost.Math: the last few bits of a double
double student_t(int degrees);

double mean(const std::vector<double>& values);
double median(std::vector<double> values);

/// 95 % half width of the mean of independent values: 1.96 standard errors; infinite for fewer than two.
double band_of_mean(const std::vector<double>& values);

}  // namespace lethe

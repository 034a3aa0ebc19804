#pragma once
// What a measurement says about a paper's statement: rules written before the run.

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lethe {

enum class Verdict { kReproduced, kTrendReproduced, kRefuted, kInconclusive };

/// "reproduced", "trend reproduced", "refuted", "inconclusive at this scale"
std::string to_string(Verdict verdict);

/// What a paper states of one number.
///
/// A range says how large it is; an infinite end says that the paper gives none. A direction says which side of zero it is on
/// where the range alone isn't comparable with ours (another data set, another size). A range around zero without a direction
/// is the statement that there is no effect beyond that margin.
struct Expectation {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  int direction = 0;  ///< +1: greater than zero; −1: less; 0: not stated

  static Expectation positive() { return {.direction = +1}; }
  static Expectation negative() { return {.direction = -1}; }
  static Expectation within(double margin) { return {-margin, margin, 0}; }
  static Expectation between(double low, double high) { return {low, high, low > 0 ? 1 : high < 0 ? -1 : 0}; }
};

/// Judges `measured`, known to ± band:
///   reproduced        the range is stated and the whole of measured ± band lies in it
///   trend reproduced  else, a direction is stated and the whole of measured ± band lies on that side of zero
///   refuted           else, the whole of measured ± band contradicts: it lies on the other side of zero or, where no direction
///                     is stated, outside the range
///   inconclusive      else: the difference drowns in the noise. So does anything that is NaN, or a band that is infinite
Verdict judge(const Expectation& expectation, double measured, double band);

/// One statement of a paper beside what was measured.
struct Comparison {
  std::string statement = {};  ///< a sentence of ours: "FoX (Pro) is better than Transformer (Pro)"
  std::string source = {};     ///< "FoX Table 3"
  std::string unit = {};       ///< of measured and band
  bool headline = false;       ///< one of those that decide over the claim
  Expectation expectation = {};
  double paper = std::numeric_limits<double>::quiet_NaN();  ///< its own number in the same unit, where it gives one
  double measured = 0;
  double band = 0;  ///< half width of what noise explains

  Verdict verdict() const { return judge(expectation, measured, band); }
};
void to_json(nlohmann::json& json, const Comparison& comparison);

/// The verdict on the claim, from its headline comparisons: refuted where one is; else inconclusive where one is; else reproduced
/// where all are, else trend reproduced.
///
/// throws  std::invalid_argument where no comparison is a headline
Verdict overall(const std::vector<Comparison>& comparisons);

/// How much a number scatters from seed to seed, pooled over rows that were run with several seeds.
class Noise {
 public:
  /// reads  one list of values a row; rows with a single value say nothing about noise and are passed over
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

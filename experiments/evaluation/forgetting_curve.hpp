#pragma once
// The forgetting curve: the length of text that a model can copy, and how it loses it.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/json_members.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/record.hpp"

namespace lethe {

enum class Spacing { kLinear, kLogarithmic };
enum class Separator { kBegin, kNewline, kNone };

template <>
struct EnumNames<Spacing> {
  static inline const std::vector<std::pair<Spacing, std::string>> names{{Spacing::kLinear, "linear"},
                                                                         {Spacing::kLogarithmic, "logarithmic"}};
};
template <>
struct EnumNames<Separator> {
  static inline const std::vector<std::pair<Separator, std::string>> names{
      {Separator::kBegin, "begin"}, {Separator::kNewline, "newline"}, {Separator::kNone, "none"}};
};

/// The prompts of a curve. A source of text is a split, or "random" (uniform tokens) or "shuffled" (tokens of the training split in
/// random order).
struct CurveSettings {
  std::string split = "valid";  ///< source of the target S
  std::string irrelevant = "";  ///< source of the irrelevant text I; empty: that of S, outside of S
  int64_t length = 0;           ///< l, the longest L, in tokens
  int64_t sequences = 10;       ///< repeats of a length
  int64_t steps = 32;           ///< n lengths: l/n, 2l/n, … l, or from 8 to l in equal ratios; rounded, each once
  int64_t targets = 20000;      ///< predictions behind an accuracy, at least
  Spacing spacing = Spacing::kLinear;
  Separator separator = Separator::kBegin;
  uint64_t seed = 0;

  void read(JsonReader& reader);
  /// The lengths, rising.
  std::vector<int64_t> lengths() const;
};

/// The accuracies of one length L, an entry a repeat. The repeats of both curves have the same targets.
struct CurvePoint {
  int64_t length = 0;
  std::vector<double> copy, lm;

  double copy_accuracy() const;
  double lm_accuracy() const;
  double gap() const { return copy_accuracy() - lm_accuracy(); }
  double p() const;  ///< of the paired t-test; 1 for a single repeat
};

/// A length of memory: the last length that passes a rule, 0 where none does.
struct MemoryLength {
  int64_t length = 0;
  bool is_longest = false;  ///< it is the longest measured one: the memory may be longer
};

struct ForgettingCurve {
  std::vector<CurvePoint> points;  ///< rising in length
  struct NotMeasurable {
    int64_t length;
    std::string reason;
  };
  std::vector<NotMeasurable> not_measurable;

  /// The last length, not the last before the first failure: short targets hold too few examples of copying.
  MemoryLength fine() const;                          ///< copy accuracy > 99 %
  MemoryLength coarse(double largest_p = 1.0) const;  ///< copy − LM accuracy ≥ 1 %, with p ≤ largest_p
};

/// Whether each label is the most probable token: tokens [B,T], labels [B,n] of the last n tokens → bool [B,n]. What LanguageModel::scores
/// calls correct.
using Guesses = std::function<torch::Tensor(const torch::Tensor& tokens, const torch::Tensor& labels)>;

/// The forgetting curve of a model: the accuracy of copying, [s] S [s] S, beside that of the same targets after irrelevant text, [s] I [s] S,
/// with a separator s. The given tokens are the correct ones (teacher forcing), a guess is the most probable token, and the last ⌈L/2⌉
/// tokens of the second S count. S begins anywhere in its source; I begins anywhere in its source where it has no token of S. A repeat is the mean
/// over as many S as `targets` needs.
///
/// source   Liu 2024, "Forgetting Curve", Sections 3 and 4. Its program takes the end of the corpus as every I, and lengths from 8 on
/// returns  a point for each length; a length is not measurable where its source is too short (3L tokens for S and I of one split, else L), and
///          from the first for which the memory is too small
/// throws   std::invalid_argument for an unknown source, or one without a passage of the longest L
/// memory   at most kEvaluationTokens tokens in a forward call, or one prompt where that is longer
ForgettingCurve forgetting_curve(const Guesses& guesses, const Dataset& dataset, const CurveSettings& settings,
                                 const std::function<void(double)>& progress = {});

/// A curve as points over the length: copy_at_length, lm_at_length, the deviations of both between repeats, p_at_length, NaN where a length
/// is not measurable; and raw, with the repeat as y: copy_of_repeat_at_length, lm_of_repeat_at_length.
std::vector<Point> points_of(const ForgettingCurve& curve);

/// The curve whose raw accuracies the points hold.
ForgettingCurve curve_of(const std::vector<Point>& points);

}  // namespace lethe

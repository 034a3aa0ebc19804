#pragma once
// The needle in a haystack: a sentence that a model has to find again in a long text.

#include <functional>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/models/json_members.hpp"

namespace lethe {

enum class NeedlePrompt { kPaper, kCode };

template <>
struct EnumNames<NeedlePrompt> {
  static inline const std::vector<std::pair<NeedlePrompt, std::string>> names{{NeedlePrompt::kPaper, "paper"},
                                                                              {NeedlePrompt::kCode, "code"}};
};

/// The easy mode of FoX Appendix B.3, where the needle holds the question and its answer:
///
///   haystack … "\n" question " Answer: " begin end "\n" … haystack  prompt with the question "Answer:"  [begin]
///
/// The model reads that after the begin token. Asked for are: with the paper's prompt " " begin end; with the official code's, whose prompt
/// has the answer's begin too, end alone.
struct NeedleSettings {
  std::vector<int64_t> lengths = {};                  ///< of the text before the answer, in tokens
  std::vector<double> depths = {0, 25, 50, 75, 100};  ///< place of the needle, per cent of the haystack
  int64_t repeats = 4;                                ///< of a length and depth, each in another haystack
  NeedlePrompt prompt = NeedlePrompt::kPaper;
  std::string haystack =
      "";  ///< folder of *.txt files, read in the order of their names; empty: `split` of the data set
  std::string split = "test";  ///< where haystacks come from without a folder
  std::string question = "What is the best thing to do in San Francisco?";
  std::string begin = "The best thing to do in San Francisco is";
  std::string end = " eat a sandwich and sit in Dolores Park on a sunny day.";

  void read(JsonReader& reader);
};

/// One prompt, asked twice: with the needle, and with as much of the haystack in its place.
struct Needle {
  int64_t length = 0;
  double depth = 0;
  int64_t repeat = 0;
  bool exact = false;  ///< the answer is what greedy decoding writes: each of its tokens is the most probable one
  double tokens_correct = 0;   ///< share of its tokens that are
  double log_probability = 0;  ///< Σ log p of its tokens after the true ones before, nats
  double without_needle = 0;   ///< the same without the needle: what the model knows of the answer anyway
  int64_t tokens = 0;          ///< of the answer
  double gain() const { return (log_probability - without_needle) / static_cast<double>(tokens); }  ///< nats a token
};

/// The texts of an evaluation: haystack and needle as tokens.
class NeedleTexts {
 public:
  /// throws  std::invalid_argument naming a folder without text, or a length without room for needle and prompt
  NeedleTexts(const Dataset& dataset, const NeedleSettings& settings);

  /// Tokens before the answer, `length` of them, without the begin token. The needle stands after the last full stop before its depth, at the
  /// begin of the text where there is none.
  ///
  /// reads  with_needle: else the haystack goes on in its place
  std::vector<int64_t> before_answer(int64_t length, double depth, int64_t repeat, bool with_needle) const;
  const std::vector<int64_t>& answer() const { return answer_; }

 private:
  const Dataset& dataset_;
  std::vector<int64_t> haystack_, needle_, prompt_, answer_;
  std::vector<bool> ends_sentence_;  // by token
};

/// One prompt's measurement.
///
/// memory  one text of `length` tokens and the answer
Needle measured_needle(const Predictor& predict, const NeedleTexts& texts, const Dataset& dataset, int64_t length,
                       double depth, int64_t repeat);

}  // namespace lethe

// FoX Fig. 2: per-token loss L(i) within and beyond the training length, and Appendix C's criterion of context use, the slope of L(i).

#include <iterator>
#include <map>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/recurrent_rows.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::length_extrapolation {
namespace {

const std::vector<std::string> kRows = {"FoX (LLaMA)", "Transformer (LLaMA)", "FoX (Pro)", "Transformer (Pro)"};

/// Losses of one text in pieces of the longest length T', by stretches of positions around the training length T. All rows read the same tokens at
/// the same positions, so their differences have neither another text nor other cold starts.
struct Stretches {
  explicit Stretches(double confidence)
      : late(confidence), beyond(confidence), fall(confidence), rise(confidence), early(confidence), gain(confidence) {}
  Measurements late;    ///< the mean of T/2 + 1 … T
  Measurements beyond;  ///< the mean of T + 1 … T'
  Measurements fall;  ///< L(T/4 + 1 … T/2) − L(T/2 + 1 … T): App. C's slope, positive where the last half is read
  Measurements rise;  ///< beyond − late
  Measurements early;  ///< the mean of 1 … settings["short_context"], where the scale has one
  Measurements gain;   ///< late − early: what the same rows lose or gain from there on
};

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> values;
  for (size_t s = 0; s < a.size(); ++s) values.push_back(a[s] - b[s]);
  return values;
}

/// reads  short_context: the last position of `early`; 0: none
void add(Stretches& stretches, const Run& run, const Evaluated& found, int64_t trained, int64_t longest,
         int64_t short_context) {
  const auto middle = losses_of_sequences(found, trained / 4, trained / 2),
             late = losses_of_sequences(found, trained / 2, trained),
             beyond = losses_of_sequences(found, trained, longest);
  for (const auto& [measurements, values] :
       {std::pair(&stretches.late, late), std::pair(&stretches.beyond, beyond),
        std::pair(&stretches.fall, difference(middle, late)), std::pair(&stretches.rise, difference(beyond, late))})
    measurements->add(run, mean(values), values);
  if (short_context == 0) return;
  const auto early = losses_of_sequences(found, 0, short_context), gain = difference(late, early);
  stretches.early.add(run, mean(early), early);
  stretches.gain.add(run, mean(gain), gain);
}

/// Appendix E.3's warning: trained on 2048 tokens of SlimPajama, FoX has no advantage within them. Here the first 2048 positions of models that were
/// trained on longer texts are asked, and whether the advantage grows after them.
std::vector<Comparison> within_a_short_context(const Stretches& all, int64_t short_context) {
  constexpr double kNoAdvantage = 0.01;  // nats: 1 % of the perplexity
  constexpr const char* kAfterTheRun = "written after the run of scale gpu";
  const std::string positions = " the first " + std::to_string(short_context) + " tokens";
  std::vector<Comparison> found;
  for (const std::string trunk : {"(LLaMA)", "(Pro)"}) {
    const std::string fox = "FoX " + trunk, transformer = "Transformer " + trunk;
    const std::vector<Measurements::Term> advantage = {{transformer, 1}, {fox, -1}};
    found.push_back(all.early.compare(fox + " has no advantage over " + transformer + " within" + positions, advantage,
                                      Expectation::within(kNoAdvantage)));
    found.back().out_of_reach = "the paper says it of models that are trained on texts of that length";
    found.back().note = std::string(kAfterTheRun) + ", and open at first, not out of reach";
    found.push_back(
        all.gain.compare("The advantage of " + fox + " over " + transformer + " is larger after" + positions, advantage,
                         Expectation::positive()));
  }
  for (Comparison& comparison : found) {
    comparison.source = "FoX Fig. 10 and Appendix E.3";
    if (comparison.note.empty()) comparison.note = kAfterTheRun;
  }
  return found;
}

/// What would decide whether a row reads farther than its control, and whether it gets worse than it.
std::string lacks(const Comparison& far, const Comparison& rise) {
  if (far.verdict() == Verdict::kRefuted) return ": with these means no number of runs would decide it";
  const std::string of_far = far.lacks(), of_rise = rise.lacks();
  return (of_far.empty() ? "" : "; that " + of_far) + (of_rise.empty() ? "" : "; its rise " + of_rise);
}

std::vector<Comparison> statements(const Stretches& all, const std::string& blind, const nlohmann::json& settings) {
  const auto positive = Expectation::positive();
  const Expectation no_rise{.high = settings.at("no_effect_margin")};
  const auto headline = [](Comparison comparison) {
    comparison.headline = true;
    return comparison;
  };
  const auto better = [&](const Measurements& losses, const std::string& fox, const std::string& transformer,
                          const char* where) {
    return headline(
        losses.compare(fox + " is better than " + transformer + where, {{transformer, 1}, {fox, -1}}, positive));
  };
  const auto reads_far = [&](const std::string& row) {
    return all.fall.compare(
        "L(i) of " + row + " falls in the last half of the training length by more than the control's",
        {{row, 1}, {blind, -1}}, positive);
  };
  const auto holds = [&](const std::string& row) {
    Comparison comparison = all.rise.compare(
        row + " doesn't get worse beyond the training length than the control does", {{row, 1}, {blind, -1}}, no_rise);
    if (const Comparison far = reads_far(row); far.verdict() != Verdict::kTrendReproduced)
      comparison.open =
          "it is not seen to read farther than its control, which cannot get worse" + lacks(far, comparison);
    return headline(comparison);
  };
  std::vector<Comparison> found = {
      better(all.late, "FoX (LLaMA)", "Transformer (LLaMA)", " in the last half of the training length"),
      better(all.late, "FoX (Pro)", "Transformer (Pro)", " in the last half of the training length"),
      all.late.compare("The advantage of FoX is smaller with the Pro architecture",
                       {{"Transformer (LLaMA)", 1}, {"FoX (LLaMA)", -1}, {"Transformer (Pro)", -1}, {"FoX (Pro)", 1}},
                       positive),
      headline(reads_far("FoX (LLaMA)")),
      headline(reads_far("FoX (Pro)")),
      reads_far("Transformer (LLaMA)"),
      reads_far("Transformer (Pro)"),
      holds("FoX (LLaMA)"),
      holds("FoX (Pro)"),
      headline(all.rise.compare("Transformer (LLaMA) gets worse beyond the training length than the control does",
                                {{"Transformer (LLaMA)", 1}, {blind, -1}}, positive)),
      all.rise.compare("Transformer (Pro) extrapolates better than Transformer (LLaMA)",
                       {{"Transformer (LLaMA)", 1}, {"Transformer (Pro)", -1}}, positive),
      better(all.beyond, "FoX (LLaMA)", "Transformer (LLaMA)", " beyond the training length"),
      better(all.beyond, "FoX (Pro)", "Transformer (Pro)", " beyond the training length"),
  };
  const RecurrentRows rows = recurrent_rows(settings);
  const auto beside = [&](const std::string& row, const std::string& source, const std::string& note) {
    const auto of_fox = [&](const Measurements& losses, const char* where) {
      return losses.compare("FoX (Pro) is better than " + row + where, {{row, 1}, {"FoX (Pro)", -1}}, positive);
    };
    for (Comparison comparison :
         {of_fox(all.late, " in the last half of the training length"), of_fox(all.beyond, " beyond the training length"),
          all.fall.compare("L(i) of FoX (Pro) falls in the last half of the training length by more than that of " + row,
                           {{"FoX (Pro)", 1}, {row, -1}}, positive)}) {
      comparison.source = source;
      comparison.note = note;
      found.push_back(comparison);
    }
  };
  for (const std::string& row : rows.of_the_figure) beside(row, "", "");
  const std::string after_a_run = settings.value("further_rows_after_a_run", "");
  for (const std::string& row : rows.further) beside(row, "hypothesis, ours", after_a_run);
  return found;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = table_3_runs(kRows, settings, vocabulary);
  std::ranges::copy(control_runs(settings, vocabulary), std::back_inserter(runs));
  std::ranges::copy(recurrent_runs(settings, vocabulary), std::back_inserter(runs));
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  const int64_t trained_length = study.settings.at("training").at("context_length");
  const int64_t longest = whole_number(study.settings.at("evaluation"), "length_factor") * trained_length;
  const int64_t short_context = study.settings.value("short_context", int64_t{0});
  Stretches stretches(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    for (const int64_t length : {trained_length, longest}) {
      const Evaluated found = evaluate(study, model, length);
      for (const auto& [metric, unit] : {std::pair("loss", "nats"), std::pair("perplexity", "1")})
        findings.records.push_back(
            record_of(study.experiment, run, found.records.front().batch, length, metric, unit, found.value(metric)));
      if (length != longest) continue;
      add(stretches, run, found, trained_length, longest, short_context);
      const auto curve = loss_curve(run, found);
      findings.points.insert(findings.points.end(), curve.begin(), curve.end());
    }
    const auto stretch = [&](const char* metric, const Measurements& of) {
      findings.records.push_back(record_of(study.experiment, run, 1, longest, metric, "nats", of.value_of(run)));
    };
    stretch("loss_in_the_last_half", stretches.late);
    stretch("fall_in_the_last_half", stretches.fall);
    stretch("rise_beyond", stretches.rise);
  });
  findings.comparisons = statements(stretches, blind_row(study.settings).name, study.settings);
  for (Comparison& comparison : findings.comparisons)
    if (comparison.source.empty())
      comparison.source =
          comparison.statement.starts_with("L(i)") ? "FoX Appendix C" : "FoX Fig. 2 and Section 4.2";
  if (short_context > 0)
    std::ranges::copy(within_a_short_context(stretches, short_context), std::back_inserter(findings.comparisons));
  return findings;
}

}  // namespace lethe::length_extrapolation

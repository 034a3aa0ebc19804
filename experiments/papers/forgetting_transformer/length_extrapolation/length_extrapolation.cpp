// FoX Fig. 2: per-token loss L(i) and perplexity P(l) within and beyond the training length.

#include "experiments/claims/measures.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::length_extrapolation {
namespace {

const std::vector<std::string> kRows = {"FoX (LLaMA)", "Transformer (LLaMA)", "FoX (Pro)", "Transformer (Pro)"};

Comparison headline(Comparison comparison) {
  comparison.headline = true;
  return comparison;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return table_3_runs(kRows, settings, vocabulary);
}

Findings measure(const Study& study) {
  Findings findings;
  const int64_t trained_length = study.settings.at("training").at("context_length");
  const auto factor = study.settings.at("evaluation").at("length_factor").get<int64_t>();
  const int64_t longest = factor * trained_length;
  std::map<int64_t, Measurements> losses;  // by the length of the text's pieces
  Measurements gain;                       // of the training length over half of it
  Measurements rise;                       // of the longest length over the training length

  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    std::map<int64_t, double> loss;
    for (int64_t length = trained_length / 2; length <= longest; length *= 2) {
      const Evaluated found = evaluate(study, model, length);
      loss[length] = found.value("loss");
      losses[length].add(run, loss[length]);
      for (const auto& [metric, unit] : {std::pair("loss", "nats"), std::pair("perplexity", "1")})
        findings.records.push_back(
            record_of(study.experiment, run, found.records.front().batch, length, metric, unit, found.value(metric)));
      if (length == longest) {
        const auto curve = loss_curve(run, found);
        findings.points.insert(findings.points.end(), curve.begin(), curve.end());
      }
    }
    gain.add(run, loss[trained_length / 2] - loss[trained_length]);
    rise.add(run, loss[longest] - loss[trained_length]);
  });

  const Measurements& within = losses.at(trained_length);
  const Measurements& beyond = losses.at(longest);
  const auto positive = Expectation::positive();
  const Expectation no_rise{.high = study.settings.at("no_effect_margin")};
  findings.comparisons = {
      headline(within.compare("FoX (LLaMA) is better than Transformer (LLaMA) at the training length",
                              {{"Transformer (LLaMA)", 1}, {"FoX (LLaMA)", -1}}, positive)),
      headline(within.compare("FoX (Pro) is better than Transformer (Pro) at the training length",
                              {{"Transformer (Pro)", 1}, {"FoX (Pro)", -1}}, positive)),
      within.compare("The advantage of FoX is smaller with the Pro architecture",
                     {{"Transformer (LLaMA)", 1}, {"FoX (LLaMA)", -1}, {"Transformer (Pro)", -1}, {"FoX (Pro)", 1}},
                     positive),
      gain.compare("FoX (LLaMA) uses the whole training length", {{"FoX (LLaMA)", 1}}, positive),
      gain.compare("FoX (Pro) uses the whole training length", {{"FoX (Pro)", 1}}, positive),
      headline(rise.compare("FoX (LLaMA) doesn't get worse beyond the training length", {{"FoX (LLaMA)", 1}}, no_rise)),
      headline(rise.compare("FoX (Pro) doesn't get worse beyond the training length", {{"FoX (Pro)", 1}}, no_rise)),
      headline(rise.compare("Transformer (LLaMA) gets worse beyond the training length", {{"Transformer (LLaMA)", 1}},
                            positive)),
      rise.compare("Transformer (Pro) extrapolates better than Transformer (LLaMA)",
                   {{"Transformer (LLaMA)", 1}, {"Transformer (Pro)", -1}}, positive),
      headline(beyond.compare("FoX (LLaMA) is better than Transformer (LLaMA) beyond the training length",
                              {{"Transformer (LLaMA)", 1}, {"FoX (LLaMA)", -1}}, positive)),
      headline(beyond.compare("FoX (Pro) is better than Transformer (Pro) beyond the training length",
                              {{"Transformer (Pro)", 1}, {"FoX (Pro)", -1}}, positive)),
  };
  for (Comparison& comparison : findings.comparisons) {
    comparison.source = "FoX Fig. 2 and Section 4.2";
    comparison.unit = "nats";
  }
  return findings;
}

}  // namespace lethe::length_extrapolation

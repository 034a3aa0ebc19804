// LM accuracy after irrelevant text of several sources, and copies of several sources (Curve Figs. 3 and 6).

#include <algorithm>
#include <cmath>

#include "experiments/claims/curves.hpp"
#include "experiments/evaluation/significance.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"
#include "experiments/papers/forgetting_curve/rows.hpp"

namespace lethe::prefix_sources {
namespace {

const std::vector<std::string> kTexts = {"test", "train"};  // beside the target's own split

std::string after(const std::string& source) { return "after " + source; }
std::string copies_of(const std::string& source) { return "copies of " + source; }

// The LM accuracies of a length, a group a source.
std::vector<std::vector<double>> groups_at(const Curves& curves, const std::vector<std::string>& variants,
                                           size_t point) {
  std::vector<std::vector<double>> groups;
  for (const std::string& variant : variants) groups.push_back(curves.of(variant).front().points.at(point).lm);
  return groups;
}

// The smallest p of a test over the lengths up to `longest`, times their number: Bonferroni's bound.
double smallest_p(const Curves& curves, const std::vector<std::string>& variants, int64_t longest,
                  TestOfGroups (*test)(const std::vector<std::vector<double>>&)) {
  double smallest = 1;
  int64_t tests = 0;
  const auto& points = curves.of(variants.front()).front().points;
  for (size_t l = 0; l < points.size() && points[l].length <= longest; ++l, ++tests)
    smallest = std::min(smallest, test(groups_at(curves, variants, l)).p);
  return std::min(1.0, smallest * static_cast<double>(tests));
}

// The coarse memory of copies of a source over that of the target's own split, in octaves: none counts as half of the shortest length. NaN where the
// own split has none.
double octaves_beside_own(const Curves& curves, const std::string& source) {
  const ForgettingCurve &own = curves.of(after("the same split")).front(),
                        &other = curves.of(copies_of(source)).front();
  if (own.coarse().length == 0) return std::nan("");
  const double none = 0.5 * static_cast<double>(own.points.front().length);
  return std::log2(std::max(static_cast<double>(other.coarse().length), none) /
                   static_cast<double>(own.coarse().length));
}

// A statement that sources are alike, beside the same number of a source that is unlike: open where that agrees too.
Comparison controlled(Comparison comparison, const std::string& what, double unlike, const std::string& reason) {
  comparison.control = Control{what, unlike, 0};
  if (comparison.control_does_as_well()) comparison.open = reason;
  return comparison;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return runs_of(curve_row(kTransformerRow, settings), settings, vocabulary, 1);
}

Findings measure(const Study& study) {
  Curves curves(study);
  study.each([&](const Artefact& model) {
    const std::string own = study.settings.at("curve").at("split");
    curves.add(model, after("the same split"));
    for (const std::string& source : kTexts) curves.add(model, after(source), {{"irrelevant", source}});
    for (const char* source : {"random", "shuffled"}) curves.add(model, after(source), {{"irrelevant", source}});
    for (const char* source : {"train", "test", "random"})
      curves.add(model, copies_of(source), {{"split", source}, {"irrelevant", own}});
  });
  const int64_t half = whole_number(study.settings.at("training"), "context_length") / 2;
  std::vector<std::string> texts{after("the same split")};
  for (const std::string& source : kTexts) texts.push_back(after(source));
  std::vector<std::string> with_random = texts;
  with_random.push_back(after("random"));

  // Every test's F or H and p as points of its length.
  const auto& points = curves.of(texts.front()).front().points;
  for (const auto& [name, test] : {std::pair("anova", &one_way_anova), std::pair("kruskal_wallis", &kruskal_wallis)})
    for (const auto& [which, variants] : {std::pair("text", &texts), std::pair("text and random", &with_random)})
      for (size_t l = 0; l < points.size(); ++l) {
        const TestOfGroups found = test(groups_at(curves, *variants, l));
        for (const auto& [what, value] :
             {std::pair("_statistic_at_length", found.statistic), std::pair("_p_at_length", found.p)})
          curves.findings.points.push_back({.quantity = std::string(name) + what,
                                            .variant = which,
                                            .x = static_cast<double>(points[l].length),
                                            .value = value});
      }

  const Expectation alike{.low = 0.05}, unlike{.high = 0.05};
  const auto p_of = [&](const std::string& statement, const std::vector<std::string>& variants, const auto& test,
                        const Expectation& expected, const char* source) {
    return Comparison{.statement = statement,
                      .source = source,
                      .unit = "p",
                      .headline = true,
                      .expectation = expected,
                      .measured = smallest_p(curves, variants, half, test)};
  };
  const auto alike_by = [&](const std::string& statement, const auto& test) {
    Comparison comparison = p_of(statement, texts, test, alike, "Curve Fig. 6");
    return controlled(
        comparison, "random tokens as one more source", smallest_p(curves, with_random, half, test),
        "with random tokens as one more source the test finds no difference either: it has no power here, and from "
        "its p no number of runs follows");
  };
  const auto octaves = [&](const std::string& source) {
    Comparison comparison{.statement = "Copies of " + source + " text give the same coarse memory, within an octave",
                          .source = "Curve Fig. 3(b)",
                          .unit = "octaves",
                          .headline = true,
                          .expectation = Expectation::within(1),
                          .measured = octaves_beside_own(curves, source)};
    if (std::isnan(comparison.measured)) comparison.open = "the model has no coarse memory of its own split";
    return controlled(
        comparison, "copies of random tokens", octaves_beside_own(curves, "random"),
        "copies of random tokens do within an octave too: it would tell no source from another, and with these "
        "means no number of runs would");
  };
  Comparison depends = p_of("It does where one of the sources is random tokens: ANOVA", with_random, &one_way_anova,
                            unlike, "Curve Fig. 3(a)");
  depends.no_refutation =
      "a test that finds no difference does not show that there is none, and from its p no number of runs follows";
  depends.note = "at quick a first run had p = 1 and refuted it, before this rule";
  const std::string first_run = study.settings.value("first_run", ""),
                    control = study.settings.value("sources_after_a_run", "");
  curves.findings.comparisons = {
      alike_by(
          "LM accuracy doesn't depend on the split of the irrelevant text up to half of the training length: ANOVA",
          &one_way_anova),
      alike_by("The same by Kruskal and Wallis' test", &kruskal_wallis),
      depends,
      octaves("train"),
      octaves("test"),
  };
  for (Comparison& comparison : curves.findings.comparisons)
    if (comparison.note.empty()) comparison.note = all_notes({first_run, control});
  return curves.findings;
}

}  // namespace lethe::prefix_sources

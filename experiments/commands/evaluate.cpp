#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/files.hpp"

namespace lethe {
namespace {

using nlohmann::json;

struct EvaluateOptions {
  std::string artefact, what = "per_token_loss", corpus, csv, device = "cpu", table = "{}";
  json given = json::object();  ///< settings with their own option
};

/// A table of curves: one column per quantity, one row per x. A quantity "loss_at_position" is the column "loss" over "position".
struct CurveTable {
  std::string x_name;
  std::vector<std::string> columns;
  std::map<double, std::vector<double>> rows;

  explicit CurveTable(const std::vector<Point>& points) {
    for (const Point& point : points) {
      const size_t at = point.quantity.find("_at_");
      const std::string column = point.quantity.substr(0, at);
      if (columns.empty() || columns.back() != column) columns.push_back(column);
      if (at != std::string::npos) x_name = point.quantity.substr(at + 4);
      rows[point.x].push_back(point.value);
    }
  }
};

std::string digits_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void write_csv(const std::string& path, const CurveTable& curves) {
  if (curves.rows.empty()) throw std::invalid_argument("--csv: expected an evaluation with a curve, found one without");
  std::string text = curves.x_name;
  for (const std::string& column : curves.columns) text += ',' + column;
  for (const auto& [x, values] : curves.rows) {
    text += '\n' + digits_of(x);
    for (const double value : values) text += ',' + digits_of(value);
  }
  write_whole(path, text + "\n");
}

/// Prints the rows at doubling x, for the curve's shape, and at the training length and the end, for comparisons.
void print(const CurveTable& curves, int64_t training_length) {
  if (curves.rows.empty()) return;
  const double last = curves.rows.rbegin()->first;
  std::set<double> shown{static_cast<double>(training_length), last};
  for (double x = 1; x < last; x *= 2) shown.insert(x);
  std::printf("%10s", curves.x_name.c_str());
  for (const std::string& column : curves.columns) std::printf("  %14s", column.c_str());
  std::printf("\n");
  for (const auto& [x, values] : curves.rows) {
    if (!shown.contains(x)) continue;
    std::printf("%10.0f", x);
    for (const double value : values) std::printf("  %14.4f", value);
    std::printf("\n");
  }
}

void print(const Record& record) {
  std::printf("%s%s%s (%s): %.6g%s%s", record.variant.c_str(), record.variant.empty() ? "" : ", ",
              record.metric.c_str(), record.implementation.c_str(), record.value, record.unit == "1" ? "" : " ",
              record.unit == "1" ? "" : record.unit.c_str());
  if (record.stddev > 0) std::printf(", standard deviation %.3g", record.stddev);
  std::printf("\n");
}

void evaluate(const EvaluateOptions& options, const Place& place) {
  const Evaluation& evaluation = evaluation_named(options.what);
  const json table = json::parse(options.table, nullptr, /*allow_exceptions=*/false);
  if (!table.is_object()) throw std::invalid_argument("--settings: expected a JSON object, found " + options.table);
  const Artefact artefact = find_artefact(place.models(), options.artefact);
  const TrainingConfig& training = artefact.run.training;
  json settings = {{"split", "valid"}, {"length", 4 * training.context_length}};
  settings.update(options.given);
  settings.update(table);
  const Dataset dataset(
      prepared_dataset(options.corpus.empty() ? training.corpus : options.corpus, training.tokenizer, place.data()));
  LanguageModel model = load_model(artefact, options.device);

  Evaluated found;
  {
    ProgressLine line;
    found = evaluation.run(model, dataset, settings, [&](double share) {
      line.show(options.what + ": " + std::to_string(std::lround(100 * share)) + " %");
    });
  }
  const CurveTable curves(found.points);
  if (!options.csv.empty()) write_csv(options.csv, curves);

  std::printf("%s on %s of %s: %lld sequences of %lld tokens, trained on %lld\n", artefact.folder.filename().c_str(),
              settings.at("split").get<std::string>().c_str(), dataset.name().c_str(),
              static_cast<long long>(found.records.at(0).samples), static_cast<long long>(found.records.at(0).length),
              static_cast<long long>(training.context_length));
  for (const Record& record : found.records) print(record);
  print(curves, training.context_length);
}

}  // namespace

void add_evaluate(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("evaluate", "Measure a trained model; by default its loss position by position");
  auto options = std::make_shared<EvaluateOptions>();
  const auto add_number = [&](const char* name, const char* key, double least, const char* words) {
    command
        ->add_option_function<int64_t>(
            name,
            [options, key](int64_t value) {
              if (value > 0) options->given[key] = value;
            },
            words)
        ->check(number_between(least));
  };
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  command->add_option("--what", options->what, "The evaluation (lethe list shows them)")->capture_default_str();
  command->add_option_function<std::string>(
      "--split", [options](const std::string& split) { options->given["split"] = split; },
      "train, valid (default) or test");
  command->add_option("--corpus", options->corpus, "Another corpus than the one trained on");
  add_number("--length", "length", 0, "Tokens in a sequence; 0, the default: four times the training length");
  add_number("--sequences", "sequences", 1, "At most this many sequences; by default 64");
  add_number("--window", "window", 1, "Of per_token_loss: positions that the smoothed curve averages; by default 101");
  command->add_option("--settings", options->table, "Settings of the evaluation as a JSON object, over those above")
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--csv", options->csv, "Write the curves to this file, every position of them");
  command->footer(
      "Examples:\n"
      "  lethe evaluate 3f2a\n"
      "  lethe evaluate 3f2a --split test --length 4096 --sequences 100 --csv loss.csv\n"
      "  lethe evaluate 3f2a --what pruned_share --settings '{\"sequences\": 8}'");
  command->callback([options, &place] { evaluate(*options, place); });
}

}  // namespace lethe

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <set>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/model_data.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/commands/text_table.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

using nlohmann::json;

constexpr const char* kPerTokenLoss = "per_token_loss";

struct EvaluateOptions {
  std::vector<std::string> artefacts;
  std::string what = kPerTokenLoss, corpus, csv, raw, device = "cpu", table = "{}";
  json given = json::object();  ///< settings with their own option
};

/// A model, its text and its findings.
struct Measured {
  Artefact artefact;
  std::shared_ptr<const Dataset> dataset;
  std::vector<Evaluated>
      found;  ///< at the asked length; of per_token_loss the training length too, where it is another

  std::string name() const { return artefact.folder.filename(); }
  int64_t training_length() const { return artefact.run.training.context_length; }
};

/// A line a label, a column a model; labels in the order of their first entry.
class SideBySide {
 public:
  explicit SideBySide(size_t columns) : columns_(columns) {}

  void add(const std::string& label, size_t column, const std::string& value) {
    const auto [found, is_new] = rows_.try_emplace(label, columns_);
    if (is_new) order_.push_back(label);
    found->second[column] = value;
  }

  void add_to(TextTable& table) const {
    for (const std::string& label : order_) {
      std::vector<std::string> row{label};
      row.insert(row.end(), rows_.at(label).begin(), rows_.at(label).end());
      table.add(std::move(row));
    }
  }

 private:
  size_t columns_;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<std::string>> rows_;
};

std::string digits_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string column_of(const Point& point) {
  const std::string column = point.quantity.substr(0, point.quantity.find("_at_"));
  return point.variant.empty() ? column : point.variant + " " + column;
}

/// A row an x, a column a quantity; of several models a column a model and quantity, "NAME loss". A quantity "loss_at_position" is
/// the column "loss" over "position"; of a head or task, "HEAD loss". Points with a y are no curve.
void write_csv(const OutputFile& file, const std::vector<Measured>& models) {
  std::string header;
  std::map<double, std::map<size_t, double>> rows;
  size_t columns = 0;
  for (const Measured& model : models) {
    std::map<std::string, size_t> of_quantity;
    for (const Point& point : model.found.front().points) {
      if (!std::isnan(point.y)) continue;
      if (header.empty()) header = point.quantity.substr(point.quantity.find("_at_") + 4);
      const auto [column, is_new] = of_quantity.try_emplace(column_of(point), columns);
      if (is_new) {
        header += ',' + (models.size() > 1 ? model.name() + " " : "") + column_of(point);
        ++columns;
      }
      rows[point.x][column->second] = point.value;
    }
  }
  if (rows.empty()) throw std::invalid_argument("--csv: expected an evaluation with a curve, found one without");
  std::string text = header;
  for (const auto& [x, values] : rows) {
    text += '\n' + digits_of(x);
    for (size_t column = 0; column < columns; ++column)
      text += ',' + (values.contains(column) ? digits_of(values.at(column)) : "");
  }
  file.commit({text, "\n"});
}

/// L(i) at doubling positions, for the curve's shape, and at the training lengths and the end, for comparisons.
void add_curve(TextTable& table, const std::vector<Measured>& models) {
  std::set<double> shown;
  std::map<double, std::vector<std::string>> rows;
  for (size_t m = 0; m < models.size(); ++m)
    for (const Point& point : models[m].found.front().points)
      if (point.quantity == "loss_at_position") {
        rows.try_emplace(point.x, models.size()).first->second[m] = fixed(point.value, 4);
        shown.insert(static_cast<double>(models[m].training_length()));
      }
  if (rows.empty()) return;
  for (double x = 1; x < rows.rbegin()->first; x *= 2) shown.insert(x);
  shown.insert(rows.rbegin()->first);
  table.add_line("L(i), nats, at position i");
  for (const auto& [x, values] : rows) {
    if (!shown.contains(x)) continue;
    std::vector<std::string> row{"  " + fixed(x, 0)};
    row.insert(row.end(), values.begin(), values.end());
    table.add(std::move(row));
  }
}

std::string label_of(const Record& record) {
  return "  " + record.variant + (record.variant.empty() ? "" : ", ") + record.metric +
         (record.implementation == "lethe" ? "" : " (" + record.implementation + ")") +
         (record.unit == "1" ? "" : ", " + record.unit);
}

/// The records of a row that reads no split, as lines of the model's column.
void add_records(SideBySide& lines, size_t column, const Evaluated& found) {
  for (const Record& record : found.records)
    lines.add(label_of(record) + " at " + std::to_string(record.length), column, fixed(record.value, 4));
}

/// The inputs and findings of one evaluation of one model, as lines of its column.
void add_found(SideBySide& lines, size_t column, const Measured& model, const std::string& split,
               const Evaluated& found) {
  const Record& first = found.records.at(0);
  const int64_t read = first.samples * first.length;
  lines.add("  sequences", column, std::to_string(first.samples));
  lines.add("  tokens in each", column, std::to_string(first.length));
  lines.add("  of the split, %", column,
            fixed(100.0 * static_cast<double>(read) / static_cast<double>(model.dataset->tokens(split)), 1));
  for (const Record& record : found.records) {
    lines.add(label_of(record), column, fixed(record.value, 4));
    if (record.stddev > 0) lines.add(label_of(record) + ", standard deviation", column, fixed(record.stddev, 4));
    if (record.metric != "loss") continue;
    const auto bytes = static_cast<double>(text_bytes(*model.dataset, split, record.length, record.samples));
    lines.add("  bits per byte", column,
              fixed(record.value * static_cast<double>(read) / bytes / std::numbers::ln2, 4));
  }
}

void print(const std::vector<Measured>& models, const Evaluation& evaluation, const std::string& split) {
  const bool of_split = evaluation.own_settings == nullptr;
  std::vector<std::string> names{of_split ? split + " of " + models.front().dataset->name() : evaluation.name},
      lengths{"trained on sequences of"};
  std::vector<std::string> labels{"label"};
  for (const Measured& model : models) {
    names.push_back(model.name());
    lengths.push_back(std::to_string(model.training_length()));
    labels.push_back(model.artefact.run.label);
  }
  TextTable table(names);
  table.add(labels);
  table.add(lengths);
  size_t evaluations = 0;
  for (const Measured& model : models) evaluations = std::max(evaluations, model.found.size());
  for (size_t which = 0; which < evaluations; ++which) {
    if (of_split) table.add_line(which == 0 ? "at the length asked for" : "at the training length");
    SideBySide lines(models.size());
    for (size_t m = 0; m < models.size(); ++m)
      if (which < models[m].found.size() && of_split) add_found(lines, m, models[m], split, models[m].found[which]);
      else if (which < models[m].found.size()) add_records(lines, m, models[m].found[which]);
    lines.add_to(table);
  }
  add_curve(table, models);
  for (const Measured& model : models)
    for (const std::string& note : model.found.front().notes) table.add_line(model.name() + ": " + note);
  std::printf("%s", table.text(0).c_str());
}

/// The models of the call, each with its text; one text for all, as losses on different texts can't be compared.
std::vector<Measured> models_of(const EvaluateOptions& options, const Place& place) {
  std::vector<Measured> models;
  std::map<std::string, std::shared_ptr<const Dataset>> datasets;
  for (const std::string& name : options.artefacts) {
    Artefact artefact = find_artefact(place.models(), name);
    const TrainingConfig& training = artefact.run.training;
    auto& dataset = datasets[options.corpus.empty() ? content_of(artefact) : training.tokenizer];
    if (!dataset)
      dataset = std::make_shared<Dataset>(
          options.corpus.empty() ? dataset_of(artefact, place)
                                 : Dataset(prepared_dataset(options.corpus, training.tokenizer, place.data())));
    if (!models.empty() && dataset->source_hash() != models.front().dataset->source_hash())
      throw std::invalid_argument("artefacts: expected models of one corpus, or --corpus for all of them, found " +
                                  models.front().dataset->name() + " and " + dataset->name());
    if (const std::string warning = warning_of_change(artefact, options.corpus, *dataset); !warning.empty())
      std::fprintf(stderr, "lethe: %s\n", warning.c_str());
    models.push_back({std::move(artefact), dataset, {}});
  }
  return models;
}

/// Settings of the evaluation without those of the call: its own, or the whole split, in sequences four times as long as the longest of the
/// trainings, or as long as the split; of a forgetting curve copies up to the training length.
json default_settings(const EvaluateOptions& options, const Evaluation& evaluation, const std::vector<Measured>& models,
                      const std::string& split) {
  int64_t length = 0;
  if (evaluation.own_settings) {
    for (const Measured& model : models) length = std::max(length, model.training_length());
    return evaluation.own_settings(length);
  }
  const int64_t trainings = options.what == "forgetting_curve" ? 1 : 4;
  for (const Measured& model : models) length = std::max(length, trainings * model.training_length());
  for (const Measured& model : models) length = std::min(length, model.dataset->tokens(split));
  json settings = {{"split", split}, {"length", length}};
  if (options.what == kPerTokenLoss) settings["sequences"] = std::numeric_limits<int64_t>::max();
  return settings;
}

void evaluate(const EvaluateOptions& options, const Place& place) {
  const Evaluation& evaluation = evaluation_named(options.what);
  json given = options.given;
  const json table = parse_json(options.table, "--settings");
  if (!table.is_object()) throw std::invalid_argument("--settings: expected a JSON object, found " + options.table);
  given.update(table);
  std::vector<Measured> models = models_of(options, place);
  const auto csv = options.csv.empty() ? nullptr : std::make_unique<OutputFile>(options.csv);
  const std::string split = given.value("split", json("valid")).is_string() ? given.value("split", "valid") : "valid";
  json settings = default_settings(options, evaluation, models, split);
  settings.update(given);

  {
    ProgressLine line;
    for (Measured& model : models) {
      LanguageModel network = load_model(model.artefact, options.device);
      const auto measure = [&](json asked) {
        if (!options.raw.empty()) {
          std::filesystem::create_directories(options.raw);
          asked["raw"] = options.raw + "/" + model.name() + "." + options.what + ".jsonl";
        }
        model.found.push_back(evaluation.run(network, *model.dataset, asked, [&](double share) {
          line.show(options.what + " of " + model.name() + ": " + std::to_string(std::lround(100 * share)) + " %");
        }));
      };
      measure(settings);
      json at_training_length = settings;
      at_training_length["length"] = model.training_length();
      if (options.what == kPerTokenLoss && at_training_length != settings &&
          model.dataset->sequence_count(split, model.training_length()) > 0)
        measure(at_training_length);
    }
  }
  if (csv) write_csv(*csv, models);
  print(models, evaluation, split);
}

}  // namespace

void add_evaluate(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand(
      "evaluate", "Measure trained models side by side; by default loss, perplexity, bits per byte and L(i)");
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
  command
      ->add_option("artefacts", options->artefacts,
                   "Folders, names, or the beginnings of names (lethe list models shows them)")
      ->required();
  command->add_option("--what", options->what, "The evaluation (lethe list evaluations shows them)")
      ->check(one_of(evaluations(), &Evaluation::name))
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--split", [options](const std::string& split) { options->given["split"] = split; }, "train, valid or test")
      ->default_str("valid");
  command->add_option("--corpus", options->corpus, "Another corpus than the one trained on");
  add_number("--length", "length", 0,
             "Tokens in a sequence; 0, the default: four times the longest training length, or the whole split");
  add_number(
      "--sequences", "sequences", 1,
      "At most this many sequences; by default the whole split (pruned_share: 64); of forgetting_curve: repeats");
  add_number("--window", "window", 1, "Of per_token_loss: positions that the smoothed curve averages; by default 101");
  command->add_option("--settings", options->table, "Settings of the evaluation as a JSON object, over those above")
      ->capture_default_str();
  command->add_option(
      "--raw", options->raw,
      "Of needle, requests and associative_recall: a folder for each measurement as it is made, a file a model; "
      "the same call goes on after those that it finds there");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--csv", options->csv, "Write the curves to this file, every position of them");
  command->footer(
      "Examples:\n"
      "  lethe evaluate 3f2a\n"
      "  lethe evaluate 3f2a 77ab --split test\n"
      "  lethe evaluate 3f2a --length 4096 --sequences 100 --csv loss.csv\n"
      "  lethe evaluate 3f2a 77ab --what forgetting_curve --length 512 --csv curve.csv\n"
      "  lethe evaluate 3f2a --what pruned_share --settings '{\"sequences\": 8}'");
  command->callback([options, &place] { evaluate(*options, place); });
}

}  // namespace lethe

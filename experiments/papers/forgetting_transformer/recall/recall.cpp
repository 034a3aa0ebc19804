// Ours: what a state's size and a gate decide in associative recall, and the recall of the models of the needle.

#include <algorithm>
#include <iterator>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/recurrent_rows.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/additive.hpp"
#include "experiments/models/mixers/deltanet.hpp"
#include "experiments/models/mixers/gated_linear.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/papers/forgetting_transformer/memory_models.hpp"

namespace lethe::recall {
namespace {

// Of the queries, beyond 1 / pairs: a row that answers fewer knows the values of its context at most, and not their keys.
constexpr double kLearned = 0.05;
constexpr const char *kSoftmax = "Softmax attention", *kNoPositions = "Softmax attention without positions",
                     *kFox = "FoX", *kBlind = "One token alone", *kFresh = "Untrained FoX";

std::string linear_of(int64_t state) { return "Linear attention with state " + std::to_string(state); }
std::string gated_of(int64_t state) { return "Gated linear attention with state " + std::to_string(state); }
std::string delta_of(int64_t state) { return "DeltaNet with state " + std::to_string(state); }
std::string published(const std::string& row) { return row + " of two layers"; }

/// The names of published recurrent models that are trained on the task, as recurrent_row has them.
std::vector<std::string> task_rows(const Study& study) {
  return study.settings.value("task_rows", std::vector<std::string>());
}

/// The sizes of a state, a small and a large one.
struct Sizes {
  int64_t small, large;
};
Sizes sizes_of(const Study& study) {
  return {whole_number(study.settings, "small_state"), whole_number(study.settings, "large_state")};
}

/// A row, and the variants of the task that it is trained on.
struct Stack {
  std::string name;
  MixerStack mixer;
  bool plain, with_updates, is_trained = true;
  bool is_published = false;  ///< one of task_rows: of one seed
};

/// Two layers: a mixture of each token with the one before, in place of the short convolution of Zoology's models, then the mixer by its name.
/// `head_dim`: width over heads; `forget_bias`: where the gates begin; `rows`: of task_rows, a hybrid's two mixers being its layers.
std::vector<Stack> stacks(const Sizes& sizes, int64_t head_dim, double forget_bias,
                          const std::vector<std::string>& rows) {
  const auto one_token = [](bool kv_shift) {
    LocalConfig local;
    local.window = 1;
    local.kv_shift = kv_shift;
    return MixerConfig(local);
  };
  std::vector<Stack> all;
  const auto add = [&](const std::string& name, MixerConfig mixer, bool plain, bool with_updates) {
    all.push_back({name, MixerStack(std::vector<MixerConfig>{one_token(true), std::move(mixer)}), plain, with_updates});
  };
  AttentionConfig softmax = named_architecture("transformer-llama").mixer.only<AttentionConfig>();
  add(kSoftmax, softmax, true, true);
  softmax.rope = false;
  add(kNoPositions, softmax, false, true);
  AttentionConfig fox = named_architecture("fox-llama").mixer.only<AttentionConfig>();
  fox.forget_bias = forget_bias;
  add(kFox, fox, true, true);
  for (const int64_t state : {sizes.small, sizes.large}) {
    AdditiveConfig linear;
    linear.state_size = state;
    add(linear_of(state), linear, true, state == sizes.large);
    GatedLinearConfig gated;
    gated.state_size = state;
    gated.forget_bias = forget_bias;
    add(gated_of(state), gated, true, state == sizes.large);
  }
  DeltaNetConfig delta;
  delta.key_expansion = static_cast<double>(sizes.large) / static_cast<double>(head_dim);
  add(delta_of(sizes.large), delta, false, true);
  for (const std::string& row : rows) {
    const MixerStack mixer = recurrent_row(row).architecture.mixer;
    if (mixer.all().size() > 1) all.push_back({published(row), mixer, true, false});
    else add(published(row), mixer.of(0), true, false);
    all.back().is_published = true;
  }
  add(kFresh, fox, true, false);
  all.back().is_trained = false;
  all.push_back({kBlind, MixerStack(std::vector<MixerConfig>{one_token(false), one_token(false)}), true, false});
  return all;
}

/// The scores of the stacks, a value a seed, and their records.
struct Scores {
  explicit Scores(double confidence) : recall(confidence), with_updates(confidence), updated(confidence) {}
  Measurements recall, with_updates,
      updated;  ///< accuracy without updates; with them; then of the keys that have two values
};

/// Whether a scale trains the stack on the task with updates: settings["update_rows"] lists them; without the key all are trained.
bool is_asked_with_updates(const Study& study, const Stack& stack) {
  const auto rows = study.settings.find("update_rows");
  return rows == study.settings.end() || std::ranges::count(*rows, nlohmann::json(stack.name)) > 0;
}

/// The settings of the evaluation for a stack: settings["task"], with the trunk settings["task"]["model"] and this mixer.
nlohmann::json task_of(const Study& study, const Stack& stack, int64_t updates) {
  nlohmann::json task = study.settings.at("task");
  task["updates"] = updates;
  if (!stack.is_trained) task["steps"] = 1;  // the first of a warm-up has the rate 0
  if (stack.is_published) task["seeds"] = 1;
  nlohmann::json trunk = llama(stack.mixer);
  for (const char* sized : {"vocabulary", "layers", "width", "heads"}) trunk.erase(sized);
  trunk.update(task.at("model"));
  task["model"] = trunk;
  return task;
}

void add_points(const std::string& label, const std::string& quantity, const Evaluated& found, Measurements& into,
                Findings& findings) {
  for (Point point : found.points) {
    if (point.quantity != quantity) continue;
    into.add(label, static_cast<uint64_t>(point.x), point.value);
    point.variant = label;
    findings.points.push_back(point);
  }
}

/// Trains and tests the stacks; `host` gives the device and the folder of the measurements, and nothing of it is trained further.
void measure_stacks(const Study& study, const Artefact& host, Scores& scores, Findings& findings) {
  const auto updates = whole_number(study.settings, "updates");
  const nlohmann::json& trunk = study.settings.at("task").at("model");
  for (const Stack& stack : stacks(sizes_of(study), whole_number(trunk, "width") / whole_number(trunk, "heads"),
                                   study.settings.at("forget_bias"), task_rows(study)))
    for (const int64_t changed : {int64_t{0}, updates}) {
      if (changed == 0 ? !stack.plain : !stack.with_updates || !is_asked_with_updates(study, stack)) continue;
      const std::string& label = stack.name;
      const Evaluated found = evaluated(study, host, "associative_recall", task_of(study, stack, changed),
                                        {"accuracy_at_seed", "updated_accuracy_at_seed"});
      add_points(label, "accuracy_at_seed", found, changed == 0 ? scores.recall : scores.with_updates, findings);
      if (changed > 0) add_points(label, "updated_accuracy_at_seed", found, scores.updated, findings);
      std::vector<Record> records = records_of(study, host.run, found);
      for (Record& record : records) {
        record.variant = label;
        if (changed > 0) record.metric += "_with_updates";
      }
      fill_origins(records, {host});
      std::ranges::copy(records, std::back_inserter(findings.records));
    }
}

/// Whether a scale leaves out the trained models, of which no statement speaks: the task trains models of its own.
bool is_task_alone(const nlohmann::json& settings) { return settings.value("task_alone", false); }

bool has_gates(const ModelConfig& model) {
  const AttentionConfig* attention = model.mixer.of(0).if_own<AttentionConfig>();
  return attention != nullptr && attention->forget_gate != ForgetGate::kNone;
}

/// The measures of the memory page beside the needle: recall of the own architecture, gates, copies, and L(i).
void measure_model(const Study& study, const Artefact& model, Findings& findings) {
  nlohmann::json task = study.settings.at("task");
  task["updates"] = study.settings.at("updates");
  task["seeds"] = 1;
  const int64_t length = study.settings.at("training").at("context_length");
  const auto add = [&](const Evaluated& found, const std::vector<std::string>& metrics) {
    for (const Record& record : records_of(study, model.run, found))
      if (std::ranges::count(metrics, record.metric) > 0) findings.records.push_back(record);
  };
  // The task trains models of its own: it says the same of every seed, and nothing of an untrained model.
  if (model.run.training.seed == 0 && model.run.label != kUntrained)
    add(evaluated(study, model, "associative_recall", task), {"accuracy"});
  add(evaluate(study, model, length), {"loss"});
  add(evaluated(study, model, "forgetting_curve", study.settings.at("curve"),
                {"copy_of_repeat_at_length", "lm_of_repeat_at_length"}),
      {"fine_length", "coarse_length"});
  if (has_gates(model.run.model))
    add(evaluated(study, model, "gates", {{"length", length}, {"sequences", study.settings.at("gate_sequences")}}),
        {"local_heads", "global_heads", "median_half_life"});
}

std::vector<Comparison> comparisons_of(const Study& study, const Scores& scores) {
  const auto [small, large] = sizes_of(study);
  const Expectation tens{.low = 0.2, .direction = +1}, most{.low = 0.85, .direction = +1};
  const double chance = 2.0 / static_cast<double>(whole_number(study.settings.at("task"), "vocabulary"));
  const double of_context = 1.0 / static_cast<double>(whole_number(study.settings.at("task"), "pairs"));
  std::vector<Comparison> all;
  // Of the first row over the second; open where one of them has not learned the task, but for comparisons with a guess.
  const auto add = [&](const Measurements& scores_of, const std::string& statement, const std::string& row,
                       const std::string& other, const Expectation& expected, bool headline) {
    Comparison comparison = scores_of.compare(statement, {{row, 1}, {other, -1}}, expected);
    comparison.source = "ours";
    comparison.unit = "share of the queries";
    comparison.headline = headline;
    comparison.note = study.settings.value("first_run", "");
    const Measurements& learned = &scores_of == &scores.updated ? scores.with_updates : scores.recall;
    for (const std::string& one : {row, other}) {
      if (!comparison.absent_row.empty() || other == kBlind ||
          learned.compare("", {{one, 1}}, {}).measured > of_context + kLearned)
        continue;
      comparison.open = one + " has not learned the task in " + study.settings.at("task").at("steps").dump() + " steps";
    }
    all.push_back(comparison);
  };
  add(scores.recall, "Softmax attention recalls more than a guess", kSoftmax, kBlind, most, true);
  add(scores.recall, "FoX recalls more than a guess", kFox, kBlind, most, true);
  add(scores.recall, "A larger state recalls more, gated linear attention", gated_of(large), gated_of(small), tens,
      true);
  add(scores.recall, "A larger state recalls more, linear attention", linear_of(large), linear_of(small), tens, true);
  add(scores.updated, "A gate recalls the last of two values more often", gated_of(large), linear_of(large), tens,
      true);
  add(scores.updated, "A forget gate recalls the last of two values more often, softmax attention", kFox, kNoPositions,
      tens, true);
  add(scores.updated, "A delta rule recalls the last of two values more often", delta_of(large), linear_of(large), tens,
      false);
  add(scores.updated, "FoX recalls the last of two values more often than a linear state", kFox, linear_of(large), tens,
      true);
  for (const std::string& row : task_rows(study))
    add(scores.recall, published(row) + " recalls more than a guess", published(row), kBlind, tens, false);
  for (const auto& [statement, row] : {std::pair("Control: a model that sees one token alone guesses", kBlind),
                                       std::pair("Control: an untrained model guesses", kFresh)}) {
    Comparison control = scores.recall.compare(statement, {{row, 1}}, {.low = chance - 0.03, .high = chance + 0.03});
    control.source = "ours";
    control.unit = "share of the queries";
    control.headline = true;
    control.band = 0;
    all.push_back(control);
  }
  return all;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = memory_runs(settings, vocabulary);
  if (is_task_alone(settings)) std::erase_if(runs, [](const Run& run) { return run.label != kUntrained; });
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  Scores scores(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& model) {
    if (model.run.label == kUntrained) measure_stacks(study, model, scores, findings);  // they need no weights of it
    if (!is_task_alone(study.settings)) measure_model(study, model, findings);
  });
  findings.comparisons = comparisons_of(study, scores);
  return findings;
}

}  // namespace lethe::recall

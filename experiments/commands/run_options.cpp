#include "experiments/commands/run_options.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/commands/checks.hpp"
#include "experiments/commands/defaults.hpp"
#include "experiments/commands/nearest.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {
namespace {

using nlohmann::json;

constexpr const char *kModel = "Model", *kTraining = "Training";

struct Named {
  const char *option, *member, *group, *description;
};
constexpr Named kNamed[] = {
    {"--layers", "layers", kModel, "Layers"},
    {"--width", "width", kModel, "Width of the residual stream"},
    {"--heads", "heads", kModel, "Heads"},
    {"--tokens", "total_tokens", kTraining, "Tokens to train on"},
    {"--context", "context_length", kTraining, "Tokens in a training sequence"},
    {"--batch-tokens", "batch_tokens", kTraining, "Tokens in an optimizer step"},
    {"--warmup-tokens", "warmup_tokens", kTraining, "Tokens of linear warm-up"},
    {"--learning-rate", "learning_rate", kTraining, "Highest learning rate"},
    {"--seed", "seed", kTraining, "Seed of initialization and data order"},
    {"--corpus", "corpus", kTraining, "bible, headers, a text file or a folder of text"},
    {"--tokenizer", "tokenizer", kTraining, "bytes or gpt2"},
    {"--device", "device", kTraining, "cpu, cuda or cuda:N"},
};

std::string type_of(const json& value) {
  if (value.is_boolean()) return "BOOL";
  if (value.is_number_integer()) return "INT";
  if (value.is_number_float()) return "FLOAT";
  return value.is_null() ? "FLOAT|null" : "TEXT";
}

std::string word_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

/// "name TYPE=default" of every member but those in `left_out`, in lines of at most 100 letters.
std::string settings_of(const json& members, const std::string& title, const std::string& left_out) {
  std::string text = "  " + title + "\n", line = "   ";
  for (const auto& [name, value] : members.items()) {
    if (name == left_out) continue;
    const std::string entry = " " + name + " " + type_of(value) + "=" + word_of(value) + ",";
    if (line.size() + entry.size() > 100) {
      text += line + "\n";
      line = "   ";
    }
    line += entry;
  }
  line.pop_back();
  return text + line + "\n";
}

/// A value as JSON where it is valid JSON (numbers, true, null), else as a string.
json value_of(const std::string& member, const std::string& text) {
  return json::accept(text) ? parse_json(text, member) : json(text);
}

void set_member(json& model, json& training, const std::string& member, const std::string& value) {
  std::vector<json*> configs{&model};
  if (json& mixer = model["mixer"]; mixer.is_array())
    for (json& one : mixer) configs.push_back(&one);
  else configs.push_back(&mixer);
  configs.push_back(&training);
  bool found = false;
  std::vector<std::string> known;
  for (json* config : configs) {
    for (const auto& [name, _] : config->items()) known.push_back(name);
    if (!config->contains(member) || (found && config == &training)) continue;
    // String members stay strings: a corpus may be a folder named 1984.
    (*config)[member] = (*config)[member].is_string() ? json(value) : value_of(member, value);
    found = true;
    if (config != &model) continue;
    if (member == "mixer")
      model["mixer"] = model["mixer"].get<MixerStack>();  // with every option, so that any can be set next
    break;
  }
  if (found) return;
  throw std::invalid_argument("--set: expected a member among " + listed(known) + ", found '" + member + "'" +
                              suggestion(member, known));
}

Run run_of_file(const std::string& path) {
  try {
    return read_json(path).get<Run>();
  } catch (const std::exception& error) {
    throw std::invalid_argument(std::string("run.json: ") + error.what());
  }
}

int64_t vocabulary_of(const std::string& tokenizer) {
  if (tokenizer == "bytes") return 257;
  if (tokenizer == "gpt2") return 50257;
  throw std::invalid_argument("tokenizer: expected bytes or gpt2, found " + shortened(tokenizer));
}

/// A model's members, with the one that its JSON leaves out where it is normal.
json members_of(const ModelConfig& config) {
  json model = config;
  model.emplace("initialization", "normal");
  return model;
}

}  // namespace

Run with_members(Run run, const Members& members, const std::vector<std::string>& settings) {
  json model = members_of(run.model), training = run.training;
  std::set<std::string> given;
  const auto set = [&](const std::string& member, const std::string& value) {
    if (!given.insert(member).second) throw std::invalid_argument(member + ": expected once, found 2 times");
    set_member(model, training, member, value);
  };
  for (const auto& [member, value] : members) set(member, value);
  for (const auto& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("--set: expected key=value, found '" + setting + "'");
    set(setting.substr(0, equals), setting.substr(equals + 1));
  }
  from_json(model, run.model);
  from_json(training, run.training);
  return run;
}

void RunOptions::add_to(CLI::App& command) {
  command.add_option(
      "input", input_,
      "The corpus: a text file, a folder of text, bible or headers; or a run.json, which the options change");
  command.add_option("--label", label_, "A name for people; no part of the artefact's identity");
  const std::vector<Architecture> architectures = named_architectures();
  command.add_option("--architecture", architecture_, "One of " + listed(architectures, &Architecture::name))
      ->check(one_of(architectures, &Architecture::name))
      ->default_str("fox-pro")
      ->group(kModel);
  command.add_option("--size", size_, "A size of the papers: 125m, 360m or 760m (GPT-2 tokens)")->group(kModel);
  json defaults = default_run().model;
  defaults.update(json(default_run().training));
  for (const auto& named : kNamed) {
    command
        .add_option_function<std::string>(
            named.option, [this, &named](const std::string& value) { members_.emplace_back(named.member, value); },
            named.description)
        ->type_name(type_of(defaults.at(named.member)))
        ->default_str(word_of(defaults.at(named.member)))
        ->group(named.group);
  }
  command
      .add_option("--set", settings_,
                  "Any setting of the model, its mixers or the training, e.g. rope=true or qk_norm=none")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

std::string RunOptions::settings() {
  const Run run = default_run();
  std::string text =
      "Settings (--set NAME=VALUE) with their types and defaults; those of a mixer for models that have it:\n" +
      settings_of(members_of(run.model), "model", "mixer") + settings_of(run.training, "training", "");
  for (const Mixer& mixer : mixers()) text += settings_of(MixerConfig(mixer.name), "mixer " + mixer.name, "name");
  return text;
}

std::string RunOptions::run_file() const {
  if (input_.ends_with(".json")) return input_;
  const std::filesystem::path inside = std::filesystem::path(input_) / "run.json";
  std::error_code absent;
  return !input_.empty() && std::filesystem::exists(inside, absent) ? inside.string() : "";
}

std::set<std::string> RunOptions::given() const {
  std::set<std::string> names;
  if (!size_.empty()) names = {"layers", "width", "heads"};
  for (const auto& [member, _] : members_) names.insert(member);
  for (const auto& setting : settings_) names.insert(setting.substr(0, setting.find('=')));
  return names;
}

bool RunOptions::names_corpus() const { return given().contains("corpus") || (!input_.empty() && run_file().empty()); }

Run RunOptions::run(const Dataset* dataset, const Run* base) const {
  const std::string file = run_file();
  const std::set<std::string> set = given();
  if (base && !file.empty()) throw std::invalid_argument("--from: expected no run beside it, found " + file);
  if (!input_.empty() && file.empty() && set.contains("corpus"))
    throw std::invalid_argument("corpus: expected once, found " + input_ + " and --corpus");
  Run run = base ? *base : file.empty() ? default_run() : run_of_file(file);
  const Run begin = run;
  if (!input_.empty() && file.empty()) run.training.corpus = input_;
  if (!architecture_.empty()) {
    ModelConfig chosen = named_architecture(architecture_);
    chosen.vocabulary = run.model.vocabulary, chosen.layers = run.model.layers, chosen.width = run.model.width;
    chosen.heads = run.model.heads, chosen.mlp_multiple = run.model.mlp_multiple;
    run.model = chosen;
    run.label = architecture_;
  }
  if (!size_.empty()) {
    run.model.heads = 0;  // set_size fills it
    set_size(run.model, size_);
    run.model.mlp_multiple = ModelConfig{}.mlp_multiple;
    run.model.vocabulary = 0;
    run.training.tokenizer = "gpt2";
  }
  if (!label_.empty()) run.label = label_;

  run = with_members(run, members_, settings_);
  if (!base && file.empty()) fit_to(run, set, dataset);
  keep_shares(run, begin, set);
  if (run.model.vocabulary == 0) run.model.vocabulary = vocabulary_of(run.training.tokenizer);
  run.model.check();
  run.training.check();
  check_packing(run);
  return run;
}

}  // namespace lethe

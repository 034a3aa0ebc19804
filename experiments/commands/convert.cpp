#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <tuple>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/model_data.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

struct ConvertOptions {
  std::string artefact, label, mixer;
  Members members;  // of the converted run
  std::vector<std::string> settings;
  nlohmann::json conversion = nlohmann::json::object();  // members of Conversion except the source
  bool no_rope = false;
};

struct Knob {
  const char *option, *member, *description;
};
constexpr Knob kMixerKnobs[] = {
    {"--state-size", "state_size", "m: rows of a head's state, where the features leave it open (default 16)"},
    {"--features", "feature_map",
     "linear: W_q and W_k make the features; relu: ReLU(W_φ x + b_φ); elu_plus_one; dpfp; positive_random: FAVOR+;\n"
     "random_fourier: RFA (default linear)"},
    {"--dpfp-nu", "dpfp_nu", "ν of dpfp: 2·ν·head_dim features (default 3)"},
    {"--forget-gate", "forget_gate", "FoX's gate: full, bias_only or fixed (default full)"},
    {"--attention-norm", "attention_norm", "true: divide by z·φ(q) (default false)"},
    {"--sum-norm", "sum_norm", "true: features that sum to one (default false)"},
    {"--norm-epsilon", "norm_epsilon", "Added to the denominators of both norms (default 1e-6)"},
    {"--window", "window", "Tokens that local attention sees, the query's own among them (default 32)"},
    {"--gate-range", "gate_range",
     "n of the decay rule's gates at the beginning, U[1/n, 1 - 1/n] (default: a head's gates)"},
    {"--write-bias", "write_bias", "Bias of the delta rules' gate at the beginning (default -5: a gate of 0.007)"},
};
constexpr Knob kTrainingKnobs[] = {
    {"--tokens", "total_tokens", "Tokens to train on after the swap (default: a quarter of the source's)"},
    {"--warmup-tokens", "warmup_tokens", "Tokens of linear warm-up (default: a twentieth of those)"},
    {"--learning-rate", "learning_rate", "Highest learning rate (default: the source's)"},
    {"--batch-tokens", "batch_tokens", "Tokens in an optimizer step (default: the source's)"},
    {"--seed", "seed", "Seed of what is drawn and of the data order (default: the source's)"},
    {"--device", "device", "cpu, cuda or cuda:N (default: the source's)"},
};

// The mixer `name`: options that it shares with softmax attention have the source's values, except for the gate.
MixerConfig in_the_place_of(const MixerConfig& source, const std::string& name, bool no_rope) {
  const nlohmann::json theirs = source;
  nlohmann::json ours = MixerConfig(name.empty() ? source.row().name : name);
  for (const auto& [key, value] : theirs.items())
    if (ours.contains(key) && key != "name" && (key != "forget_gate" || ours["name"] == theirs["name"]))
      ours[key] = value;
  if (no_rope && ours.contains("rope")) ours["rope"] = false;
  return ours.get<MixerConfig>();
}

/// The mixers that trained softmax attention can become.
std::vector<std::string> after_softmax() {
  const ModelConfig softmax = named_architecture("transformer-llama");
  std::vector<std::string> names;
  for (const Mixer& mixer : mixers()) {
    const MixerConfig config = in_the_place_of(softmax.mixer.of(0), mixer.name, false);
    if (config.row().swap(softmax, config.options())) names.push_back(mixer.name);
  }
  return names;
}

Run converted_run(const ConvertOptions& options, const Artefact& source) {
  nlohmann::json conversion = options.conversion;
  conversion["source"] = source.run;
  Run run{options.label, source.run.model, source.run.training,
          std::make_shared<const Conversion>(conversion.get<Conversion>())};
  run.model.mixer = in_the_place_of(source.run.model.mixer.all().front(), options.mixer, options.no_rope);
  run.training.total_tokens = source.run.training.total_tokens / 4;
  const nlohmann::json mixer = run.model.mixer.all().front();
  for (const auto& [member, _] : options.members)
    for (const Knob& knob : kMixerKnobs)
      if (member == knob.member && !mixer.contains(member))
        throw std::invalid_argument(std::string(knob.option) + ": expected an option of the mixer " +
                                    mixer.at("name").get<std::string>() + ", found one that it has not");
  run = with_members(run, options.members, options.settings);
  const auto is_warmup = [](const std::string& member) { return member.starts_with("warmup_tokens"); };
  if (std::ranges::none_of(options.members, is_warmup, &std::pair<std::string, std::string>::first) &&
      std::ranges::none_of(options.settings, is_warmup))
    run.training.warmup_tokens = run.training.total_tokens / 20;
  if (run.training.corpus != source.run.training.corpus)
    throw std::invalid_argument("corpus: expected the source's, " + source.run.training.corpus + ", found " +
                                run.training.corpus);
  check_conversion(run);  // first: an invalid source would otherwise be reported as an error of the mixer
  run.model.check();
  run.training.check();
  return run;
}

// All parameters, grouped by their change; those of the layers are listed once.
void print_fates(const std::vector<ConvertedParameter>& parameters) {
  static const std::pair<ConvertedParameter::Fate, const char*> kFates[] = {
      {ConvertedParameter::kKept, "kept"},
      {ConvertedParameter::kScaled, "kept, scaled"},
      {ConvertedParameter::kProduct, "W_φ times the source's"},
      {ConvertedParameter::kNew, "new"},
      {ConvertedParameter::kDropped, "dropped"}};
  for (const auto& [fate, words] : kFates) {
    std::vector<std::string> names;
    for (const auto& parameter : parameters) {
      const std::string name = std::regex_replace(parameter.name, std::regex("layers\\.[0-9]+"), "layers.*");
      if (parameter.fate == fate && (names.empty() || std::ranges::find(names, name) == names.end()))
        names.push_back(name);
    }
    if (names.empty()) continue;
    std::printf("%s:\n", words);
    for (const auto& name : names) std::printf("  %s\n", name.c_str());
  }
  std::fflush(stdout);
}

std::string number_of(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].dump() : "none";
}

// The changes of the swap, and the results of the training.
void print_course(const Artefact& source, const Artefact& artefact) {
  const auto before = read_sealed(source.folder / "done.json"), after = read_sealed(artefact.folder / "done.json");
  nlohmann::json first;
  read_log(artefact.folder, [&](const nlohmann::json& line) {
    if (first.is_null()) first = line;
  });
  std::printf("%-28s %s\n", "loss before the swap", number_of(before, "validation_loss").c_str());
  std::printf("%-28s %s, largest |S| %s, largest |y| %s\n", "loss at step 0", number_of(first, "loss").c_str(),
              number_of(first, "largest_state").c_str(), number_of(first, "largest_value").c_str());
  std::printf("%-28s %s, largest |S| %s, largest |y| %s\n", "loss after the last step",
              number_of(after, "validation_loss").c_str(), number_of(after, "largest_state").c_str(),
              number_of(after, "largest_value").c_str());
  if (!after["diverged"].is_null()) std::printf("diverged: %s\n", after["diverged"].get<std::string>().c_str());
  std::fflush(stdout);
}

void convert(const ConvertOptions& options, const Place& place) {
  const Artefact source = find_artefact(place.models(), options.artefact);
  const Run run = converted_run(options, source);
  const Dataset dataset = dataset_of(source, place);
  const auto models = models_with(source, dataset.content_hash());
  LanguageModel target(run.model);
  target->initialize(run.training.seed);
  print_fates(convert_weights(run, load_model(source, "cpu"), target));
  Artefact artefact;
  {
    ProgressLine line;
    artefact = trained(run, dataset, models, [&](const Progress& progress) { line.show(progress); });
  }
  print_course(source, artefact);
  std::cout << artefact.folder.string() << '\n';
}

}  // namespace

void add_convert(CLI::App& app, const Place& place) {
  auto* command =
      app.add_subcommand("convert", "Put another mixer into a trained softmax model, and train the whole on (T2FW)");
  auto options = std::make_shared<ConvertOptions>();
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  const auto add = [&](const Knob& knob) {
    command->add_option_function<std::string>(
        knob.option,
        [&options = *options, member = knob.member](const std::string& value) {
          options.members.emplace_back(member, value);
        },
        knob.description);
  };
  const std::vector<std::string> names = after_softmax();
  command->add_option("--mixer", options->mixer, "One of " + listed(names) + " (default: as it is)")
      ->check(one_of(names));
  for (const Knob& knob : kMixerKnobs) add(knob);
  command->add_option_function<std::string>(
      "--projections", [&options = *options](const std::string& word) { options.conversion["projections"] = word; },
      "product: W_q, W_k of linear features are W_φ times the source's; fresh: new (default product)");
  for (const auto& [option, member, description] :
       {std::tuple{"--feature-deviation", "feature_deviation", "Standard deviation of W_φ (default 0.02)"},
        std::tuple{
            "--value-scale", "value_scale",
            "W_v is multiplied by this, and 1 - σ(b_z) for decay (default 1; additive, linear, no norm: 1/512)"}})
    command
        ->add_option_function<double>(
            option, [&options = *options, member](double value) { options.conversion[member] = value; }, description)
        ->check(number_between(0));
  command->add_flag("--no-rope", options->no_rope, "Drop the source's rotation of queries and keys");
  for (const Knob& knob : kTrainingKnobs) add(knob);
  command->add_option("--label", options->label, "A name for people; no part of the artefact's identity");
  command->add_option("--set", options->settings, "Any other member of the run as key=value")->allow_extra_args(false);
  command->footer(
      "The converted model is a run like any other: it has a name of its own, goes on where it was stopped, and its\n"
      "source is part of what it is. Printed are what was kept and what is new, the loss before and right after the\n"
      "swap, and how large states and values are. experiments/training/README.md explains the knobs.\n"
      "Examples:\n"
      "  lethe train --architecture transformer-llama\n"
      "  lethe convert 3f2a --mixer decay --state-size 32\n"
      "  lethe convert 3f2a --mixer delta --features relu --sum-norm true\n"
      "  lethe convert 3f2a --mixer gated_linear --features elu_plus_one --attention-norm true\n"
      "  lethe convert 3f2a --mixer local --window 64");
  command->callback([options, &place] { convert(*options, place); });
}

}  // namespace lethe

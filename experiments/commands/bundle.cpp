#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/certificate.hpp"
#include "experiments/commands/archive.hpp"
#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/bundle.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/folders.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/training/stored_artefact.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr int kBundleFormat = 1;
constexpr size_t kNameDigits = 16;  // of artefacts and measurements: the beginning of a hash

struct BundleOptions {
  std::vector<std::string> names, files;
  std::string to = "bundle.tar.xz";
};

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// A finished artefact that a folder holds whole.
///
/// throws  std::invalid_argument where it doesn't, naming the file
StoredArtefact whole_artefact(const fs::path& folder) {
  const StoredArtefact stored = read_artefact(folder);
  if (!stored.broken.empty()) throw std::invalid_argument(stored.broken);
  if (stored.done.is_null()) throw std::invalid_argument(folder.string() + ": expected done.json, found none");
  return stored;
}

/// The measurements of an artefact, each with its file, whole and of the name that its settings give.
///
/// throws  std::invalid_argument, std::runtime_error naming the first that is not
std::vector<std::pair<fs::path, nlohmann::json>> whole_measurements(const fs::path& folder) {
  std::vector<std::pair<fs::path, nlohmann::json>> whole;
  for (const fs::path& file : sorted_entries(folder / "measured")) {
    if (file.extension() != ".json") continue;  // what a writer left that was ended
    const nlohmann::json found = read_sealed(file);
    for (const char* member : {"measure", "version", "settings", "value", "commit", "machine"})
      if (!found.contains(member)) throw std::invalid_argument(file.string() + ": expected " + member + ", found none");
    const nlohmann::json key = {
        {"measure", found["measure"]}, {"version", found["version"]}, {"settings", found["settings"]}};
    if (file.stem().string() != sha256(key.dump()).substr(0, kNameDigits))
      throw std::invalid_argument(file.string() + ": expected the measurement of that name, found another");
    whole.emplace_back(file, found);
  }
  return whole;
}

/// Copies an artefact without its weights and without measurements of other weights.
///
/// throws  naming the log or the measurement that is damaged
void copy_without_weights(const StoredArtefact& stored, const fs::path& to) {
  read_log(stored.folder, [](const nlohmann::json&) {});  // checks its hash
  fs::create_directories(to / "measured");
  for (const char* file : {"run.json", "log.jsonl"}) write_whole(to / file, read_whole(stored.folder / file));
  for (const auto& [file, measurement] : whole_measurements(stored.folder))
    if (is_of_weights(measurement, stored.done)) write_whole(to / "measured" / file.filename(), read_whole(file));
  nlohmann::json done = stored.done;
  done["weights"] = "absent";
  write_sealed(to / "done.json", done);
}

/// The trainings below a folder of models: each run's, and then others of the same run.
std::vector<fs::path> trainings_below(const fs::path& models) {
  std::vector<fs::path> found;
  for (const fs::path& folder : sorted_entries(models)) {
    found.push_back(folder);
    std::ranges::copy(other_trainings(folder), std::back_inserter(found));
  }
  return found;
}

void pack_bundle(const BundleOptions& options, const Place& place) {
  std::vector<fs::path> folders;
  for (const std::string& name : options.names) {
    const fs::path folder = find_artefact(place.models(), name).folder;
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  const OutputFile output(options.to);
  if (options.names.empty()) folders = finished_artefacts(place.models());
  if (folders.empty())
    throw std::invalid_argument("bundle: expected a trained model below " + place.models().string() + ", found none");
  const ScratchFolder scratch, beside;
  nlohmann::json bundle = birth_certificate(place.root, place.command_line);
  bundle.erase("command_line");  // it may name folders of this machine
  bundle["format"] = kBundleFormat;
  size_t trainings = 0;
  for (const fs::path& folder : folders) {
    const StoredArtefact stored = whole_artefact(folder);
    const fs::path models = scratch.path() / "models";
    copy_without_weights(stored, models / folder.filename());
    const std::vector<fs::path> others = other_trainings(folder);
    for (const fs::path& other : others)
      copy_without_weights(whole_artefact(other), models / fs::relative(other, folder.parent_path()));
    trainings += 1 + others.size();
    bundle["runs"].push_back(
        {{"name", folder.filename().string()}, {"label", stored.run.label}, {"seed", stored.run.training.seed}});
  }
  write_sealed(scratch.path() / "bundle.json", bundle);
  pack(scratch.path(), beside.path() / "bundle");
  const std::string bytes = read_whole(beside.path() / "bundle");
  output.commit({bytes});
  std::printf("%s: %zu models, %zu bytes\n", options.to.c_str(), trainings, bytes.size());
}

/// throws  std::invalid_argument naming the first file that is damaged or isn't what its name says
void check_artefact(const fs::path& folder, const fs::path& models) {
  const StoredArtefact stored = whole_artefact(folder);
  const std::string name = folder.filename(), identity = stored.done.at("identity");
  const auto expect_name = [&](const std::string& hash, const std::string& what) {
    if (const std::string found = hash.substr(0, kNameDigits); found != name)
      throw std::invalid_argument(name + ": expected " + what + " of that name, found one of the name " + found);
  };
  expect_name(sha256(identity), "an imported run");
  read_log(folder, [](const nlohmann::json&) {});
  for (const char* member : {"commit", "dirty", "machine"})
    if (!stored.done.contains(member))
      throw std::invalid_argument((folder / "done.json").string() + ": expected " + member + ", found none");
  for (const auto& [file, measurement] : whole_measurements(folder))
    if (!is_of_weights(measurement, stored.done))
      throw std::invalid_argument(file.string() + ": expected a measurement of the weights " +
                                  stored.done["weights_sha256"].get<std::string>() + ", found one of " +
                                  measurement["weights_sha256"].get<std::string>());
  const fs::path ours = models / name;
  if (is_finished(ours))
    expect_name(sha256(whole_artefact(ours).done.at("identity").get<std::string>()), "a run of ours");
  else if (fs::exists(ours / "checkpoint.pt"))
    throw std::invalid_argument(ours.string() +
                                ": expected no training of an imported run, found one that has begun; " +
                                "finish it or delete the folder");
}

/// Whether both folders hold one training: by the hash of its weights, or where one has none by all else that its end recorded.
bool are_one_training(const fs::path& one, const fs::path& other) {
  nlohmann::json of_one = read_sealed(one / "done.json"), of_other = read_sealed(other / "done.json");
  if (of_one.contains("weights_sha256") && of_other.contains("weights_sha256"))
    return of_one["weights_sha256"] == of_other["weights_sha256"];
  for (nlohmann::json* done : {&of_one, &of_other})
    for (const char* member : {"weights", "weights_sha256"}) done->erase(member);
  return of_one == of_other;
}

/// The place of an imported training: a measurement of other weights isn't one of ours.
fs::path place_of(const fs::path& folder, const fs::path& models) {
  const fs::path name = folder.filename();
  fs::path place = models / name;
  for (int number = 1; is_finished(place) && !are_one_training(folder, place); ++number)
    place = models / name / "others" / std::to_string(number) / name;
  return place;
}

/// Copies the files that our folder of an imported training lacks, and those of which it has a measurement of other weights.
///
/// returns  what was new, models 0 or 1
Imported merge_artefact(const fs::path& folder, const fs::path& models) {
  for (;;) {
    const fs::path ours = place_of(folder, models);
    fs::create_directories(ours / "measured");
    const FileLock lock(ours / "lock");
    Imported imported;
    if (!is_finished(ours)) {
      imported.models = 1;
      for (const char* file : {"run.json", "log.jsonl", "done.json"})
        write_whole(ours / file, read_whole(folder / file));
    } else if (!are_one_training(folder, ours)) {
      continue;  // another import was first
    }
    for (const auto& [file, _] : whole_measurements(folder)) {
      const fs::path target = ours / "measured" / file.filename();
      if (fs::exists(target) && is_of_weights(read_sealed(target), read_sealed(ours / "done.json"))) continue;
      write_whole(target, read_whole(file));
      ++imported.measurements;
    }
    return imported;
  }
}

}  // namespace

Imported import_bundles(const std::vector<std::string>& files, const fs::path& models) {
  const ScratchFolder scratch;
  const auto folder_of = [&](size_t number) { return scratch.path() / std::to_string(number); };
  for (size_t number = 0; number < files.size(); ++number) {
    const std::string& file = files[number];
    const fs::path contents = folder_of(number);
    fs::create_directories(contents);
    unpack(file, contents);
    naming_members(file, contents, [&] {
      const nlohmann::json bundle = read_sealed(contents / "bundle.json"),
                           format = bundle.value("format", nlohmann::json(0));
      if (format != kBundleFormat)
        throw std::invalid_argument(
            file + ": expected a bundle of format " + std::to_string(kBundleFormat) +
            (format.is_number() && format > kBundleFormat ? " (a newer lethe wrote it: update this one)" : "") +
            ", found " + shown(format));
      const nlohmann::json runs = bundle.value("runs", nlohmann::json::array());
      if (runs.empty()) throw std::invalid_argument(file + ": expected runs in bundle.json, found none");
      for (const nlohmann::json& run : runs)
        if (const std::string name = run.at("name"); !fs::is_directory(contents / "models" / name))
          throw std::invalid_argument(file + ": expected the model " + name + ", which bundle.json names, found none");
    });
  }
  for (size_t number = 0; number < files.size(); ++number)  // all before the first copy
    naming_members(files[number], folder_of(number), [&] {
      for (const fs::path& folder : trainings_below(folder_of(number) / "models")) check_artefact(folder, models);
    });
  Imported imported;
  for (size_t number = 0; number < files.size(); ++number)
    for (const fs::path& folder : trainings_below(folder_of(number) / "models")) {
      const auto [of_models, of_measurements] = merge_artefact(folder, models);
      imported.models += of_models;
      imported.measurements += of_measurements;
    }
  return imported;
}

void add_bundle(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("bundle", "Carry trained models, all but their weights, to another machine");
  auto options = std::make_shared<BundleOptions>();
  command->add_option("artefacts", options->names, "Folders, names or the beginnings of names; none: all");
  command->add_option("--to", options->to, "The file to write")->capture_default_str();
  command->footer(
      "A bundle has runs, logs, done.json and measurements with their certificates. Where it is imported, lethe run "
      "finds\n"
      "the models as trained and reads what claims ask of them; nothing that is there is replaced, but measurements "
      "of\n"
      "other weights. Another training of a run that is there is kept beside it, for lethe judge.\n"
      "Examples:\n"
      "  lethe bundle --to first.tar.xz\n"
      "  lethe bundle import first.tar.xz second.tar.xz");
  auto* imported = command->add_subcommand("import", "Merge bundles of other machines into artefacts/models");
  imported->add_option("files", options->files, "Bundles")->required();
  imported->callback([options, &place] {
    const auto [models, measurements] = import_bundles(options->files, place.models());
    std::printf("imported %lld models and %lld measurements\n", static_cast<long long>(models),
                static_cast<long long>(measurements));
  });
  command->callback([options, imported, &place] {
    if (!imported->parsed()) pack_bundle(*options, place);
  });
}

}  // namespace lethe

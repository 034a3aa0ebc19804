#include "experiments/commands/model_data.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/files.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool can_be_prepared(const std::string& corpus) {
  std::error_code unreadable;
  return corpus == "bible" || corpus == "headers" || fs::is_regular_file(corpus, unreadable) ||
         (fs::is_directory(corpus, unreadable) && !fs::exists(fs::path(corpus) / "dataset.json", unreadable));
}

}  // namespace

std::string content_of(const Artefact& artefact) {
  const fs::path file = artefact.folder / "done.json";
  const auto done = nlohmann::json::parse(read_whole(file), nullptr, /*allow_exceptions=*/false);
  if (!done.is_object() || !done.contains("data") || !done["data"].is_string())
    throw std::invalid_argument(file.string() + ": expected the hash of the model's data, found none");
  return done["data"].get<std::string>();
}

Dataset dataset_of(const Artefact& artefact, const Place& place) {
  const std::string content = content_of(artefact);
  const TrainingConfig& training = artefact.run.training;
  const fs::path beside = fs::absolute(artefact.folder).parent_path().parent_path() / "data";
  if (const fs::path found = dataset_with(content, {place.data(), beside, training.corpus}); !found.empty())
    return Dataset(found);
  if (can_be_prepared(training.corpus)) {
    Dataset dataset(prepared_dataset(training.corpus, training.tokenizer, place.data()));
    if (dataset.content_hash() == content) return dataset;
  }
  throw std::invalid_argument("data: expected the dataset " + content.substr(0, 16) + " that " +
                              artefact.folder.filename().string() + " was trained on (" + training.corpus + " as " +
                              training.tokenizer + "), found none with this content below " + place.data().string() +
                              (beside == place.data() ? "" : " or " + beside.string()));
}

std::string warning_of_change(const Artefact& artefact, const std::string& corpus, const Dataset& dataset) {
  std::error_code absent;
  if (!fs::equivalent(corpus, artefact.run.training.corpus, absent)) return {};
  if (dataset.content_hash() == content_of(artefact)) return {};
  return corpus + " has changed since " + artefact.folder.filename().string() +
         " was trained: it may have been trained on documents of this split";
}

fs::path models_with(const Artefact& artefact, const std::string& data_hash) {
  const fs::path folder = fs::canonical(artefact.folder);
  if (const std::string name = artefact_name(artefact.run, data_hash); folder.filename() != name)
    throw std::invalid_argument("source: expected the model " + name + " in a folder of that name, found it in " +
                                folder.string() + "; rename the folder");
  return folder.parent_path();
}

}  // namespace lethe

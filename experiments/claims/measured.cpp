#include "experiments/certificate.hpp"
#include "experiments/claims/claim.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/json_file.hpp"
#include "experiments/training/stored_artefact.hpp"

namespace lethe {
namespace {

constexpr size_t kHashDigits = 16;

LanguageModel& model_of(const Study& study, const Artefact& artefact) {
  if (!study.loaded || study.loaded->first != artefact.folder) {
    study.loaded.reset();  // before the next: two may not fit the memory
    study.loaded.emplace(artefact.folder, load_model(artefact));
  }
  return study.loaded->second;
}

}  // namespace

void Study::each(const std::function<void(const Artefact&)>& work) const {
  for (size_t m = 0; m < trained.size(); ++m) {
    work(trained[m]);
    progress(static_cast<double>(m + 1) / static_cast<double>(trained.size()));
  }
  if (is_part) throw PartMeasured();
}

nlohmann::json Study::measured(const Artefact& model, const Measure& measure, const nlohmann::json& settings,
                               const std::function<nlohmann::json(LanguageModel&)>& compute) const {
  const nlohmann::json key = {{"measure", measure.name}, {"version", measure.version}, {"settings", settings}};
  const auto folder = model.folder / "measured";
  const auto file = folder / (sha256(key.dump()).substr(0, kHashDigits) + ".json");
  const nlohmann::json done = read_sealed(model.folder / "done.json");
  if (std::filesystem::exists(file))
    if (const nlohmann::json there = read_sealed(file); is_of_weights(there, done)) return there.at("value");
  if (!makes) {
    absent.push_back(model.folder);
    throw NotMeasured();
  }
  nlohmann::json found = key;
  found["value"] = nlohmann::json::parse(compute(model_of(*this, model)).dump());
  found["device"] = model.run.training.device;
  found["weights_sha256"] = done.value("weights_sha256", "unknown");
  found.update(birth_certificate(model.folder, ""));
  found.erase("command_line");
  std::filesystem::create_directories(folder);
  write_sealed(file, found);
  return found["value"];
}

}  // namespace lethe

#include "experiments/training/stored_artefact.hpp"

#include <stdexcept>

#include "experiments/data/sha256.hpp"
#include "experiments/json_file.hpp"

namespace lethe {

using nlohmann::json;

namespace {
constexpr size_t kLongestFault = 1000;  // bytes: a member's name may be longer than a line
constexpr size_t kNameLetters = 16;     // of run_name
}  // namespace

void expect_identity(const Run& run, const std::string& expected, const std::filesystem::path& file,
                     const std::filesystem::path& holder) {
  const json theirs = parse_json(expected, holder.string() + ": identity");
  if (!theirs.is_object() || !theirs.contains("data") || !theirs["data"].is_string())
    throw std::invalid_argument(holder.string() + ": identity: expected one with the hash of its data, found none");
  const std::string found = identity(run, theirs["data"].get<std::string>());
  if (found == expected) return;
  const json ours = json::parse(found), changes = json::diff(theirs, ours);
  const std::string member = changes.empty() ? "" : changes.front().at("path").get<std::string>();
  const auto value = [&](const json& of) {
    const json::json_pointer at(member);
    return of.contains(at) ? shown(of.at(at)) : "none";
  };
  const std::string name = member.size() > kLongestFault ? shown(member) : member;
  throw std::invalid_argument(file.string() + ": expected the run of " + holder.filename().string() + " (" + name +
                              ": " + value(theirs) + "), found " + value(ours) + "; restore it");
}

namespace {

// Only of folders that are named as trainings name them: a person's copy has any name.
void expect_name(const std::filesystem::path& folder, const std::string& name) {
  const std::string found = folder.filename();
  const bool is_name = found.size() == kNameLetters && found.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_name && found != name)
    throw std::invalid_argument(folder.string() + ": expected the model of that name, found " + name +
                                "; rename the folder");
}

}  // namespace

bool is_of_weights(const json& measurement, const json& done) {
  constexpr const char *kMember = "weights_sha256", *kUnknown = "unknown";
  const json measured = measurement.value(kMember, json(kUnknown)), trained = done.value(kMember, json(kUnknown));
  return measured == trained || measured == kUnknown || trained == kUnknown;
}

std::vector<std::filesystem::path> other_trainings(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  for (int number = 1;; ++number) {
    const auto other = folder / "others" / std::to_string(number) / folder.filename();
    if (!std::filesystem::exists(other)) return found;
    found.push_back(other);
  }
}

StoredArtefact read_artefact(const std::filesystem::path& folder) {
  StoredArtefact stored{folder, {}, {}, {}, {}};
  const auto run_file = folder / "run.json", done_file = folder / "done.json";
  try {
    try {
      stored.run = read_json(run_file).get<Run>();
      stored.run.model.check();
      stored.run.training.check();
    } catch (const std::exception& error) {
      const std::string message = error.what();
      throw std::invalid_argument(message.starts_with(run_file.string()) ? message
                                                                         : run_file.string() + ": " + message);
    }
    if (!std::filesystem::exists(done_file)) {
      if (const auto note = folder / "failed.json"; std::filesystem::exists(note))
        stored.failed = read_sealed(note).value("error", "");
      return stored;
    }
    stored.done = read_sealed(done_file);
    if (!stored.done.contains("identity") || !stored.done["identity"].is_string())
      throw std::invalid_argument(done_file.string() + ": identity: expected a text, found none");
    const auto identity = stored.done["identity"].get<std::string>();
    expect_identity(stored.run, identity, run_file, done_file);
    expect_name(folder, sha256(identity).substr(0, kNameLetters));
  } catch (const std::exception& error) {
    stored.broken = error.what();
    if (stored.broken.size() > kLongestFault) stored.broken = as_utf8(stored.broken.substr(0, kLongestFault)) + "…";
  }
  return stored;
}

}  // namespace lethe

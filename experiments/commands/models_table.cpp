#include "experiments/commands/models_table.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/text_table.hpp"
#include "experiments/files.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kNone;
}

std::string local_time(std::time_t time) {
  std::tm local{};
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", localtime_r(&time, &local));
  return text;
}

std::string date_of(const fs::path& path) {
  std::error_code absent;
  const auto written = fs::last_write_time(path, absent);
  if (absent) return "";
  const auto since = std::chrono::file_clock::to_sys(written).time_since_epoch();
  return local_time(std::chrono::duration_cast<std::chrono::seconds>(since).count());
}

/// Of the end that a training has recorded, which stays when its files are copied; "" where that is no time.
std::string date_of_end(const json& done) {
  std::tm parts{};
  const auto found = done.find("time");
  if (found == done.end() || !found->is_string() ||
      !strptime(found->get_ref<const std::string&>().c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts))
    return "";
  return local_time(timegm(&parts));
}

/// The named architecture with these settings; "custom" and the mixers where there is none.
std::string architecture_of(const ModelConfig& model) {
  for (Architecture& known : named_architectures()) {
    ModelConfig& same = known.model;
    same.vocabulary = model.vocabulary, same.layers = model.layers, same.width = model.width;
    same.heads = model.heads, same.mlp_multiple = model.mlp_multiple, same.compute_dtype = model.compute_dtype;
    same.residual_in_compute_dtype = model.residual_in_compute_dtype;
    same.initialization = model.initialization;
    if (json(same) == json(model)) return known.name;
  }
  std::string mixers;
  for (const MixerConfig& mixer : model.mixer.all()) mixers += " " + mixer.row().name;
  return "custom:" + mixers;
}

std::vector<std::string> row_of(const fs::path& folder) {
  const StoredArtefact stored = read_artefact(folder);
  if (!stored.broken.empty()) throw std::runtime_error(stored.broken);
  const Run& run = stored.run;
  const bool is_done = !stored.done.is_null();
  if (is_done && !is_finished(folder))
    throw std::runtime_error((folder / "checkpoint.pt").string() + ": expected a checkpoint, found none");
  const json& done = stored.done;
  double loss = is_done ? number_in(done, "validation_loss") : kNone;
  std::string state = "finished";
  if (is_done && done.contains("diverged") && done.at("diverged").is_string()) {
    state = "failed: " + done.at("diverged").get<std::string>();
  } else if (!is_done) {
    expect_log_of_checkpoint(folder);
    state = is_locked(folder / "lock") ? "training" : stored.failed.empty() ? "stopped" : "failed";
    state += " " + share_logged(stored);
    if (state.starts_with("failed")) state += ": " + stored.failed;
    loss = number_in(last_logged(folder), "loss");
  }
  return {folder.filename(),
          state,
          architecture_of(run.model),
          short_count(static_cast<double>(count_parameters(run.model).total)),
          short_count(static_cast<double>(run.training.total_tokens)),
          run.training.corpus,
          fixed(loss, 4),
          is_done ? date_of_end(done) : date_of(folder / "log.jsonl"),
          run.label};
}

}  // namespace

std::string models_table(const fs::path& models) {
  const std::vector<fs::path> folders = artefact_folders(models);
  if (folders.empty()) return "";
  TextTable table({"name", "state", "architecture", "parameters", "tokens", "corpus", "loss", "date", "label"});
  for (const fs::path& folder : folders) {
    try {
      table.add(row_of(folder));
    } catch (const std::exception& error) {
      std::string reason = error.what();
      std::ranges::replace(reason, '\n', ' ');
      table.add_line(folder.filename().string() + "  broken: " + reason);
    }
  }
  return table.text();
}

}  // namespace lethe

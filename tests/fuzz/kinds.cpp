#include "tests/fuzz/kinds.hpp"

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/claims/record_files.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/dataset_files.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/safetensors.hpp"
#include "experiments/training/stored_artefact.hpp"
#include "experiments/training/trainer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/fuzz/small_artefact.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string hash_of(const torch::Tensor& tensor) {
  const torch::Tensor there = tensor.detach().cpu().contiguous();
  return sha256({static_cast<const char*>(there.const_data_ptr()), there.nbytes()});
}

// A JSON text with the seal of write_sealed; bytes that are no JSON object stay as they are.
std::string resealed(std::string bytes) {
  json object = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bytes;
  object.erase("sha256");
  try {
    object["sha256"] = sha256(object.dump(1));
    return object.dump(1) + "\n";
  } catch (const json::exception&) {  // no UTF-8
    return bytes;
  }
}

std::string json_resealed(const fs::path&, std::string bytes) { return resealed(std::move(bytes)); }

// --- a dataset: dataset.json, a shard, the vocabulary ---

std::string read_all_of_dataset(const fs::path& folder) {
  const DatasetFiles files = read_dataset(folder);
  std::ostringstream text;
  text << files.name << files.tokenizer << files.content_hash << files.source_hash << files.left_out
       << files.begin_token;
  for (const auto& [name, split] : files.splits) {
    const auto* bytes = reinterpret_cast<const char*>(split.tokens.data());
    text << name << split.documents << split.bytes << sha256({bytes, split.tokens.size() * sizeof(uint16_t)});
  }
  for (const std::string& piece : files.pieces) text << piece;
  return text.str();
}

fs::path write_description(const fs::path& folder) { return write_small_dataset(folder) / "dataset.json"; }
fs::path write_shard(const fs::path& folder) { return write_small_dataset(folder) / "train_000.bin"; }
fs::path write_vocabulary(const fs::path& folder) { return write_small_dataset(folder) / "vocabulary.bin"; }

// dataset.json with the hash of these bytes in the place of a file's.
void list_hash(const fs::path& folder, const std::string& file, const std::string& hash) {
  json description = json::parse(read_whole(folder / "dataset.json"));
  if (file == "vocabulary.bin") description["vocabulary"]["sha256"] = hash;
  else description["splits"]["train"]["shards"][0]["sha256"] = hash;
  describe_dataset(folder, std::move(description));
}

template <const char* const& file>
std::string listed(const fs::path& folder, std::string bytes) {
  list_hash(folder, file, sha256(bytes));
  return bytes;
}
constexpr const char* kShard = "train_000.bin";
constexpr const char* kVocabulary = "vocabulary.bin";

// --- a trained model: run.json, done.json, checkpoint.pt, log.jsonl ---

fs::path write_run(const fs::path& folder) { return write_small_artefact(folder) / "run.json"; }
fs::path write_done(const fs::path& folder) { return write_small_artefact(folder) / "done.json"; }
fs::path write_log(const fs::path& folder) { return write_small_artefact(folder) / "log.jsonl"; }
fs::path write_checkpoint_file(const fs::path& folder) { return write_small_artefact(folder) / "checkpoint.pt"; }

fs::path write_begun_run(const fs::path& folder) {
  fs::remove(write_small_artefact(folder) / "done.json");
  return folder / "run.json";
}

// As lethe list shows it.
std::string read_description(const fs::path& folder) {
  const StoredArtefact stored = read_artefact(folder);
  if (!stored.broken.empty()) throw std::invalid_argument(stored.broken);
  static_cast<void>(count_parameters(stored.run.model));
  static_cast<void>(stored.run.training.steps());
  return stored.done.is_null() ? identity(stored.run, std::string()) : stored.done["identity"].get<std::string>();
}

std::string read_done(const fs::path& folder) {
  return read_description(folder) + read_sealed(folder / "done.json").dump();
}

// The weights, and the state of the training from which it goes on.
std::string read_weights_and_state(const fs::path& folder) {
  const Run run = read_json(folder / "run.json").get<Run>();
  std::string text = hash_of(torch::nn::utils::parameters_to_vector(load_model({folder, run})->parameters()));
  Trainer trainer(run, small_dataset(), nullptr);
  const auto header = trainer.resume(folder / "checkpoint.pt");
  text += hash_of(torch::nn::utils::parameters_to_vector(trainer.model()->parameters()));
  return text + std::to_string(trainer.steps_done()) + json(header->log).dump() + header->identity;
}

std::string checkpoint_resealed(const fs::path&, std::string bytes) {
  const size_t first = bytes.find('\n');
  if (first == std::string::npos) return bytes;
  const std::string rest = bytes.substr(first + 1);
  return "lethe checkpoint 2 " + sha256(rest) + " " + std::to_string(rest.size()) + "\n" + rest;
}

std::string read_losses(const fs::path& folder) {
  std::string text;
  read_log(folder, [&](const json& line) { text += line.dump(); });
  return text;
}

std::string log_resealed(const fs::path& folder, std::string bytes) {
  json done = read_sealed(folder / "done.json");
  done["log"] = position_of(bytes);
  write_sealed(folder / "done.json", done);
  return bytes;
}

// --- claims ---

constexpr const char* kPaper = "forgetting_transformer";
constexpr const char* kClaim = "ablations";
const Experiment kExperiment{kPaper, kClaim, nullptr, nullptr};

fs::path write_config(const fs::path& folder) {
  const fs::path papers = folder / "experiments" / "papers" / kPaper;
  fs::create_directories(papers / kClaim);
  fs::create_directories(papers / "other");
  overwrite(papers / "other" / "config.toml",
            "[claim]\ntitle = \"the base\"\n[quick]\ncost = \"none\"\ntraining = { batch_tokens = 1024 }\n");
  overwrite(papers / kClaim / "config.toml",
            "# A comment.\n[claim]\ntitle = \"What each row loses\"\norder = 2.5\n[claim.words]\nloss = \"loss\"\n"
            "[quick]\nbase = \"../other/config.toml\"\ncost = \"5 minutes\"\nseeds = 3\nrates = [1e-3, 2e-3]\n"
            "model = { layers = 4, mixer.name = \"decay\" }\ntraining.total_tokens = 1_000_000\nfrom = 2026-01-01\n");
  return papers / kClaim / "config.toml";
}

std::string read_config(const fs::path& folder) {
  return claim_title(folder, kExperiment) + cost(folder, kExperiment, "quick") +
         claim_settings(folder, kExperiment, "quick").dump();
}

constexpr const char* kColumns =
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,"
    "stddev,samples";
constexpr const char* kRow = "forgetting_transformer,ablations,FoX (Pro),lethe,cpu,float32,4,256,3,32,32,7,loss,nats,";

fs::path write_table(const fs::path& folder) {
  overwrite(folder / "ablations.csv", std::string(kColumns) + "\n" + kRow + "1.5,0.1,3\n" + kRow + "1e-300,0,1\n");
  return folder / "ablations.csv";
}

std::string read_table(const fs::path& folder) { return std::to_string(read_records(folder / "ablations.csv").size()); }

fs::path write_paper(const fs::path& folder) {
  overwrite(folder / "paper.csv", std::string(kColumns) + ",source,comparability\n" + kRow +
                                      "6.65,0,1,\"FoX, Table 3\",trend\n" + kRow + "6.5,0,1,FoX,exact\n");
  return folder / "paper.csv";
}

std::string read_numbers(const fs::path& folder) { return std::to_string(read_paper(folder / "paper.csv").size()); }

fs::path write_measurement(const fs::path& folder) {
  write_sealed(folder / "measured.json", {{"measure", "per_token_loss"}, {"version", 1}, {"value", {1.5, 0.25, 1e-9}}});
  return folder / "measured.json";
}

std::string read_measurement(const fs::path& folder) { return read_sealed(folder / "measured.json").dump(); }

fs::path write_result(const fs::path& folder) {
  overwrite(folder / "ablations.points.csv", "quantity,variant,seed,x,y,value\nloss,FoX,0,1,,2.5\n");
  Record record{
      .experiment = kPaper, .claim = kClaim, .variant = "FoX", .metric = "loss", .unit = "nats", .value = 1.5};
  write_records(folder / "ablations", {record}, "lethe run", {{"verdict", "refuted"}, {"key", "k"}});
  return folder / "ablations.json";
}

fs::path write_result_table(const fs::path& folder) {
  write_result(folder);
  return folder / "ablations.csv";
}

std::string read_result(const fs::path& folder) {
  std::string text = read_certificate(folder / "ablations").dump();
  for (const Record& record : read_records(folder / "ablations.csv"))
    text += record.variant + std::to_string(record.value);
  return text;
}

std::string table_resealed(const fs::path& folder, std::string bytes) {
  json certificate = read_sealed(folder / "ablations.json");
  certificate["files"]["ablations.csv"] = sha256(bytes);
  write_sealed(folder / "ablations.json", certificate);
  return bytes;
}

// --- weights that a user gives ---

fs::path write_weights(const fs::path& folder) {
  const OutputFile output(folder / "weights.safetensors");
  write_safetensors(output,
                    {.tensors = {{"a", torch::arange(6.0).view({2, 3})}, {"b", torch::zeros({2}, torch::kInt64)}},
                     .metadata = {{"format", "pt"}}});
  return folder / "weights.safetensors";
}

std::string read_weights(const fs::path& folder) {
  std::string text;
  for (const auto& [name, tensor] : read_safetensors(folder / "weights.safetensors").tensors)
    text += name + hash_of(tensor);
  return text;
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"checkpoint", write_checkpoint_file, read_weights_and_state, checkpoint_resealed},
      {"shard", write_shard, read_all_of_dataset, listed<kShard>},
      {"vocabulary", write_vocabulary, read_all_of_dataset, listed<kVocabulary>},
      {"dataset_json", write_description, read_all_of_dataset, json_resealed},
      {"run_json", write_run, read_description},
      {"begun_run_json", write_begun_run, read_description, nullptr, /*has_hash=*/false},
      {"done_json", write_done, read_done, json_resealed},
      {"log", write_log, read_losses, log_resealed},
      {"result_json", write_result, read_result, json_resealed},
      {"result_csv", write_result_table, read_result, table_resealed},
      {"measurement", write_measurement, read_measurement, json_resealed},
      {"toml", write_config, read_config, nullptr, false},
      {"csv", write_table, read_table, nullptr, false},
      {"paper_csv", write_paper, read_numbers, nullptr, false},
      {"safetensors", write_weights, read_weights, nullptr, false},
  };
  return all;
}

}  // namespace lethe

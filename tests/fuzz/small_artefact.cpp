#include "tests/fuzz/small_artefact.hpp"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/training/conversion.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint16_t kTokens = 17, kBeginToken = 16;

template <class Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string shard_of(int tokens) {
  std::string bytes;
  for (const int32_t number : {20240520, 1, tokens}) append(bytes, number);
  bytes.resize(1024);
  for (int i = 0; i < tokens; ++i)
    append<uint16_t>(bytes, i % 40 == 0 ? kBeginToken : static_cast<uint16_t>(i * i % 16));
  return bytes;
}

std::string vocabulary() {
  std::string bytes;
  append<uint32_t>(bytes, kTokens);
  for (int token = 0; token < kTokens; ++token) {
    append<uint16_t>(bytes, 1);
    bytes += static_cast<char>('a' + token);
  }
  return bytes;
}

lethe::Run small_run() {
  lethe::Run run{.label = "small", .model = tiny_model(), .training = {}};
  run.model.vocabulary = kTokens;
  run.model.layers = 1, run.model.width = 8, run.model.heads = 1, run.model.mlp_multiple = 4;
  run.training.context_length = 8;
  run.training.batch_tokens = run.training.total_tokens = 16;
  run.training.total_tokens *= 3;
  run.training.corpus = "small";
  return run;
}

}  // namespace

fs::path write_small_dataset(const fs::path& folder) {
  json splits;
  for (const auto& [name, tokens] : {std::pair{"train", 200}, std::pair{"valid", 40}, std::pair{"test", 40}}) {
    const std::string file = std::string(name) + "_000.bin", bytes = shard_of(tokens);
    overwrite(folder / file, bytes);
    splits[name] = {{"tokens", tokens},
                    {"bytes", tokens},
                    {"documents", {"a"}},
                    {"shards", {{{"file", file}, {"tokens", tokens}, {"sha256", sha256(bytes)}}}}};
  }
  overwrite(folder / "vocabulary.bin", vocabulary());
  describe_dataset(folder, {{"format", 2},
                            {"name", "small"},
                            {"tokenizer", "bytes"},
                            {"begin_token", kBeginToken},
                            {"vocabulary", {{"size", kTokens}, {"sha256", sha256(vocabulary())}}},
                            {"source", {{"sha256", sha256("text")}}},
                            {"left_out", {{"links", 2}}},
                            {"not_utf8", 0},
                            {"splits", splits}});
  return folder;
}

void describe_dataset(const fs::path& folder, json description) {
  std::string listing;
  for (const char* split : {"train", "valid", "test"})
    for (const json& shard : description["splits"][split]["shards"])
      listing += shard["sha256"].get<std::string>() + "  " + shard["file"].get<std::string>() + "\n";
  listing += description["vocabulary"]["sha256"].get<std::string>() + "  vocabulary.bin\n";
  description["content_sha256"] = sha256(listing);
  description.erase("sha256");
  description["sha256"] = sha256(description.dump(1));
  overwrite(folder / "dataset.json", description.dump(1) + "\n");
}

const Dataset& small_dataset() {
  static const TemporaryFolder folder;
  static const Dataset dataset(write_small_dataset(folder.path()));
  return dataset;
}

fs::path write_small_artefact(const fs::path& folder) {
  static const TemporaryFolder models;
  static const fs::path trained_once = [] {
    lethe::Run run = small_run();
    run.conversion = std::make_shared<const Conversion>(Conversion{.source = run});
    run.training.seed = 1;
    return trained(run, small_dataset(), models.path()).folder;
  }();
  for (const char* file : {"run.json", "done.json", "log.jsonl", "checkpoint.pt"})
    overwrite(folder / file, read_whole(trained_once / file));
  return folder;
}

LogPosition position_of(std::string_view log) {
  LogPosition at;
  for (size_t end; (end = log.find('\n')) != std::string_view::npos; log.remove_prefix(end + 1))
    at = {at.bytes + static_cast<int64_t>(end) + 1, sha256(at.hash + std::string(log.substr(0, end)))};
  return at;
}

}  // namespace lethe

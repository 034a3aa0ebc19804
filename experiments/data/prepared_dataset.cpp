#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "experiments/data/dataset.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool is_dataset(const fs::path& folder) { return fs::exists(folder / "dataset.json"); }

/// Whether a dataset has a hash of its dataset.json; those of format 1 have none, and are prepared anew.
bool is_sealed(const fs::path& folder) { return !recorded(folder, "sha256").empty(); }

bool is_named(const std::string& corpus) { return corpus == "bible" || corpus == "headers"; }

}  // namespace

void check_corpus(const std::string& corpus, const std::string& tokenizer) {
  if (tokenizer != "bytes" && tokenizer != "gpt2")
    throw std::invalid_argument("tokenizer: expected 'bytes' or 'gpt2', found '" + tokenizer + "'");
  if (!is_named(corpus) && !fs::is_directory(corpus) && !fs::is_regular_file(corpus))
    throw std::invalid_argument("corpus: expected 'bible', 'headers' or text (a file or a folder), found '" + corpus +
                                "'");
}

fs::path prepare_dataset(const std::string& corpus, const std::string& tokenizer, const fs::path& root,
                         const std::string& gpt2_files) {
  check_corpus(corpus, tokenizer);
  std::vector<std::string> call{LETHE_PYTHON, LETHE_TOKENIZER, "prepare",     "--corpus=" + corpus,
                                "--data",     root.string(),   "--tokenizer", tokenizer};
  if (!gpt2_files.empty()) call.insert(call.end(), {"--gpt2-files", gpt2_files});
  std::string folder = run_program(call);
  if (folder.ends_with('\n')) folder.pop_back();
  return folder;
}

fs::path prepared_dataset(const std::string& corpus, const std::string& tokenizer, const fs::path& root) {
  check_corpus(corpus, tokenizer);
  if (!is_named(corpus) && is_dataset(corpus)) {
    if (const auto found = recorded(corpus, "tokenizer"); found != tokenizer)
      throw std::invalid_argument("tokenizer: expected '" + found + "', which the dataset " + corpus +
                                  " is in, found '" + tokenizer + "'");
    return corpus;
  }
  const fs::path place = root / (corpus + "-" + tokenizer);
  return is_named(corpus) && is_sealed(place) ? place : prepare_dataset(corpus, tokenizer, root);
}

fs::path dataset_with(const std::string& content, const std::vector<fs::path>& roots) {
  for (const fs::path& root : roots) {
    if (!content.empty() && recorded(root, "content_sha256") == content) return root;
    std::error_code error;
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(root, error)) folders.push_back(entry.path());
    std::ranges::sort(folders);
    for (const fs::path& folder : folders)
      if (!content.empty() && recorded(folder, "content_sha256") == content) return folder;
  }
  return {};
}

std::vector<int64_t> tokens_of(const Dataset& dataset, const std::string& text) {
  if (dataset.tokenizer() == "bytes") return dataset.encode_bytes(text);
  const std::string vocabulary = (dataset.folder() / "vocabulary.bin").string();
  std::istringstream printed(run_program({LETHE_PYTHON, LETHE_TOKENIZER, "encode", "--vocabulary", vocabulary}, text));
  std::vector<int64_t> tokens;
  for (int64_t token; printed >> token;) tokens.push_back(token);
  return tokens;
}

std::vector<std::vector<int64_t>> tokens_of(const Dataset& dataset, const std::vector<std::string>& texts) {
  std::vector<std::vector<int64_t>> found;
  if (dataset.tokenizer() == "bytes") {
    for (const std::string& text : texts) found.push_back(dataset.encode_bytes(text));
    return found;
  }
  const std::string vocabulary = (dataset.folder() / "vocabulary.bin").string();
  std::istringstream printed(run_program(
      {LETHE_PYTHON, LETHE_TOKENIZER, "encode", "--texts", "--vocabulary", vocabulary}, nlohmann::json(texts).dump()));
  for (std::string line; std::getline(printed, line);) {
    std::istringstream numbers(line);
    found.emplace_back();
    for (int64_t token; numbers >> token;) found.back().push_back(token);
  }
  return found;
}

}  // namespace lethe

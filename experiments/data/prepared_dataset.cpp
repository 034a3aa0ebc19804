#include <sstream>
#include <stdexcept>

#include "experiments/data/dataset.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool is_dataset(const fs::path& folder) { return fs::exists(folder / "dataset.json"); }
bool is_named(const std::string& corpus) { return corpus == "bible" || corpus == "headers"; }

void check(const std::string& corpus, const std::string& tokenizer) {
  if (tokenizer != "bytes" && tokenizer != "gpt2")
    throw std::invalid_argument("tokenizer: expected 'bytes' or 'gpt2', found '" + tokenizer + "'");
  if (!is_named(corpus) && !fs::is_directory(corpus))
    throw std::invalid_argument("corpus: expected 'bible', 'headers' or a folder of text, found '" + corpus + "'");
  // Its dataset would have the path of the named corpus, and be read in its place.
  if (!is_named(corpus) && is_named(fs::canonical(corpus).filename()))
    throw std::invalid_argument("corpus: expected a folder with a name other than 'bible' and 'headers', found '" + corpus + "'");
}

fs::path place_of(const std::string& corpus, const std::string& tokenizer, const fs::path& root) {
  const std::string name = is_named(corpus) ? corpus : fs::canonical(corpus).filename().string();
  return root / (name + "-" + tokenizer);
}

}  // namespace

fs::path prepare_dataset(const std::string& corpus, const std::string& tokenizer, const fs::path& root,
                         const std::string& gpt2_files) {
  check(corpus, tokenizer);
  const fs::path output = place_of(corpus, tokenizer, root);
  std::vector<std::string> call{LETHE_PYTHON,  LETHE_TOKENIZER, "prepare",  "--corpus",     corpus,
                                "--tokenizer", tokenizer,       "--output", output.string()};
  if (!gpt2_files.empty()) call.insert(call.end(), {"--gpt2-files", gpt2_files});
  run_program(call);
  return output;
}

fs::path prepared_dataset(const std::string& corpus, const std::string& tokenizer, const fs::path& root) {
  check(corpus, tokenizer);
  if (!is_named(corpus) && is_dataset(corpus)) {
    if (const auto found = Dataset(corpus).tokenizer(); found != tokenizer)
      throw std::invalid_argument("tokenizer: expected '" + found + "', which the dataset " + corpus +
                                  " is in, found '" + tokenizer + "'");
    return corpus;
  }
  const fs::path place = place_of(corpus, tokenizer, root);
  return is_named(corpus) && is_dataset(place) ? place : prepare_dataset(corpus, tokenizer, root);
}

std::vector<int64_t> tokens_of(const Dataset& dataset, const std::string& text) {
  if (dataset.tokenizer() == "bytes") return dataset.encode_bytes(text);
  std::istringstream printed(
      run_program({LETHE_PYTHON, LETHE_TOKENIZER, "encode", "--tokenizer", dataset.tokenizer()}, text));
  std::vector<int64_t> tokens;
  for (int64_t token; printed >> token;) tokens.push_back(token);
  return tokens;
}

}  // namespace lethe

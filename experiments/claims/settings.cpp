#include "experiments/claims/settings.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {
namespace {

// The parser bounds nested values but not dotted keys, and recurses into both.
constexpr std::ptrdiff_t kMostDots = 2048;
constexpr uintmax_t kLargest = 1 << 20;
constexpr size_t kLongestReason = 300;  // of the parser's words

// The position of a letter beyond ASCII where TOML has none: outside texts of one line and comments; or the size of the text. There, and in texts of
// several lines, toml++ 3.3 takes some for whitespace and others to an unreachable place (is_non_ascii_horizontal_whitespace).
size_t misplaced_letter(std::string_view text) {
  const bool has_lines = text.find("\"\"\"") != text.npos || text.find("'''") != text.npos;
  char inside = 0;  // ", ' or #
  for (size_t at = text.starts_with("\uFEFF") ? 3 : 0; at < text.size(); ++at) {
    const char c = text[at];
    const std::string_view rest = text.substr(at);
    if (c == '\n' || c == '\v' || c == '\f' || c == '\r') inside = 0;
    else if ((c & 0x80) != 0 && (inside == 0 || has_lines)) return at;
    else if (rest.starts_with("\u2028") || rest.starts_with("\u2029") || rest.starts_with("\u0085"))
      return at;  // lines too
    else if (inside == '"' && c == '\\') ++at;
    else if (inside == 0 && (c == '"' || c == '\'' || c == '#')) inside = c;
    else if (inside == c && c != '#') inside = 0;
  }
  return text.size();
}

toml::table read_toml(const std::filesystem::path& path) {
  std::error_code absent;
  if (const auto size = std::filesystem::file_size(path, absent); !absent && size > kLargest)
    throw std::invalid_argument(path.string() + ": expected at most 1 MiB, found " + std::to_string(size) + " bytes");
  const std::string text = read_whole(path);
  if (const auto dots = std::ranges::count(text, '.'); dots > kMostDots)
    throw std::invalid_argument(path.string() + ": expected at most " + std::to_string(kMostDots) + " dots, found " +
                                std::to_string(dots));
  if (const size_t at = misplaced_letter(text); at < text.size())
    throw std::invalid_argument(
        path.string() + ": expected letters beyond ASCII in texts of one line and comments alone, found one in line " +
        std::to_string(1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n')));
  try {
    return toml::parse(text, path.string());
  } catch (const toml::parse_error& error) {
    std::ostringstream text;
    text << path.string() << ": " << as_utf8(std::string(error.description()).substr(0, kLongestReason)) << " at "
         << error.source().begin;
    throw std::invalid_argument(text.str());
  }
}

constexpr size_t kLongestChain = 8;  // of config.toml files, each the base of the one before

// chain: the files whose bases led here.
nlohmann::json scale_table(const std::filesystem::path& path, const std::string& scale,
                           std::vector<std::filesystem::path> chain = {}) {
  chain.push_back(path.lexically_normal());
  if (chain.size() > kLongestChain || std::ranges::count(chain, chain.back()) > 1)
    throw std::invalid_argument(chain.front().string() + ": base: expected a chain of at most " +
                                std::to_string(kLongestChain) + " files without a cycle, found " +
                                chain.back().string() + " as number " + std::to_string(chain.size()));
  toml::table file = read_toml(path);
  file.erase("claim");
  const toml::table* table = file[scale].as_table();
  if (table == nullptr) {
    std::string known = listed(file, [](const auto& entry) { return entry.first.str(); });
    if (known.size() > kLongestReason) known = shown(known);
    throw std::invalid_argument("scale: expected one of " + known + " of " + path.string() + ", found " + scale);
  }
  std::ostringstream text;
  text << toml::json_formatter{*table};
  nlohmann::json settings = parse_json(text.str(), path.string());
  if (!settings.contains("base")) return settings;
  if (!settings["base"].is_string())
    throw std::invalid_argument(path.string() + ": base: expected a path, found " + shown(settings["base"]));
  const std::filesystem::path base_file = path.parent_path() / settings["base"].get<std::string>();
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(base_file, unreadable))
    throw std::invalid_argument(path.string() + ": base: expected a file, found " + shown(settings["base"]));
  nlohmann::json base = scale_table(base_file, scale, std::move(chain));
  settings.erase("base");
  base.merge_patch(settings);
  return base;
}

/// "linux" of artefacts/data/linux-gpt2: the last name of a corpus, of a dataset's folder without the tokenizer and the hash that a later text gets.
std::string corpus_name(const std::string& corpus, const std::string& tokenizer) {
  constexpr size_t kHash = 12;  // digits that tools/tokenize_corpus.py appends
  std::string name = (std::filesystem::path(corpus) / "").parent_path().filename();
  const size_t at = name.rfind("-" + tokenizer);
  if (at == name.npos) return name;
  const std::string rest = name.substr(at + 1 + tokenizer.size());
  const bool is_hash =
      rest.size() == 1 + kHash && rest.front() == '-' && rest.find_first_not_of("0123456789abcdef", 1) == rest.npos;
  if (rest.empty() || is_hash) name.resize(at);
  return name;
}

/// Holds settings to the hashes of their corpus, where experiments/data/<its name>.toml has them: `text`, of its source, and `content`, of the
/// dataset in their tokenizer.
void add_hashes(nlohmann::json& settings, const std::filesystem::path& root) {
  const std::string corpus = settings["training"]["corpus"], tokenizer = settings["training"].value("tokenizer", "");
  const std::filesystem::path path = root / "experiments" / "data" / (corpus_name(corpus, tokenizer) + ".toml");
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return;
  const toml::table index = read_toml(path);
  const auto text = index["corpus"]["text"].value<std::string>();
  if (!text) throw std::invalid_argument(path.string() + ": corpus.text: expected a SHA-256, found none");
  settings["text"] = *text;
  if (const auto content = index["content"][tokenizer].value<std::string>()) settings["content"] = *content;
}

}  // namespace

std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment) {
  return root / "experiments" / "papers" / experiment.paper / experiment.claim;
}

nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale,
                              const std::string& corpus) {
  nlohmann::json settings = scale_table(claim_folder(root, experiment) / "config.toml", scale);
  if (corpus.empty()) return settings;
  if (!settings.contains("training") || !settings["training"].contains("corpus"))
    throw std::invalid_argument("--corpus: expected claims that train on a text, found " + experiment.name());
  if (settings["training"]["corpus"] == corpus) return settings;
  settings["training"]["corpus"] = corpus;
  settings.erase("text");  // of its own corpus
  add_hashes(settings, root);
  return settings;
}

std::string claim_title(const std::filesystem::path& root, const Experiment& experiment) {
  const std::filesystem::path path = claim_folder(root, experiment) / "config.toml";
  const auto title = read_toml(path)["claim"]["title"].value<std::string>();
  if (!title) throw std::invalid_argument(path.string() + ": claim.title: expected a text, found none");
  return *title;
}

std::string cost(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale) {
  const nlohmann::json settings = claim_settings(root, experiment, scale);
  if (!settings.contains("cost") || !settings["cost"].is_string())
    throw std::invalid_argument((claim_folder(root, experiment) / "config.toml").string() + ": " + scale +
                                ".cost: expected a text, found none");
  return settings["cost"].get<std::string>();
}

}  // namespace lethe

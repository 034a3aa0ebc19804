#include "experiments/claims/settings.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

// The parser bounds nested values but not dotted keys, and recurses into both.
constexpr std::ptrdiff_t kMostDots = 2048;
constexpr uintmax_t kLargest = 1 << 20;
constexpr size_t kLongestReason = 300;  // of the parser's words

toml::table read_toml(const std::filesystem::path& path) {
  std::error_code absent;
  if (const auto size = std::filesystem::file_size(path, absent); !absent && size > kLargest)
    throw std::invalid_argument(path.string() + ": expected at most 1 MiB, found " + std::to_string(size) + " bytes");
  const std::string text = read_whole(path);
  if (const auto dots = std::ranges::count(text, '.'); dots > kMostDots)
    throw std::invalid_argument(path.string() + ": expected at most " + std::to_string(kMostDots) + " dots, found " +
                                std::to_string(dots));
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
    std::string known;
    for (const auto& [name, _] : file) known += (known.empty() ? "" : ", ") + std::string(name.str());
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

}  // namespace

std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment) {
  return root / "experiments" / "papers" / experiment.paper / experiment.claim;
}

nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment,
                              const std::string& scale) {
  return scale_table(claim_folder(root, experiment) / "config.toml", scale);
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

#pragma once
// The data sets of claims.

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "experiments/data/dataset.hpp"

namespace lethe {

/// Data sets by corpus and tokenizer, each read once; an empty data set for a claim that reads no text.
class Datasets {
 public:
  explicit Datasets(std::filesystem::path root) : root_(std::move(root)) {}

  const Dataset& of(const nlohmann::json& settings) {
    if (!settings.contains("training")) return none_;
    const std::string corpus = settings["training"].at("corpus"), tokenizer = settings["training"].at("tokenizer");
    auto& dataset = loaded_[{corpus, tokenizer}];
    if (!dataset) dataset = std::make_unique<Dataset>(prepared_dataset(corpus, tokenizer, root_));
    if (const std::string text = settings.value("text", dataset->source_hash()); text != dataset->source_hash())
      throw std::invalid_argument(corpus + ": expected the text " + text +
                                  " of config.toml (tools/fetch_books.py rebuilds it), found " +
                                  dataset->source_hash());
    return *dataset;
  }

 private:
  std::filesystem::path root_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Dataset>> loaded_;
  Dataset none_;
};

}  // namespace lethe

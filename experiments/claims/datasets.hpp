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

  /// reads   training.corpus and training.tokenizer; text and content: the SHA-256 that its source and the dataset must have, where the settings
  ///         name one
  /// throws  std::invalid_argument naming the corpus and both hashes where one is another; as prepared_dataset
  const Dataset& of(const nlohmann::json& settings) {
    if (!settings.contains("training")) return none_;
    const std::string corpus = settings["training"].at("corpus"), tokenizer = settings["training"].at("tokenizer");
    auto& dataset = loaded_[{corpus, tokenizer}];
    if (!dataset) dataset = std::make_unique<Dataset>(prepared_dataset(corpus, tokenizer, root_));
    if (const std::string text = settings.value("text", dataset->source_hash()); text != dataset->source_hash())
      throw std::invalid_argument(corpus + ": expected the text " + text +
                                  " of config.toml or of the corpus's index in experiments/data "
                                  "(tools/fetch_books.py and tools/fetch_linux.py rebuild theirs), found " +
                                  dataset->source_hash());
    if (const std::string content = settings.value("content", dataset->content_hash());
        content != dataset->content_hash())
      throw std::invalid_argument(corpus + ": expected the dataset " + content +
                                  " of the corpus's index in experiments/data, found " + dataset->content_hash());
    return *dataset;
  }

 private:
  std::filesystem::path root_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Dataset>> loaded_;
  Dataset none_;
};

}  // namespace lethe

#pragma once
// The files of a dataset, read and checked: dataset.json, shards, vocabulary. The format is in README.md.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lethe {

/// The tokens of one split, and what they came from.
struct Split {
  std::vector<uint16_t> tokens;
  int64_t documents = 0;
  int64_t bytes = 0;  ///< of its documents, before tokenization
};

/// The contents of a dataset's folder.
struct DatasetFiles {
  std::string name, tokenizer, content_hash;
  std::string source_hash;  ///< of the text, whatever the tokenizer
  std::string left_out;     ///< what its preparation left out of the corpus, in words; empty: nothing
  int64_t begin_token = 0;
  std::map<std::string, Split> splits;  ///< train, valid, test
  std::vector<std::string> pieces;      ///< token id → bytes
};

/// Reads a dataset's folder. Sizes are checked against the files before memory is taken for them, and every hash once: the note
/// .verified in the folder keeps size, times, inode and hash of the files that were found whole, and a file that differs from its
/// line there is hashed again. Where the folder can't be written, every call hashes.
///
/// throws  std::invalid_argument "dataset: expected …, found …", naming the file
/// cost    2 bytes of memory a token; about 13 ms a million tokens with the hash, 2 ms without
DatasetFiles read_dataset(const std::filesystem::path& folder);

/// A text in a folder's dataset.json, e.g. content_sha256; empty where there is none that can be read. No file is checked against it.
std::string recorded(const std::filesystem::path& folder, const std::string& member);

}  // namespace lethe

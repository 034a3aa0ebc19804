#pragma once
// Token shards and the splits that training and evaluation read.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lethe {

/// A corpus as tokens: one uint16 array a split, documents separated by the begin-of-document token.
///
/// A dataset is a folder that `lethe data prepare` (tools/tokenize.py behind it) writes:
///   train_000.bin …, valid_000.bin, test_000.bin   uint16 shards with the 1024-byte header of llm.c (magic, version, tokens)
///   dataset.json   name, tokenizer, vocabulary, begin token, documents and tokens a split, sha-256 of the source and the shards
///   vocabulary.bin token id → bytes, for decoding by table
class Dataset {
 public:
  /// throws  std::invalid_argument "dataset: expected …, found …" where a file is absent, truncated or not what its hash says
  explicit Dataset(const std::filesystem::path& folder);

  const std::string& name() const { return name_; }
  const std::string& content_hash() const { return content_hash_; }  ///< of all shards: part of every artefact's name
  int64_t vocabulary() const { return vocabulary_; }
  int64_t begin_token() const { return begin_token_; }
  int64_t tokens(const std::string& split) const;  ///< "train", "valid", "test"

  /// One batch of training sequences: labels are the text, tokens the same rolled by one with the begin token in front
  /// (FoX's BOS rule). Which sequences is a pure function of (seed, first_sequence): sequence n of an epoch is row
  /// permutation(seed, epoch)(n) of the split cut into pieces of `length`.
  struct Batch {
    torch::Tensor tokens;  ///< [count, length] int64
    torch::Tensor labels;  ///< [count, length] int64
  };
  Batch training_batch(int64_t first_sequence, int64_t count, int64_t length, uint64_t seed) const;

  /// Evaluation sequences in text order: the split cut into pieces of `length`, pieces first .. first + count.
  Batch sequences(const std::string& split, int64_t first, int64_t count, int64_t length) const;
  int64_t sequence_count(const std::string& split, int64_t length) const { return tokens(split) / length; }

  /// The bytes that tokens stand for, by table.
  std::string decode(const std::vector<int64_t>& tokens) const;
  /// Tokens of a text; byte-level datasets only (a BPE dataset's prompt is tokenized by tools/tokenize.py).
  std::vector<int64_t> encode_bytes(const std::string& text) const;

 private:
  std::string name_, content_hash_, tokenizer_;
  int64_t vocabulary_ = 0, begin_token_ = 0;
  std::vector<uint16_t> train_, valid_, test_;
  std::vector<std::string> pieces_;
};

/// The dataset folder for a corpus by name ("bible", "headers") or path (any folder of text), prepared on the first call by
/// running tools/tokenize.py, found again afterwards.
///
/// reads    corpus; tokenizer "bytes" or "gpt2"; root, where datasets live (artefacts/data)
std::filesystem::path prepared_dataset(const std::string& corpus, const std::string& tokenizer,
                                       const std::filesystem::path& root);

}  // namespace lethe

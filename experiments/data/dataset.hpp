#pragma once
// Token shards and the splits that training and evaluation read.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/data/dataset_files.hpp"

namespace lethe {

/// A corpus as tokens: one uint16 array a split; each document starts with the begin token.
///
/// A dataset is a folder that `lethe data prepare` writes through tools/tokenize_corpus.py (format: README.md):
///   train_000.bin …, valid_000.bin, test_000.bin
///                   uint16 shards with the 1024-byte header of llm.c (magic, version, tokens)
///   dataset.json    name, tokenizer, begin token; documents and tokens a split; SHA-256 of the source and of the files
///   vocabulary.bin  token id → bytes, for decoding by table
class Dataset {
 public:
  /// An empty dataset, for claims that read no text. Its content hash is empty.
  Dataset() = default;

  /// Reads and checks a dataset folder.
  ///
  /// throws, cost  as read_dataset
  explicit Dataset(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& name() const { return files_.name; }
  const std::string& tokenizer() const { return files_.tokenizer; }  ///< "bytes" or "gpt2"
  /// Of all shards and the vocabulary: part of every artefact's name.
  const std::string& content_hash() const { return files_.content_hash; }
  const std::string& source_hash() const { return files_.source_hash; }  ///< of the text, whatever the tokenizer
  /// What its preparation left out of the corpus, in words; empty: nothing.
  const std::string& left_out() const { return files_.left_out; }
  int64_t vocabulary() const { return static_cast<int64_t>(files_.pieces.size()); }
  int64_t begin_token() const { return files_.begin_token; }
  /// throws  std::invalid_argument for a split other than "train", "valid", "test"
  int64_t tokens(const std::string& split) const;
  int64_t documents(const std::string& split) const;
  int64_t bytes(const std::string& split) const;  ///< of the documents, before tokenization

  /// One batch of training sequences: labels are the text, tokens the same rolled by one with the begin token in front
  /// (FoX's BOS rule). The sequences are a pure function of (seed, first_sequence): sequence n of an epoch is row
  /// permutation(seed, epoch)(n) of the split cut into pieces of `length`. A share `repeats` of them repeat: x_t = x_{t−m} from t = m on,
  /// with m uniform between length/16 and length/2, at least 1: text from which a model learns to copy.
  ///
  /// throws  std::invalid_argument where the split is shorter than one sequence
  struct Batch {
    torch::Tensor tokens;  ///< [count, length] int64
    torch::Tensor labels;  ///< [count, length] int64
    /// Where documents are packed: [N+1] int64, the first token of each in the rows, one row after the other, then count·length
    torch::Tensor cu_seqlens = {};
  };
  Batch training_batch(int64_t first_sequence, int64_t count, int64_t length, uint64_t seed, double repeats = 0) const;

  /// The batch with cu_seqlens: a document begins at each begin token, and at each row's start.
  Batch packed(Batch batch) const;

  /// Evaluation sequences in text order: the split cut into pieces of `length`, pieces first .. first + count.
  ///
  /// throws  std::invalid_argument where the split has fewer pieces
  Batch sequences(const std::string& split, int64_t first, int64_t count, int64_t length) const;
  /// Tokens first … first + count − 1 of a split, as they stand in the text.
  ///
  /// returns  [count] int64
  /// throws   std::invalid_argument where the split has fewer tokens
  torch::Tensor passage(const std::string& split, int64_t first, int64_t count) const;
  int64_t sequence_count(const std::string& split, int64_t length) const { return tokens(split) / length; }

  /// The bytes of tokens, by table; the begin token is written as "<|endoftext|>".
  ///
  /// throws  std::invalid_argument for a token outside the vocabulary
  std::string decode(const std::vector<int64_t>& tokens) const;
  /// Tokens of a text; byte-level datasets only (tokens_of() accepts any).
  std::vector<int64_t> encode_bytes(const std::string& text) const;

 private:
  const Split& split(const std::string& name) const;
  Batch cut(const Split& split, const std::vector<int64_t>& pieces, int64_t length) const;

  std::filesystem::path folder_;
  DatasetFiles files_;
};

/// Row n of a random order of `count` rows: a bijection of 0 … count − 1 that needs no table.
///
/// reads    0 ≤ n < count < 2^62; key selects the order
/// cost     O(1): a four-round Feistel network on the next even number of bits, repeated until the result is below count
int64_t permutation(uint64_t key, int64_t count, int64_t n);

/// throws  std::invalid_argument for a corpus or a tokenizer that prepared_dataset doesn't know or find
void check_corpus(const std::string& corpus, const std::string& tokenizer);

/// The dataset folder for a corpus, prepared on the first call (progress on standard error).
///
/// reads    corpus: "bible", "headers", the path of a text file or of a folder of text, or that of a finished dataset
///          tokenizer: "bytes" or "gpt2" (needs GPT-2's encoder.json and vocab.bpe once, see prepare_dataset)
///          root: the folder of the datasets (artefacts/data)
/// returns  root/<corpus>-<tokenizer>, where <corpus> is a file's or folder's last name; a hash is appended where another text
///          has that name already: no dataset is ever written over another. The text is read again where a size or a time in it
///          changed; a text that changed is another dataset. The named corpora are pinned by their packages and not compared.
/// throws   std::invalid_argument for an unknown corpus or tokenizer; ProgramFailed (run_program.hpp) where
///          tools/tokenize_corpus.py, which writes the dataset, fails
std::filesystem::path prepared_dataset(const std::string& corpus, const std::string& tokenizer,
                                       const std::filesystem::path& root);

/// As prepared_dataset, and also compares a named corpus with its source, and writes a damaged dataset anew.
///
/// reads    gpt2_files: the folder of GPT-2's encoder.json and vocab.bpe, kept in root/gpt2-vocabulary.bin for later calls; empty:
///          LETHE_GPT2_FILES, else what is kept
/// returns, throws  as prepared_dataset
std::filesystem::path prepare_dataset(const std::string& corpus, const std::string& tokenizer,
                                      const std::filesystem::path& root, const std::string& gpt2_files = {});

/// The folder of the dataset with this content hash: one of `roots`, or right below one of them, the first that is found. Empty where
/// there is none. Its files are not checked: Dataset does so.
std::filesystem::path dataset_with(const std::string& content, const std::vector<std::filesystem::path>& roots);

/// Tokens of a text in a dataset's own tokenizer, without the begin token.
std::vector<int64_t> tokens_of(const Dataset& dataset, const std::string& text);

/// The same of many texts in UTF-8 at once: a call of the tokenizer's program for all of them.
std::vector<std::vector<int64_t>> tokens_of(const Dataset& dataset, const std::vector<std::string>& texts);

}  // namespace lethe

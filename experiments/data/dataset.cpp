#include "experiments/data/dataset.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace lethe {
namespace {

/// A 64-bit mixer: every bit of the result depends on every bit of x (the finalizer of SplitMix64).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// Gives the text a period: x_t = x_{t−m} from t = m on.
void repeat(int64_t* tokens, int64_t* labels, int64_t length, int64_t period) {
  for (int64_t t = period; t < length; ++t) labels[t] = labels[t - period];
  std::copy_n(labels, length - 1, tokens + 1);
}

}  // namespace

int64_t permutation(uint64_t key, int64_t count, int64_t n) {
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(n);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(key ^ mix(right ^ round << 62)) & mask);
      left = right, right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(x);
}

Dataset::Dataset(const std::filesystem::path& folder) : folder_(folder), files_(read_dataset(folder)) {}

const Split& Dataset::split(const std::string& name) const {
  const auto found = files_.splits.find(name);
  if (found == files_.splits.end())
    throw std::invalid_argument("split: expected train, valid or test, found '" + name + "'");
  return found->second;
}

int64_t Dataset::tokens(const std::string& name) const { return static_cast<int64_t>(split(name).tokens.size()); }
int64_t Dataset::documents(const std::string& name) const { return split(name).documents; }
int64_t Dataset::bytes(const std::string& name) const { return split(name).bytes; }

Dataset::Batch Dataset::cut(const Split& split, const std::vector<int64_t>& pieces, int64_t length) const {
  const auto count = static_cast<int64_t>(pieces.size());
  Batch batch{torch::empty({count, length}, torch::kInt64), torch::empty({count, length}, torch::kInt64)};
  auto* tokens = batch.tokens.data_ptr<int64_t>();
  auto* labels = batch.labels.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* text = split.tokens.data() + pieces[i] * length;
    std::copy_n(text, length, labels + i * length);
    tokens[i * length] = begin_token();
    std::copy_n(text, length - 1, tokens + i * length + 1);
  }
  return batch;
}

Dataset::Batch Dataset::training_batch(int64_t first_sequence, int64_t count, int64_t length, uint64_t seed,
                                       double repeats) const {
  const Split& train = split("train");
  const auto size = static_cast<int64_t>(train.tokens.size());
  if (length < 1 || length > size)
    throw std::invalid_argument("length: expected 1 to " + std::to_string(size) + ", the tokens of " + name() +
                                "'s train split, found " + std::to_string(length));
  const int64_t an_epoch = size / length;
  std::vector<int64_t> pieces(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sequence = first_sequence + i;
    pieces[i] = permutation(mix(seed) ^ static_cast<uint64_t>(sequence / an_epoch), an_epoch, sequence % an_epoch);
  }
  const Batch batch = cut(train, pieces, length);
  const int64_t shortest = std::max<int64_t>(1, length / 16), longest = std::max<int64_t>(1, length / 2);
  for (int64_t i = 0; i < count && repeats > 0; ++i) {
    const uint64_t drawn = mix(mix(seed + 1) ^ static_cast<uint64_t>(first_sequence + i));
    if (std::ldexp(static_cast<double>(drawn >> 11), -53) >= repeats) continue;
    const auto period = static_cast<int64_t>(mix(drawn) % static_cast<uint64_t>(longest - shortest + 1)) + shortest;
    repeat(batch.tokens.data_ptr<int64_t>() + i * length, batch.labels.data_ptr<int64_t>() + i * length, length,
           period);
  }
  return batch;
}

Dataset::Batch Dataset::packed(Batch batch) const {
  torch::Tensor begins = batch.tokens.eq(begin_token());
  begins.select(1, 0).fill_(true);
  const torch::Tensor starts = begins.flatten().nonzero().squeeze(1);
  batch.cu_seqlens = torch::cat({starts, torch::full({1}, batch.tokens.numel(), starts.options())});
  return batch;
}

Dataset::Batch Dataset::sequences(const std::string& name, int64_t first, int64_t count, int64_t length) const {
  const Split& chosen = split(name);
  if (length < 1) throw std::invalid_argument("length: expected at least 1, found " + std::to_string(length));
  if (const int64_t all = sequence_count(name, length); first < 0 || count < 0 || first + count > all)
    throw std::invalid_argument("sequences: expected a range within the " + std::to_string(all) + " of " + name +
                                ", found " + std::to_string(first) + " to " + std::to_string(first + count));
  std::vector<int64_t> pieces(count);
  for (int64_t i = 0; i < count; ++i) pieces[i] = first + i;
  return cut(chosen, pieces, length);
}

torch::Tensor Dataset::passage(const std::string& name, int64_t first, int64_t count) const {
  const std::vector<uint16_t>& text = split(name).tokens;
  if (first < 0 || count < 0 || first + count > std::ssize(text))
    throw std::invalid_argument("passage: expected a range within the " + std::to_string(text.size()) + " tokens of " +
                                name + ", found " + std::to_string(first) + " to " + std::to_string(first + count));
  torch::Tensor tokens = torch::empty({count}, torch::kInt64);
  std::copy_n(text.data() + first, count, tokens.data_ptr<int64_t>());
  return tokens;
}

std::string Dataset::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (int64_t token : tokens) {
    if (token < 0 || token >= vocabulary())
      throw std::invalid_argument("tokens: expected 0 to " + std::to_string(vocabulary() - 1) + ", found " +
                                  std::to_string(token));
    text += files_.pieces[token];
  }
  return text;
}

std::vector<int64_t> Dataset::encode_bytes(const std::string& text) const {
  if (tokenizer() != "bytes")
    throw std::invalid_argument("encode_bytes: expected a dataset of bytes, found one of '" + tokenizer() + "'");
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

}  // namespace lethe

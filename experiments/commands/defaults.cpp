#include "experiments/commands/defaults.hpp"

#include <algorithm>
#include <bit>

namespace lethe {
namespace {

constexpr int64_t kHeadDim = 32, kContext = 256, kBatchTokens = 2048, kTokens = 1 << 20;
constexpr int64_t kEpochs = 20;      // at most; a small model has memorized a small text long before
constexpr int64_t kLeastSteps = 16;  // of a training whose tokens were set

/// The largest number of heads of at least kHeadDim that the width allows; rotations need an even head dim.
int64_t heads_of(int64_t width) {
  for (int64_t heads = std::max<int64_t>(1, width / kHeadDim); heads > 1; --heads)
    if (width % heads == 0 && width / heads % 2 == 0) return heads;
  return 1;
}

int64_t power_of_two_up_to(int64_t n) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))); }

/// The largest number up to `most` that divides all of `multiples`; 0 of them is no limit.
int64_t divisor(int64_t most, std::initializer_list<int64_t> multiples) {
  if (std::ranges::all_of(multiples, [](int64_t multiple) { return multiple == 0; })) return power_of_two_up_to(most);
  for (int64_t n = most; n > 1; --n)
    if (std::ranges::all_of(multiples, [&](int64_t multiple) { return multiple % n == 0; })) return n;
  return 1;
}

}  // namespace

Run default_run() {
  Run run;
  run.model = named_architecture("fox-pro");
  run.model.layers = 4, run.model.width = 128, run.model.heads = 128 / kHeadDim, run.model.mlp_multiple = 32;
  run.training.context_length = kContext;
  run.training.batch_tokens = kBatchTokens;
  run.training.total_tokens = kTokens;
  run.training.warmup_tokens = kTokens / 16;
  run.training.learning_rate = 2e-3;
  run.training.checkpoint_tokens = kTokens / 4;
  return run;
}

void keep_shares(Run& run, const Run& begin, const std::set<std::string>& given) {
  TrainingConfig& training = run.training;
  const TrainingConfig& before = begin.training;
  if (training.total_tokens == before.total_tokens || before.total_tokens < 1) return;
  const double ratio = static_cast<double>(training.total_tokens) / static_cast<double>(before.total_tokens);
  const auto scale = [&](const char* member, int64_t TrainingConfig::*tokens) {
    if (!given.contains(member)) training.*tokens = static_cast<int64_t>(static_cast<double>(before.*tokens) * ratio);
  };
  scale("warmup_tokens", &TrainingConfig::warmup_tokens);
  scale("checkpoint_tokens", &TrainingConfig::checkpoint_tokens);
}

void fit_to(Run& run, const std::set<std::string>& given, const Dataset* dataset) {
  ModelConfig& model = run.model;
  TrainingConfig& training = run.training;
  const auto is_free = [&](const char* member) { return !given.contains(member); };
  if (is_free("heads") && !is_free("width")) model.heads = heads_of(model.width);
  if (is_free("width") && !is_free("heads") && model.heads > 0) model.width = kHeadDim * model.heads;

  if (is_free("total_tokens")) {
    training.total_tokens = training.tokenizer == "gpt2" ? kTokens / 4 : kTokens;  // a GPT-2 token is about four bytes
    if (dataset) training.total_tokens = std::min(training.total_tokens, kEpochs * dataset->tokens("train"));
  }
  const int64_t batch = is_free("batch_tokens") ? 0 : std::max<int64_t>(0, training.batch_tokens);
  const int64_t micro_batch = std::max<int64_t>(0, training.micro_batch_tokens);
  const int64_t a_step = std::max<int64_t>(1, training.total_tokens / kLeastSteps);
  if (is_free("context_length")) {
    int64_t longest = std::min(kContext, a_step);
    if (dataset) longest = std::min({longest, dataset->tokens("train"), dataset->tokens("valid")});
    training.context_length = divisor(std::max<int64_t>(1, longest), {batch, micro_batch});
  }
  if (batch == 0 && is_free("batch_tokens")) {
    const int64_t unit = std::max<int64_t>(1, micro_batch > 0 ? micro_batch : training.context_length);
    training.batch_tokens = unit * std::max<int64_t>(1, std::min(kBatchTokens, a_step) / unit);
  }
}

}  // namespace lethe

#include "experiments/commands/continuation.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace lethe {
namespace {

/// Draws the next token from the model's distribution, sharpened by the temperature and cut to the likeliest tokens.
int64_t draw(torch::Tensor logits, const Drawing& drawing, torch::Generator& generator) {
  if (drawing.temperature == 0) return logits.argmax().item<int64_t>();
  logits = logits.to(torch::kFloat64);
  logits = (logits - logits.max()) / drawing.temperature;  // at most 0, so that the smallest temperature stays finite
  if (drawing.top > 0 && drawing.top < logits.numel()) {
    const auto smallest = std::get<0>(logits.topk(drawing.top)).min();
    logits = logits.masked_fill(logits < smallest, -std::numeric_limits<double>::infinity());
  }
  return torch::multinomial(logits.softmax(0), 1, false, generator).item<int64_t>();
}

}  // namespace

void continue_text(LanguageModel& model, const Dataset& dataset, int64_t context, const std::string& prompt,
                   const Drawing& drawing, const std::function<bool(const std::string&)>& written) {
  const torch::NoGradGuard no_gradients;
  auto generator = at::detail::createCPUGenerator(drawing.seed);
  std::vector<int64_t> text{dataset.begin_token()};
  for (int64_t token : tokens_of(dataset, prompt)) text.push_back(token);
  std::vector<Past> past;
  int64_t read = 0;  // tokens of the past
  for (int64_t i = 0; i < drawing.tokens; ++i) {
    const auto length = static_cast<int64_t>(text.size());
    const bool continues = model->continues() && (length <= context || model->config().past_is_bounded());
    // Without a past the whole window is computed anew for every token; it is at most as long as the training's context.
    const int64_t seen = continues ? length - read : std::min(length, context);
    const auto tokens =
        torch::tensor(std::vector<int64_t>(text.end() - seen, text.end())).unsqueeze(0).to(model->device());
    const auto logits = continues ? model->continued(tokens, past) : model->forward(tokens);
    read = length;
    const int64_t next = draw(logits[0][-1].cpu(), drawing, generator);
    if (next == dataset.begin_token()) break;  // the document has ended
    text.push_back(next);
    if (!written(dataset.decode({next}))) break;
  }
}

}  // namespace lethe

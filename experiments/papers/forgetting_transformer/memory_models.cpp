#include "experiments/papers/forgetting_transformer/memory_models.hpp"

#include <algorithm>
#include <iterator>

#include "experiments/claims/recurrent_rows.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/local.hpp"

namespace lethe {

std::vector<Run> memory_runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs;
  const auto add = [&](const Row& row, int64_t seeds) {
    const auto of_row = runs_of(row, settings, vocabulary, seeds);
    runs.insert(runs.end(), of_row.begin(), of_row.end());
  };
  for (const std::string name : settings.at("attention_rows"))
    add(table_3_row(name), whole_number(settings, "seeds"));
  add({kDeltaRule, named_architecture("delta")}, 1);
  ModelConfig local = named_architecture("local");
  local.mixer.only<LocalConfig>().window = whole_number(settings, "window");
  add({kLocalAttention, local}, 1);
  std::ranges::copy(recurrent_runs(settings, vocabulary), std::back_inserter(runs));
  add({kUntrained, table_3_row("FoX (Pro)").architecture}, 1);
  TrainingConfig& training = runs.back().training;
  training.total_tokens = training.warmup_tokens = training.batch_tokens;  // the first step of a warm-up has the rate 0
  return runs;
}

}  // namespace lethe

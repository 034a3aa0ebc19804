#include "experiments/papers/forgetting_transformer/rows.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "experiments/json_file.hpp"
#include "experiments/models/mixers/local.hpp"

namespace lethe {

std::vector<Row> table_3() {
  const ModelConfig transformer_llama = named_architecture("transformer-llama");
  const ModelConfig fox_llama = named_architecture("fox-llama");
  const ModelConfig fox_pro = named_architecture("fox-pro");
  const auto with = [](ModelConfig architecture, auto... change) {
    (change(architecture), ...);
    return architecture;
  };
  const auto attention = [](ModelConfig& m) -> AttentionConfig& { return m.mixer.only<AttentionConfig>(); };
  const auto rope = [&](bool on) { return [=](ModelConfig& m) { attention(m).rope = on; }; };
  const auto qk_norm = [&](QkNorm norm) { return [=](ModelConfig& m) { attention(m).qk_norm = norm; }; };
  const auto output_gate = [](bool on) { return [on](ModelConfig& m) { m.output_gate = on; }; };
  const auto output_norm = [](bool on) { return [on](ModelConfig& m) { m.output_norm = on; }; };
  const auto kv_shift = [&](bool on) { return [=](ModelConfig& m) { attention(m).kv_shift = on; }; };
  const auto no_forget_gate = [&](ModelConfig& m) { attention(m).forget_gate = ForgetGate::kNone; };

  return {
      {"Transformer (LLaMA) without RoPE", with(transformer_llama, rope(false))},
      {"Transformer (LLaMA)", transformer_llama},
      {"FoX (LLaMA) + RoPE", with(fox_llama, rope(true))},
      {"FoX (LLaMA)", fox_llama},
      {"FoX (LLaMA) + QK-norm", with(fox_pro, output_gate(false), output_norm(false), kv_shift(false))},
      {"FoX (LLaMA) + QK-norm + output gate", with(fox_pro, output_norm(false), kv_shift(false))},
      {"FoX (Pro) - KV-shift", with(fox_pro, kv_shift(false))},
      {"FoX (Pro)", fox_pro},
      {"FoX (Pro) - QK-norm", with(fox_pro, qk_norm(QkNorm::kNone))},
      {"FoX (Pro) - output gate", with(fox_pro, output_gate(false))},
      {"FoX (Pro) - output norm", with(fox_pro, output_norm(false))},
      {"FoX (Pro) + RoPE", with(fox_pro, rope(true))},
      {"Transformer (Pro)", named_architecture("transformer-pro")},
      {"FoX (Pro) - forget gate", with(fox_pro, no_forget_gate)},
  };
}

std::vector<Row> figure_9() {
  ModelConfig model = named_architecture("transformer-pro");
  model.mixer.only<AttentionConfig>().kv_shift = false;
  std::vector<Row> rows = {{"Transformer (Pro) - KV-shift", model}};
  model.output_norm = false;
  rows.insert(rows.begin(), {"Transformer (LLaMA) + QK-norm + output gate", model});
  model.output_gate = false;
  rows.insert(rows.begin(), {"Transformer (LLaMA) + QK-norm", model});
  return rows;
}

Row table_3_row(const std::string& name) {
  for (const auto& rows : {table_3(), figure_9()})
    for (const Row& row : rows)
      if (row.name == name) return row;
  throw std::invalid_argument("row: expected one of FoX Table 3 or Fig. 9, found " + name);
}

Row blind_row(const nlohmann::json& settings) {
  const int64_t window = settings.at("control_window");
  ModelConfig local = named_architecture("local");
  local.mixer.only<LocalConfig>().window = window;
  return {"Window of " + std::to_string(window) + " tokens", local};
}

std::vector<Run> table_3_runs(const std::vector<std::string>& names, const nlohmann::json& settings,
                              int64_t vocabulary) {
  std::vector<Run> runs;
  for (const std::string& name : names) {
    const int64_t usual = std::ranges::count(kNoiseRows, name) > 0 ? whole_number(settings, "seeds") : 1;
    std::ranges::copy(runs_of(table_3_row(name), settings, vocabulary, seeds_of(settings, name, usual)),
                      std::back_inserter(runs));
  }
  return runs;
}

std::vector<Run> control_runs(const nlohmann::json& settings, int64_t vocabulary) {
  return runs_of(blind_row(settings), settings, vocabulary, seeds_of(settings, "control", 1));
}

}  // namespace lethe

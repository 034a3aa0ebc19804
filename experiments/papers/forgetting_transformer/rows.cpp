#include "experiments/papers/forgetting_transformer/rows.hpp"

#include <algorithm>
#include <stdexcept>

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

Row table_3_row(const std::string& name) {
  for (const Row& row : table_3())
    if (row.name == name) return row;
  throw std::invalid_argument("row: expected one of FoX Table 3, found " + name);
}

std::vector<Run> table_3_runs(const std::vector<std::string>& names, const nlohmann::json& settings,
                              int64_t vocabulary) {
  std::vector<Run> runs;
  for (const std::string& name : names) {
    const int64_t seeds = std::ranges::count(kNoiseRows, name) > 0 ? settings.at("seeds").get<int64_t>() : 1;
    std::ranges::copy(runs_of(table_3_row(name), settings, vocabulary, seeds), std::back_inserter(runs));
  }
  return runs;
}

void Measurements::add(const Run& run, double value) {
  Values& values = values_[run.label];
  values.gated = run.model.mixer.only<AttentionConfig>().forget_gate != ForgetGate::kNone;
  values.of_seeds.push_back(value);
}

const Measurements::Values& Measurements::of(const std::string& row) const {
  const auto found = values_.find(row);
  if (found == values_.end()) throw std::invalid_argument("row: expected a measured one, found " + row);
  return found->second;
}

double Measurements::mean_of(const std::string& row) const { return mean(of(row).of_seeds); }

Noise Measurements::noise(bool gated) const {
  std::vector<std::vector<double>> rows;
  for (const auto& [_, values] : values_)
    if (values.gated == gated) rows.push_back(values.of_seeds);
  return Noise(rows);
}

Comparison Measurements::compare(const std::string& statement, const std::vector<Term>& terms,
                                 const Expectation& expectation) const {
  double measured = 0, gated_parts = 0, ungated_parts = 0;
  for (const auto& [row, weight] : terms) {
    const Values& values = of(row);
    measured += weight * mean_of(row);
    (values.gated ? gated_parts : ungated_parts) += weight * weight / static_cast<double>(values.of_seeds.size());
  }
  const double band = band_of({{noise(true), gated_parts}, {noise(false), ungated_parts}});
  return {.statement = statement, .expectation = expectation, .measured = measured, .band = band};
}

}  // namespace lethe

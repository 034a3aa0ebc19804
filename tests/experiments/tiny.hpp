#pragma once
// A corpus, a model and a training small enough for a test.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>

#include "experiments/data/dataset.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// The largest difference of two tensors of one shape.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// The message of a configuration's check, or "no error".
template <typename Config>
std::string refusal_of(const Config& config) {
  try {
    config.check();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

/// A number of the environment: the entries of ctest labelled slow set larger ones.
inline int64_t number_from(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoll(text);
}

/// Writes a file in place, without waiting for the disk.
inline void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A folder, created empty and removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lethe-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A data set of 24 short documents of sentences that a small model can learn.
inline std::filesystem::path write_tiny_dataset(const std::filesystem::path& folder) {
  constexpr std::array subjects{"the river", "an old ferryman", "a shade", "the moon"};
  constexpr std::array verbs{"forgets", "remembers", "carries", "follows"};
  std::mt19937 random(7);
  std::filesystem::create_directories(folder / "text");
  for (int document = 0; document < 24; ++document) {
    std::ofstream file(folder / "text" / (std::to_string(document) + ".txt"));
    for (int sentence = 0; sentence < 120; ++sentence) {
      file << subjects[random() % 4] << ' ' << verbs[random() % 4] << ' ' << subjects[random() % 4] << ".\n";
    }
  }
  return prepared_dataset((folder / "text").string(), "bytes", folder / "data");
}

inline ModelConfig tiny_model(ModelConfig architecture = named_architecture("fox-pro")) {
  architecture.vocabulary = 257;
  architecture.layers = 2;
  architecture.width = 32;
  architecture.heads = 2;
  architecture.mlp_multiple = 16;
  return architecture;
}

/// Sets options of the model's only mixer.
inline void set(ModelConfig& model, const nlohmann::json& options) {
  nlohmann::json mixer = model.mixer;
  mixer.update(options);
  model.mixer = mixer.get<MixerStack>();
}

/// A (LLaMA) model in double with that mixer, few state rows, the norms of the reference, and these options set over them.
inline ModelConfig tiny_mixer(const std::string& mixer, const nlohmann::json& options = nlohmann::json::object()) {
  ModelConfig model = tiny_model(llama(MixerConfig(mixer)));
  model.compute_dtype = "float64";
  const nlohmann::json has = model.mixer;
  const nlohmann::json ours = {{"state_size", 6}, {"norm_epsilon", 0}, {"qk_norm", "none"}, {"kv_shift", false}};
  for (const auto& [name, value] : ours.items())
    if (has.contains(name)) set(model, {{name, value}});
  set(model, options);
  return model;
}

inline torch::Tensor some_tokens(int64_t batch, int64_t length) {
  torch::manual_seed(11);
  return torch::randint(257, {batch, length});
}

/// Expects a finite, nonzero gradient in every parameter.
inline void expect_gradients(LanguageModel& model) {
  const torch::Tensor tokens = some_tokens(2, 16);
  model->losses(tokens, tokens.roll(1, 1)).mean().backward();
  for (const auto& parameter : model->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    const double largest = parameter.value().grad().abs().max().item<double>();
    EXPECT_GT(largest, 0) << parameter.key();
    EXPECT_TRUE(std::isfinite(largest)) << parameter.key();
  }
}

inline Run tiny_run() {
  Run run{.label = "tiny", .model = tiny_model(), .training = {}};
  run.training.context_length = 32;
  run.training.batch_tokens = 256;
  run.training.total_tokens = 256 * 30;
  run.training.warmup_tokens = 256 * 5;
  run.training.learning_rate = 5e-3;
  run.training.checkpoint_tokens = 256 * 5;
  run.training.corpus = "tiny";
  return run;
}

/// A test with a tiny data set and a folder for its trained models.
class TinyDatasetTest : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::filesystem::path dataset_folder = write_tiny_dataset(folder.path());
  Dataset dataset{dataset_folder};
  std::filesystem::path models = folder.path() / "models";
};

}  // namespace lethe

#pragma once
// The table of mixers. To add one:
//   1. copy delta.hpp and delta.cpp to NAME.hpp and NAME.cpp: options with their JSON keys, and the row at the end;
//   2. add NAME to the list in CMakeLists.txt, from which the table is made;
//   3. `make` registers each parameter with its initializer and returns the forward pass; parts/ holds the code that mixers share;
//   4. check defines the valid options, FLOPs and bytes the cost of a layer, architectures the names for users;
//   5. where packed sequences stay apart in it, it says so (packs), and the tests compare them with each by itself;
//   6. the tests of all rows cover it; compare it with its equation in tests/experiments/test_mixers.cpp.

#include <torch/types.h>

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/models/json_members.hpp"

namespace lethe {

struct Architecture;
struct ImplementationText;
struct Mixer;
struct ModelConfig;
class Rotations;
class Weights;

/// A mixer of the table and its options.
class MixerConfig {
 public:
  /// The mixer of that name with default options.
  ///
  /// throws  std::invalid_argument for a name that the table does not have
  explicit MixerConfig(const std::string& name = "attention");

  /// The mixer whose options are `Own`.
  template <class Own>
  requires requires { Own::kName; }
  MixerConfig(Own own) : MixerConfig(std::string(Own::kName)) { options_ = std::move(own); }

  const Mixer& row() const { return *row_; }
  const std::any& options() const { return options_; }

  /// The options, or null where the mixer is another.
  template <class Own>
  const Own* if_own() const {
    return std::any_cast<Own>(&options_);
  }

 private:
  friend void from_json(const nlohmann::json& json, MixerConfig& config);
  friend class MixerStack;

  const Mixer* row_;
  std::any options_;  // of the type that the row's functions expect
};

// {"name": …, the options' members}; unknown keys and wrong types are one clear error, absent options have their defaults.
void to_json(nlohmann::json& json, const MixerConfig& config);
void from_json(const nlohmann::json& json, MixerConfig& config);

/// The mixers of a model from its first layer on; where there are more layers, they repeat from the first.
class MixerStack {
 public:
  MixerStack() : mixers_(1) {}
  MixerStack(MixerConfig mixer) : mixers_{std::move(mixer)} {}
  MixerStack(std::vector<MixerConfig> mixers) : mixers_(std::move(mixers)) {}
  template <class Own>
  requires requires { Own::kName; }
  MixerStack(Own own) : mixers_{MixerConfig(std::move(own))} {}

  const std::vector<MixerConfig>& all() const { return mixers_; }
  const MixerConfig& of(int64_t layer) const { return mixers_[static_cast<size_t>(layer) % mixers_.size()]; }

  /// The options of the only mixer.
  ///
  /// throws  std::invalid_argument where there are several, or it is another
  template <class Own>
  Own& only() {
    expect_only(Own::kName);
    return *std::any_cast<Own>(&mixers_.front().options_);
  }
  template <class Own>
  const Own& only() const {
    expect_only(Own::kName);
    return *mixers_.front().if_own<Own>();
  }

 private:
  void expect_only(const std::string& name) const;
  std::vector<MixerConfig> mixers_;
};

// The only mixer's object, or a list of several.
void to_json(nlohmann::json& json, const MixerStack& stack);
void from_json(const nlohmann::json& json, MixerStack& stack);

/// What a layer keeps of the tokens so far for those to come.
struct Past {
  int64_t tokens = 0;
  std::vector<torch::Tensor> kept;  ///< in the mixer's own order; empty before the first token
};

/// One layer's mixer, constructed.
///
/// reads    x [B,T,width] in the compute dtype, normed; rotations and packed sequences of this forward pass; trace: where given, receives the
///          mixer's trace for the claims (AttentionTrace, StateTrace), where the mixer has one; past: where given, x follows these tokens
/// returns  [B,T,width] in the compute dtype; past, of all tokens up to x's last
/// throws   std::logic_error for a past where the mixer doesn't continue one
class MixerLayer {
 public:
  /// From a function of x, rotations and trace, of which a past is none, or of all four, which leaves past->tokens as it is.
  template <class Function>
  requires std::invocable<const Function&, const torch::Tensor&, Rotations&, std::any*> MixerLayer(Function whole)
      : run_([whole = std::move(whole)](const torch::Tensor& x, Rotations& rotations, std::any* trace, Past*) {
          return whole(x, rotations, trace);
        }) {}
  template <class Function>
  requires std::invocable<const Function&, const torch::Tensor&, Rotations&, std::any*, Past*> MixerLayer(
      Function continuing)
      : run_(std::move(continuing)), continues_(true) {}

  torch::Tensor operator()(const torch::Tensor& x, Rotations& rotations, std::any* trace = nullptr,
                           Past* past = nullptr) const;

  /// Whether it continues a past.
  bool continues() const { return continues_; }

 private:
  std::function<torch::Tensor(const torch::Tensor&, Rotations&, std::any*, Past*)> run_;
  bool continues_ = false;
};

/// The conversion of trained softmax attention to a mixer: the changes to the source's parameters, where they are not kept.
struct Swap {
  bool product = false;               ///< q_proj and k_proj return features: W_φ times the source's, or drawn
  std::string feature_map = {};       ///< the parameter that is drawn like W_φ
  double value_scale = 1;             ///< factor of v_proj where the conversion doesn't set one
  std::string value_gate = {};        ///< the bias b_z whose 1 − σ(b_z) multiplies the rows of v_proj
  bool value_gate_is_bounded = true;  ///< else 1 − b_z does
};

/// A row. Functions read the model's trunk and the mixer's options; `typed` below supplies the options' type.
struct Mixer {
  std::string name;

  std::any defaults;
  std::function<void(nlohmann::json& json, const std::any& options)> write;
  std::function<void(JsonReader& reader, std::any& options)> read;

  /// throws  std::invalid_argument "name: expected …, found …" for options without a valid layer
  std::function<void(const ModelConfig&, const std::any& options)> check;
  /// Registers the layer's parameters, each with its initializer.
  std::function<MixerLayer(const ModelConfig&, const std::any& options, const Weights&)> make;
  /// FLOPs of one layer and token, forward and backward: 6 a multiply-add with a gradient on both sides.
  std::function<double(const ModelConfig&, const std::any& options, int64_t context_length)> flops;
  /// Bytes that autograd keeps of one layer and token, from the normed input (excluded) to the output.
  std::function<int64_t(const ModelConfig&, const std::any& options)> activation_bytes;
  /// The named architectures with this mixer, without a size.
  std::function<std::vector<Architecture>()> architectures;

  // Optional members.
  bool packs = false;  ///< whether packed sequences stay apart
  /// The implementation on each GPU since compute capability 8.0: on_every_gpu of its texts.
  std::function<std::string(const ModelConfig&, const std::any& options, int64_t context_length)> on_hopper =
      [](const ModelConfig&, const std::any&, int64_t) { return "portable: a few PyTorch calls a sequence"; };
  /// Rows of a head's state, 0 where the whole past is kept. A mixer with a state writes a StateTrace.
  std::function<int64_t(const ModelConfig&, const std::any& options)> state_rows = [](const ModelConfig&,
                                                                                      const std::any&) { return 0; };
  /// Whether a past has the same size after any number of tokens.
  bool past_is_bounded = false;
  /// nullopt: the mixer can't replace trained softmax attention.
  std::function<std::optional<Swap>(const ModelConfig&, const std::any& options)> swap =
      [](const ModelConfig&, const std::any&) { return std::nullopt; };
};

/// The rows, in the order of CMakeLists.txt.
const std::vector<Mixer>& mixers();

/// A row with the name and the JSON of options `Own`: a struct with kName and members(self, visit).
template <class Own>
Mixer row_of() {
  Mixer row;
  row.name = Own::kName;
  row.defaults = Own{};
  row.write = [](nlohmann::json& json, const std::any& options) {
    Own::members(*std::any_cast<Own>(&options), JsonWriter{json});
  };
  row.read = [](JsonReader& reader, std::any& options) { Own::members(*std::any_cast<Own>(&options), reader); };
  return row;
}

/// "9.0: NAME; 8.0, 8.6, 8.9, 10.0, 12.0: OTHER", or "every GPU since 8.0: NAME" where all have the same.
///
/// reads  described: the implementation on a compute capability, 90 = 9.0; why others were passed over is kept of 9.0 alone
std::string on_every_gpu(const std::function<ImplementationText(int capability)>& described);

/// A row's function from one whose options have the type `Own`.
template <class Own>
inline constexpr auto typed = [](auto function) {
  return [function](const ModelConfig& model, const std::any& options, const auto&... rest) {
    return function(model, *std::any_cast<Own>(&options), rest...);
  };
};

}  // namespace lethe

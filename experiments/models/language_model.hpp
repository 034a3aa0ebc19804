#pragma once
// The decoder-only language model of the papers, assembled from a ModelConfig.

#include <torch/nn.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "experiments/models/config.hpp"
#include "experiments/models/flat_parameters.hpp"
#include "experiments/models/recompute.hpp"
#include "optimized/torch/linear_cross_entropy.hpp"

namespace lethe {

/// FoX or Transformer, (LLaMA) or (Pro), or with other mixers in some or all layers: embedding → layers × (mixer, SwiGLU MLP),
/// pre-norm → norm → output head. Parameter names and shapes are those of the official FoX checkpoints; a mixer's additional
/// parameters are named where they are registered.
class LanguageModelImpl : public torch::nn::Module {
 public:
  /// Constructed on `device`, and initialized with `seed` where there is one (never on the meta device).
  ///
  /// throws  std::invalid_argument where config.check() does, or the weights exceed the device's memory
  explicit LanguageModelImpl(const ModelConfig& config, torch::Device device = torch::kCPU,
                             std::optional<uint64_t> seed = 0);

  /// Called with a layer's number and its mixer's trace.
  using ReadTrace = std::function<void(size_t layer, std::any trace)>;

  /// reads    tokens [B,T] int64
  /// returns  logits [B,T,vocabulary] in the compute dtype; `trace`, where given, receives one entry a layer, its mixer's trace
  torch::Tensor forward(const torch::Tensor& tokens, std::vector<std::any>* trace = nullptr);

  /// The same of tokens [B,T], T ≥ 1, that follow those of `past`, which becomes that of all of them; a text begins with none: {}.
  ///
  /// throws   std::logic_error where continues() is false
  /// cost     a forward pass of these tokens; attention reads the keys and values before them
  torch::Tensor continued(const torch::Tensor& tokens, std::vector<Past>& past);
  /// Whether every mixer continues a past.
  bool continues() const;

  /// A forward pass without the output head, for measurements of long texts: `read` is given one layer's trace after the other, and
  /// only one is in memory at a time.
  void traces(const torch::Tensor& tokens, const ReadTrace& read);

  /// Cross entropy of every position in nats, never holding more than a chunk of the logits.
  ///
  /// reads    tokens, labels [B,T] int64; labels are already shifted: labels_t is the target of tokens_≤t
  /// returns  [B,T] float32 (float64 where that is the compute dtype); differentiable
  ///          cu_seqlens [N+1] int64 on the model's device: packed sequences in the rows of `tokens`, one row after the other, each as if it were
  ///          alone; the first token of each, rows' starts among them, then B·T
  torch::Tensor losses(const torch::Tensor& tokens, const torch::Tensor& labels, const torch::Tensor& cu_seqlens = {});

  /// Losses and hits of the positions whose label is not negative: the hidden states of the others reach no head.
  ///
  /// reads    tokens, labels [B,T] int64 as losses()
  /// returns  losses [B,T] as losses(), 0 where the label is negative; correct [B,T] bool, the label is the first largest logit,
  ///          true where the label is negative; correct is undefined while gradients are recorded
  /// cost     a forward pass, and the output head of the positions with a label alone
  struct Predictions {
    torch::Tensor losses, correct;
  };
  Predictions predictions(const torch::Tensor& tokens, const torch::Tensor& labels);

  /// Adds the gradient of scale·Σ losses(tokens, labels, cu_seqlens) to the flat gradient.
  ///
  /// returns  the losses [B,T], without a derivative
  /// cost     a forward and a backward pass; logits are computed once, by chunks; no value is read by the host
  /// throws   std::logic_error for a model that isn't flattened with gradients
  torch::Tensor accumulate_gradients(const torch::Tensor& tokens, const torch::Tensor& labels, double scale,
                                     const torch::Tensor& cu_seqlens = {});

  /// Moves the parameters into flat buffers, as training and evaluation read them; their names and values stay. To be called again after load().
  ///
  /// reads  parts as FlatParameters::of
  FlatParameters& flatten(bool with_gradients, int64_t parts = 1);
  FlatParameters& flat() { return flat_; }

  /// Draws every parameter anew: matrices and embeddings N(0, 0.02²), norms 1, the mixers' parameters by their own initializers.
  void initialize(uint64_t seed);

  /// What accumulate_gradients() and losses() keep for the backward pass.
  void set_recompute(Recompute recompute) { recompute_ = recompute; }

  const ModelConfig& config() const { return config_; }
  torch::Device device() const;

 private:
  torch::Tensor hidden(const torch::Tensor& tokens, const ReadTrace& read = {}, const torch::Tensor& cu_seqlens = {},
                       std::vector<Past>* past = nullptr);

  struct Parts;  // the registered submodules, see language_model.cpp
  ModelConfig config_;
  std::shared_ptr<Parts> parts_;
  FlatParameters flat_;
  Recompute recompute_ = Recompute::kNone;
};
TORCH_MODULE(LanguageModel);

/// The dtype of a compute_dtype that ModelConfig::check accepts.
torch::Dtype dtype_named(const std::string& name);

/// Parameters of the model, all of them, and without the input embedding ("non-embedding" of the papers, output head
/// included).
struct ParameterCounts {
  int64_t total = 0;
  int64_t non_embedding = 0;
};

/// Counted on a model on the meta device: no memory is allocated.
ParameterCounts count_parameters(const ModelConfig& config);

}  // namespace lethe

#pragma once
// One whole small model, from tokens to logits.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/layers/forgetting_layer.hpp"

namespace lethe::reference::layers {

/// Weights by their names in the published checkpoints. Matrices are [out, in]; what has one dimension is one row [1, n].
///
///   model.embeddings.weight                        [vocabulary, W]
///   model.layers.{i}.attn_norm.weight, .mlp_norm.weight, model.norm.weight   [1, W]
///   model.layers.{i}.attn.{q,k,v,o}_proj.weight    [W, W]; k and v with KV-shift: {k,v}_proj.linear.weight and
///                                                  {k,v}_proj.shift_proj.weight [H, W]
///   model.layers.{i}.attn.{q,k}_norm.weight        [1, W] or [1, W/H]
///   model.layers.{i}.attn.fgate_proj.{weight,bias} [H, W], [1, H]; bias-only and fixed gates: attn.fgate_bias [1, H]
///   model.layers.{i}.attn.ogate_proj.weight        [W, W];  attn.output_norm.weight [1, W]
///   model.layers.{i}.mlp.gate_proj.weight          [2I, W];  mlp.down_proj.weight [W, I]
///   lm_head.weight                                 [vocabulary, W]
template <typename Scalar>
using NamedWeights = std::map<std::string, Matrix<Scalar>>;

/// A decoder-only language model, every row of FoX Table 3. The weights that are present define the
/// components of a layer: without attn.ogate_proj.weight there is no output gate.
///
///   x ← embedding;  in each block: x ← x + attention(RMSNorm(x)), x ← x + W_down swiglu(W_gate RMSNorm(x))
///   logits = W_head RMSNorm(x)
///
/// source   Forgetting Transformer, Figure 1 and Eq. 16–24 (see forgetting_layer)
/// reads    tokens [T], each in [0, vocabulary); the weights of as many blocks as are named
/// returns  logits [T, vocabulary]; row t depends on tokens 0 … t
/// throws   std::invalid_argument naming a weight that is missing, has a wrong size, or has no place in the model, or a
///          token outside the vocabulary
/// cost     O(T) times the number of weights, and O(T² W) a block
template <typename Scalar>
Matrix<Scalar> language_model(const std::vector<int64_t>& tokens, NamedWeights<Scalar> weights,
                              const ForgettingLayerShape& shape);

}  // namespace lethe::reference::layers

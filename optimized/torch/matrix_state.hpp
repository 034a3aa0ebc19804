#pragma once
// The operators lethe::gated_state and lethe::delta_state, called from C++: attention whose whole past is a matrix of fixed size.
// Linking liblethe_torch.so registers them with Torch's dispatcher; from Python, torch.ops.load_library does.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lethe {

/// A matrix state that decays by a gate for each row and column and adds a key and a value at each token: linear attention and its gated variants.
/// Differentiable in every tensor, as forgetting_attention is.
///
///   S_t = diag(f_t) S_{t−1} diag(g_t) + k_t v_tᵀ
///   o_t = scale · S_tᵀ q_t
///   normalize:  z_t = diag(f_t) z_{t−1} + k_t,   o_t = S_tᵀ q_t / (z_t·q_t)
///
/// source   Mao 2022, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights", Eq. 3, 5 and 7, transposed;
///          Forgetting Transformer, Eq. 7–10 (normalize, with a scalar gate)
/// reduces  no gates → linear attention; f_t scalar → RetNet, Mamba-2; the calls of each are in optimized/README.md
/// reads    query, key [B,T,H,K]; value [B,T,H,V], one dtype of float64, float32, bfloat16, float16.
///          log_key_gate = log f [B,T,H], or [B,T,H,K]; log_value_gate = log g [B,T,H,V], not with normalize; natural logs, ≤ 0, −∞ allowed;
///          absent = 0. state: before the first token, [B,H,K,V], with normalize [B,H,K,V+1] whose last column is z; absent = 0.
///          Gates and state float32, or float64 for float64 inputs. scale: of Sᵀq, 1/√K unless given; it cancels under normalize.
///          cu_seqlens: packed sequences, as in forgetting_attention; B = 1, no initial state, and the state returned is the last one's.
///          Any strides; empty tensors work. Autocast as in forgetting_attention
/// returns  values [B,T,H,V], dtype of query; state after the last token, as the given one.
///          normalize divides by z·q as it is: where it is 0, values are NaN or infinite
/// throws   c10::Error "name: expected …, found …" for a wrong rank, shape, dtype, device, layout or (on the CPU) value
/// cost     O(B·H·T·K·V), forward and backward. Saves its inputs for the backward; where that is recorded, on compute capability 9.0, with 16-bit
///          inputs to 128 × 64, with a gate a token and no normalize 128 × 128, of more than 512 tokens (above 64 rows 256, and without normalize to
///          8192), no gate or one a token, and 2⁻³² ≤ |scale| ≤ 2³², also the state before every 64th token in 16 bits: 128 bytes a token and head
///          (above 64 rows 256), with normalize 4 (8) more and, with a gate a token to 64 rows, 4 for z·q; float16 ¼ (½); above 64 columns twice that. At
///          8 × 4096 × 24 of 64 × 64 they are 96 MiB beside q, k and v of 288 MiB. Other calls save nothing else. On the CPU the backward's own
///          memory is 32·T·K bytes for each head in work (at most one a thread; 80·T·K where threads share a head), O(K·V) a thread, and
///          with normalize O(T·V) in float64. A GPU's backward keeps the state of every 64th token,
///          T·K·V / 16 bytes a head (in float64 twice that), on compute capability 9.0, to the sizes above, the saved ones or of every 512th
///          (above 64 rows 256th; with normalize 2·T·V bytes a head besides, but where z·q is saved), and a few float32 numbers a token and row or
///          column
/// numerics on the CPU gates are e^log, states and sums float64 whatever the inputs, rounded once. A gate of 0 (−∞, or below −708)
///          erases its row or column of the state even where that is NaN or ∞, and ends the gradient from later tokens, with a gradient of 0
///          itself: the tokens from there on have the values and gradients of a state that held zeros. On other devices 0·∞ is NaN.
///          On a GPU, states and sums are float32 (float64 for float64). bfloat16 and float16 multiply on tensor cores where the key gate is absent,
///          one a token or (to 128 × 128) one a row, perhaps with a value gate: the state, the weights of pairs and what gates of rows and columns
///          multiply are rounded to 16 bits for a product. Under normalize, without a first state, dq of 1100 tokens then has an error of some 3 %
///          (bfloat16; float16 0.4 %) for each standard deviation that the values' mean is away from 0; a float16 backward without saved z·q holds
///          ∂o / z·q times 2^k in float16, k = clamp(⌊log₂ T⌋ − 11, 0, 6), and is for |∂o / z·q| < 65504 / 2^k: 65504 to 4095 tokens, 2047 of 65536.
///          With a gate a token, no normalize and 65 to 128 columns, compute capability 9.0 adds up dq and dk of two parts of 16 bits. Other GPUs, and
///          it above 64 columns and with a gate a row, round z to 16 bits for a product, too: over 65536 tokens of open gates d log f under normalize is
///          off by 21 % in float16. Their normalised backward of 16 tokens or more first takes from the values of a column the mean over all tokens,
///          packed sequences together, where that is more than ¾ of the mean of their sizes; that needs memory of some five times the values' for a while.
///          Larger states run in pieces (optimized/README.md), each of which saves what a call of its size does: values and gradients of v, value gates
///          and gates a token of pieces of rows, and gradients of q, k, key gates and β of pieces of columns, are rounded to their dtype and then
///          added. All else runs token by token in float32 up to 128 × 128 a piece, and what has no such
///          pieces in float64. Equal calls give equal bits, whatever the batch, and no
///          output depends on a later token; a gradient may: by rounding, where the mean of all values is taken from them first; and where a later
///          token is NaN or has infinite products, even with ∂values of 0, gradients may be NaN back to a gate of 0, on a GPU with saved states and
///          a gate a token for up to 63 tokens
std::tuple<at::Tensor, at::Tensor> gated_state(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                               const std::optional<at::Tensor>& log_key_gate = std::nullopt,
                                               const std::optional<at::Tensor>& log_value_gate = std::nullopt,
                                               const std::optional<at::Tensor>& state = std::nullopt,
                                               std::optional<double> scale = std::nullopt, bool normalize = false,
                                               const std::optional<at::Tensor>& cu_seqlens = std::nullopt);

/// A matrix state that corrects the value it holds for a key towards the key's value: the delta rule, with or without a gate.
/// Differentiable in every tensor, as forgetting_attention is.
///
///   S̄_t = diag(f_t) S_{t−1}
///   S_t = S̄_t + β_t k_t (v_t − S̄_tᵀ k_t)ᵀ
///   o_t = scale · S_tᵀ q_t
///
/// source   Schlag 2021; Mao 2022, Eq. 6, read after the write; Yang 2024, "Gated Delta Networks", for the gate
/// reduces  v_t = S̄_tᵀ k_t → the write is zero, whatever β; no gates, no initial state, keys orthonormal, β = 1 → linear attention
/// reads    as gated_state; beta = β [B,T,H], ≥ 0, float32 or float64 as the gates, or query's dtype. The recurrence is stable for β|k|² in [0, 2]
/// returns  values [B,T,H,V], dtype of query; state [B,H,K,V] after the last token
/// throws   as gated_state
/// cost     as gated_state. Where a derivative is recorded, on compute capability 9.0, with 16-bit inputs to 128 × 128 of more than 64 tokens, no
///          gate or one a token, and that scale, saves beside its inputs the state before every 64th token, what the tokens' values differ from, and
///          the inverses of chunks, in 16 bits: to 64 × 64 348 bytes a token and head, at 128 × 128 864. At 8 × 4096 × 24 of 64 × 64 they are 261 MiB
///          beside q, k and v of 288 MiB. Other calls save their inputs alone. On compute capability 9.0 a call needs 5.9 KB for each 64 tokens of a
///          head meanwhile. With a gate a row, on tensor cores, a backward has up to 106 KB for each 64 tokens instead, and a forward up to 71 KB for
///          those of two windows (optimized/cuda/README.md)
/// numerics as gated_state; but with more than 64 rows and more than 64 columns another kernel has the values where a derivative is recorded as
///          above: equal calls have equal bits among those that record one and among those that don't, and gradients have the same bits whether or
///          not anything was saved. A value or key that is no number may reach outputs up to 15 tokens before it; where there is no gate or one a token, on
///          other GPUs than those of compute capability 9.0, up to 63
std::tuple<at::Tensor, at::Tensor> delta_state(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                               const at::Tensor& beta,
                                               const std::optional<at::Tensor>& log_key_gate = std::nullopt,
                                               const std::optional<at::Tensor>& state = std::nullopt,
                                               std::optional<double> scale = std::nullopt,
                                               const std::optional<at::Tensor>& cu_seqlens = std::nullopt);

}  // namespace lethe

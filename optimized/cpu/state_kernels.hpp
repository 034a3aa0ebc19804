#pragma once
// The recurrence of a matrix state over a chunk of tokens, for a tile of the state's columns (columns never mix: a tile is a task).
// Plain C++ on vectors of one register, compiled once for each instruction set; the processor chooses at run time.

#include <cstdint>

namespace lethe::cpu {

/// The update of the state S [K, columns] at a token, all in float64.
enum class StateRule {
  kKeyGate,    ///< S̄ = diag(f) S,          S = S̄ + k wᵀ, w = v
  kBothGates,  ///< S̄ = diag(f) S diag(g),  S = S̄ + k wᵀ, w = v
  kDelta       ///< S̄ = diag(f) S,          S = S̄ + k wᵀ, w = β (v − S̄ᵀ k)
};

/// Tokens of one head and one tile of columns. Rows are contiguous; everything starts on a boundary of 64 bytes.
struct StateChunk {
  int64_t tokens, key_dim;
  const double* query;           ///< [tokens, K], read by forward
  const double* key;             ///< [tokens, K]
  const double* key_gate;        ///< [tokens, K], f in [0, 1]
  const double* value;           ///< [tokens, width]
  const double* value_gate;      ///< [tokens, width], g in [0, 1], kBothGates only
  const double* write_strength;  ///< [tokens], β, kDelta only
  double* state;                 ///< [K, width], from before the first token to after the last
  double* values;                ///< [tokens, width] ← Sᵀ q, by forward
  double* decayed;               ///< [tokens, K, width] ← S̄, by record
  double* residual;              ///< [tokens, width] ← v − S̄ᵀ k, by record, kDelta only
};

/// The same tokens backwards, last first.
///
///   ∂S += q ∂oᵀ;   ∂q = S ∂o;   ∂w = ∂Sᵀ k;   ∂k = ∂S w;   ∂S̄ = ∂S;   w = v: ∂v = ∂w
///   delta:  ∂v = β ∂w;   ∂β = ∂w·(v − S̄ᵀ k);   ∂S̄ −= k ∂vᵀ;   ∂k −= S̄ ∂v
///   ∂log f = Σ_columns ∂S̄ ∘ S̄;   ∂log g = Σ_rows ∂S̄ ∘ S̄;   ∂S before the token = diag(f) ∂S̄ diag(g)
///
/// reads   forward: the chunk with decayed and residual recorded
struct StateChunkGradient {
  StateChunk forward;
  const double* values_gradient;  ///< [tokens, width], ∂o
  double* state_gradient;         ///< [K, width], from after the last token to before the first
  int64_t row_stride;             ///< between tokens in the three below: K rounded up to `lanes`
  double* query_gradient;         ///< [tokens, row_stride] += this tile's share
  double* key_gradient;           ///< [tokens, row_stride] += this tile's share
  double* key_gate_gradient;      ///< [tokens, row_stride] += this tile's share of ∂log f
  double* value_gradient;         ///< [tokens, width]
  double* value_gate_gradient;    ///< [tokens, width], ∂log g, kBothGates only
  double* strength_gradient;      ///< [tokens] += this tile's share of ∂β, kDelta only
};

/// One rule at one width.
struct StateTileKernels {
  void (*forward)(const StateChunk&);  ///< state and values
  void (*advance)(const StateChunk&);  ///< state alone
  void (*record)(const StateChunk&);   ///< state, decayed and residual
  void (*reverse)(const StateChunkGradient&);
};

/// Between the inputs' float32 or float64 and the recurrence's float64, rows × columns.
template <typename Scalar>
struct StateConversions {
  void (*load)(int64_t rows, int64_t columns, const Scalar* from, int64_t from_stride, double factor, double* to,
               int64_t to_stride);
  /// to ← e^from, exactly 0 for −∞ and exactly 1 for 0; has_zero[row] where the row holds a 0. False where an entry is positive or NaN:
  /// such a row is left unwritten.
  bool (*load_exponential)(int64_t rows, int64_t columns, const Scalar* from, int64_t from_stride, double* to,
                           int64_t to_stride, bool* has_zero);
  void (*store)(int64_t rows, int64_t columns, const double* from, int64_t from_stride, double factor, Scalar* to,
                int64_t to_stride);
};

inline constexpr int kStateRules = 3, kStateWidths = 3;

/// Everything for one processor. A tile is lanes, 2·lanes or 4·lanes columns wide.
struct StateKernels {
  int64_t lanes;
  StateTileKernels tile[kStateRules][kStateWidths];
  StateConversions<float> float_conversions;
  StateConversions<double> double_conversions;
};

/// Those of the instruction set that Torch uses, see instruction_set.hpp.
const StateKernels& state_kernels();

}  // namespace lethe::cpu

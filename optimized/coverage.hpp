#pragma once
// The problems that the CUDA kernels cover: host code that needs neither CUDA nor a device, so every build can answer.

#include <string>

#include "reference/problem.hpp"

namespace lethe {

/// Of shared memory that a CTA can have on a device of this compute capability (90 = 9.0), in KB. By it the kernels below are told apart, and their
/// launches assert what they ask for.
constexpr int shared_kilobytes(int capability) {
  if (capability >= 90 && capability < 120) return 227;
  return capability == 80 || capability == 87 ? 163 : 99;
}

/// Why the Hopper kernels can't run a problem on a device, or "" where they can.
std::string unsupported_by_hopper(const Shape& shape, Dtype dtype, int capability);

/// Why the kernels of mma.sync can't run a problem, or "" where they can.
std::string unsupported_by_ampere(const Shape& shape, Dtype dtype, int capability);

/// Which of their kernels run a call, and their tiles: "forward tiles 128 × 32, wide backward 128 × 64, one stage".
std::string variant_of_ampere(const Shape& shape, Dtype dtype, int capability, bool deterministic);

/// A kernel family's name, and what it covers.
struct Coverage {
  const char* name;
  bool portable;  ///< runs on every GPU from some compute capability on: one that LETHE_KERNELS=portable leaves in use
  std::string (*unsupported)(const Shape& shape, Dtype dtype, int capability);  ///< the reason against, or ""
  /// Where more than the shape selects them: the kernels that run a call; else null.
  std::string (*variant)(const Shape& shape, Dtype dtype, int capability, bool deterministic);
};

inline constexpr Coverage kHopperCoverage{"sm_90a kernels", false, unsupported_by_hopper, nullptr};
inline constexpr Coverage kAmpereCoverage{"sm_80 kernels", true, unsupported_by_ampere, variant_of_ampere};

/// Of every family of Forgetting Attention, in the order in which they are asked.
inline constexpr Coverage kAttentionCoverage[] = {kHopperCoverage, kAmpereCoverage};

/// What a call of a matrix state operator has besides query, key and value.
struct MatrixStateForm {
  enum class Gate { kNone, kToken, kKey };  ///< of the state's rows: none, one for all of them, one each
  Gate key_gate = Gate::kNone;
  bool value_gate = false, delta = false, normalize = false;
  bool kept_states = false;  ///< of a backward: whether it is given the states that its forward left
  bool ones = false;         ///< of a normalised call: columns of ones in place of a normaliser
};

/// Why the kernels that take 64 tokens at a time, without the delta rule, with a gate a row, with the delta rule, and with both, or those that take
/// one token, can't run a call; "" where they can. A normaliser is two further value columns, or one that the kernels keep apart.
std::string unsupported_by_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);
std::string unsupported_by_vector_gates(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);
std::string unsupported_by_delta_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);
std::string unsupported_by_delta_key_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype,
                                            int capability);
std::string unsupported_by_scan(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);

/// Why a call's beta and gates are not those of such a family, or "" where they are.
std::string other_form_than_chunks(const MatrixStateForm& form);
std::string other_form_than_vector_gates(const MatrixStateForm& form);
std::string other_form_than_delta_chunks(const MatrixStateForm& form);
std::string other_form_than_delta_key_chunks(const MatrixStateForm& form);
std::string other_form_than_scan(const MatrixStateForm& form);

/// Whether the forward of a call leaves states for its backward, which else computes them again.
std::string variant_of_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);

/// A kernel family of the matrix state operators, and what it covers.
struct MatrixStateCoverage {
  const char* name;
  std::string (*other_form)(const MatrixStateForm& form);  ///< what of `unsupported` depends on the form alone
  std::string (*unsupported)(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);
  /// The kernels that run a call, where its memory or speed depends on them; else null.
  std::string (*variant)(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);
};

inline constexpr MatrixStateCoverage kChunkCoverage{"chunk kernels", other_form_than_chunks, unsupported_by_chunks,
                                                    variant_of_chunks};
inline constexpr MatrixStateCoverage kVectorCoverage{"vector gate kernels", other_form_than_vector_gates,
                                                     unsupported_by_vector_gates, nullptr};
inline constexpr MatrixStateCoverage kDeltaCoverage{"delta chunk kernels", other_form_than_delta_chunks,
                                                    unsupported_by_delta_chunks, variant_of_chunks};
inline constexpr MatrixStateCoverage kDeltaKeyCoverage{"delta key gate kernels", other_form_than_delta_key_chunks,
                                                       unsupported_by_delta_key_chunks, nullptr};
inline constexpr MatrixStateCoverage kScanCoverage{"scan kernels", other_form_than_scan, unsupported_by_scan, nullptr};

/// Of every family of the matrix state, in the order in which they are asked; the last takes one token after the other.
inline constexpr MatrixStateCoverage kMatrixStateCoverage[] = {kChunkCoverage, kVectorCoverage, kDeltaCoverage,
                                                               kDeltaKeyCoverage, kScanCoverage};

/// Tokens of a call that chunks cover, at least: fewer are faster one at a time, and exact in float32.
inline constexpr int64_t kShortestInChunks = 16;

/// In how many pieces of its rows and of its columns a state is computed.
struct StatePieces {
  int64_t rows = 1, columns = 1;
  bool operator==(const StatePieces&) const = default;
};

/// Rows or columns of each piece but the last, which has what remains: a multiple of 8, so that each begins at 16 bytes.
inline int64_t piece_size(int64_t size, int64_t pieces) {
  return pieces == 1 ? size : ((size + pieces - 1) / pieces + 7) / 8 * 8;
}

/// The fewest pieces that a family by chunks covers, where none covers the whole state; else those that the family by tokens covers, where it doesn't
/// cover the whole; else one. Columns of a state don't depend on one another, with or without the delta rule and the normaliser. Rows don't where
/// there is neither: values are then the sum over the pieces of rows.
///
/// reads  shape, form, dtype and capability as `unsupported` of a MatrixStateCoverage
StatePieces state_pieces(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability);

}  // namespace lethe

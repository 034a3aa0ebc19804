#include "optimized/coverage.hpp"

#include <algorithm>
#include <climits>
#include <iterator>
#include <utility>

#include "optimized/cuda/ampere/sizes.hpp"
#include "optimized/gate.hpp"
#include "optimized/kept_states.hpp"

namespace lethe {
namespace {

std::string dotted(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

std::string expected_16_bits(Dtype dtype) {
  if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64) return "";
  return "dtype: expected bfloat16 or float16, found " + dtype_name(dtype);
}

std::string unsupported_dim(const Shape& shape, int64_t largest) {
  for (const auto& [name, dim] : {std::pair{"head dim", shape.key_dim}, {"value dim", shape.value_dim}})
    if (dim < 1 || dim > largest)
      return std::string(name) + ": expected 1 to " + std::to_string(largest) + ", found " + std::to_string(dim);
  return "";
}

// Positions and tile numbers are 32-bit integers; batch and heads are dimensions of a grid.
std::string unsupported_size(const Shape& shape, int64_t tiles_a_block) {
  constexpr int64_t kLongest = int64_t{1} << 30, kGrid = 65535;
  if (shape.key_length > kLongest || shape.batch > kGrid || shape.query_heads > kGrid ||
      shape.batch * shape.query_heads > INT_MAX / (tiles_a_block * gate_blocks(shape.key_length)))
    return "size: expected a length up to 2^30, batch and heads below 2^16 and fewer than 2^31 tiles, found more";
  return "";
}

std::string unsupported_size(const Shape& shape, const MatrixStateForm& form, int64_t widest, int capability) {
  constexpr int64_t kHeads = INT_MAX / 16;
  if (capability < 80) return "device: expected compute capability 8.0 or above, found " + dotted(capability);
  const int64_t columns = shape.value_dim + (form.normalize ? 2 : 0);
  if (shape.key_dim > widest || columns > widest) {
    const std::string most = std::to_string(widest);
    return "state: expected at most " + most + " rows and columns, found " + std::to_string(shape.key_dim) + " x " +
           std::to_string(columns);
  }
  if (shape.key_length > INT_MAX / 2 || shape.batch * shape.heads > kHeads)
    return "size: expected a length below 2^30 and fewer than 2^27 heads, found more";
  return "";
}

// What no kernel by chunks runs.
std::string unsupported_in_chunks(const Shape& shape, Dtype dtype) {
  if (const std::string reason = expected_16_bits(dtype); !reason.empty()) return reason;
  if (shape.key_length < kShortestInChunks)
    return "length: expected at least 16 tokens, found " + std::to_string(shape.key_length);
  return "";
}

// What no kernel by chunks with at most a gate a token runs.
std::string other_gates_than_chunks(const MatrixStateForm& form) {
  if (form.key_gate == MatrixStateForm::Gate::kKey) return "log_key_gate: expected one a token, found one a row";
  if (form.value_gate) return "log_value_gate: expected none, found one";
  return "";
}

std::string other_gate_than_a_row(const MatrixStateForm& form) {
  return form.key_gate == MatrixStateForm::Gate::kKey ? ""
                                                      : "log_key_gate: expected one a row, found none or one a token";
}

std::string tiles(int rows, int columns) { return std::to_string(rows) + " × " + std::to_string(columns); }

template <typename Element, int kDim>
std::string variant_of(ampere::BackwardKernels backward, int stages) {
  using Forward = ampere::ForwardSizesOf<Element, kDim>;
  using Sweep = ampere::SweepSizesOf<Element, kDim>;
  using Wide = ampere::WideSizes<kDim, 1>;
  std::string text = "forward tiles " + tiles(Forward::kRows, Forward::kKeys);
  if (backward == ampere::BackwardKernels::kKeysAndQueries)
    return text + ", backward in two kernels " + tiles(Sweep::kRows, Sweep::kColumns);
  if (backward == ampere::BackwardKernels::kWide)
    return text + ", wide backward " + tiles(Wide::kRows, Wide::kColumns) + ", " +
           (stages == 1 ? "one stage" : "two stages");
  if constexpr (kDim == 96)
    text += ", fused backward " + tiles(ampere::FusedSizes<kDim>::kRows, ampere::FusedSizes<kDim>::kColumns);
  return text;
}

}  // namespace

std::string unsupported_by_hopper(const Shape& shape, Dtype dtype, int capability) {
  if (capability != 90) return "device: expected compute capability 9.0, found " + dotted(capability);
  if (const std::string reason = expected_16_bits(dtype); !reason.empty()) return reason;
  if (const std::string reason = unsupported_dim(shape, 256); !reason.empty()) return reason;
  return unsupported_size(shape, std::max(shape.key_dim, shape.value_dim) <= 128 ? 1 : 2);
}

std::string unsupported_by_ampere(const Shape& shape, Dtype dtype, int capability) {
  const int64_t largest_dim = dtype == Dtype::kFloat32 ? 128 : 256;
  if (capability < 80) return "device: expected compute capability 8.0 or above, found " + dotted(capability);
  if (dtype == Dtype::kFloat64) return "dtype: expected float32, bfloat16 or float16, found float64";
  if (const std::string reason = unsupported_dim(shape, largest_dim); !reason.empty()) return reason;
  return unsupported_size(shape, 2);
}

std::string variant_of_ampere(const Shape& shape, Dtype dtype, int capability, bool deterministic) {
  const int shared = 1024 * shared_kilobytes(capability);
  const int64_t dim = ampere::dim_of_instance(shape, dtype);
  const ampere::BackwardKernels backward = ampere::backward_kernels(shape, dtype, deterministic, shared);
  const int stages = ampere::wide_stages(dim, shared);
  std::string text;
  ampere::for_dim(dim, [&]<int kDim> {
    if (dtype != Dtype::kFloat32) text = variant_of<uint16_t, kDim>(backward, stages);
    else if constexpr (ampere::has_floats(kDim)) text = variant_of<float, kDim>(backward, stages);
  });
  return text;
}

std::string other_form_than_chunks(const MatrixStateForm& form) {
  return form.delta ? "beta: expected none, found one" : other_gates_than_chunks(form);
}

std::string other_form_than_vector_gates(const MatrixStateForm& form) {
  return form.delta ? "beta: expected none, found one" : other_gate_than_a_row(form);
}

std::string other_form_than_delta_chunks(const MatrixStateForm& form) {
  return form.delta ? other_gates_than_chunks(form) : "beta: expected one, found none";
}

std::string other_form_than_delta_key_chunks(const MatrixStateForm& form) {
  if (!form.delta) return "beta: expected one, found none";
  if (const std::string reason = other_gate_than_a_row(form); !reason.empty()) return reason;
  return form.value_gate ? "log_value_gate: expected none, found one" : "";
}

std::string other_form_than_scan(const MatrixStateForm&) { return ""; }

std::string variant_of_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (capability != 90) return "";
  return kept_state_bytes<int64_t>(shape.key_length, shape.key_dim, shape.value_dim, form, dtype) > 0
             ? "states kept for the backward"
             : "";
}

std::string unsupported_by_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (const std::string reason = other_form_than_chunks(form); !reason.empty()) return reason;
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  const int shared = shared_kilobytes(capability);
  return unsupported_size(shape, form, shared == 227 ? 256 : shared == 163 ? 128 : 64, capability);
}

std::string unsupported_by_vector_gates(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (const std::string reason = other_form_than_vector_gates(form); !reason.empty()) return reason;
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  if (capability >= 80 && shared_kilobytes(capability) < 163)
    return "device: expected 163 KB of shared memory for a CTA, as of compute capability 8.0, found " +
           dotted(capability);
  return unsupported_size(shape, form, shared_kilobytes(capability) == 227 ? 128 : 64, capability);
}

std::string unsupported_by_delta_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (const std::string reason = other_form_than_delta_chunks(form); !reason.empty()) return reason;
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  return unsupported_size(shape, form, shared_kilobytes(capability) == 99 ? 64 : 128, capability);
}

std::string unsupported_by_delta_key_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype,
                                            int capability) {
  if (const std::string reason = other_form_than_delta_key_chunks(form); !reason.empty()) return reason;
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  if (capability >= 80 && shared_kilobytes(capability) < 163)
    return "device: expected 163 KB of shared memory for a CTA, as of compute capability 8.0, found " +
           dotted(capability);
  return unsupported_size(shape, form, 128, capability);
}

std::string unsupported_by_scan(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (dtype == Dtype::kFloat64) return "dtype: expected float32, bfloat16 or float16, found float64";
  return unsupported_size(shape, form, 128, capability);
}

StatePieces state_pieces(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  constexpr size_t kNone = std::size(kMatrixStateCoverage), kByTokens = kNone - 1;
  constexpr int64_t kMostPieces = 64;
  const auto family_of = [&](int64_t rows, int64_t columns) {
    Shape piece = shape;
    piece.key_dim = rows, piece.value_dim = columns;
    size_t family = 0;
    while (family < kNone && !kMatrixStateCoverage[family].unsupported(piece, form, dtype, capability).empty())
      ++family;
    return family;
  };
  const bool splits_rows = !form.delta && !form.normalize;
  StatePieces found;
  size_t family = family_of(shape.key_dim, shape.value_dim);
  // The smallest piece tells whether any is of a better family.
  if (family < kByTokens || family_of(splits_rows ? 1 : shape.key_dim, 1) >= family) return found;
  for (int64_t count = 2; count <= kMostPieces; ++count)
    for (int64_t rows = 1; rows <= (splits_rows ? count : 1); ++rows) {
      if (count % rows != 0) continue;
      const StatePieces pieces{rows, count / rows};
      const size_t of_pieces =
          family_of(piece_size(shape.key_dim, pieces.rows), piece_size(shape.value_dim, pieces.columns));
      if (of_pieces < family) found = pieces, family = of_pieces;
      if (family < kByTokens) return found;
    }
  return found;
}

}  // namespace lethe

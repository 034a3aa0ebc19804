#include "optimized/coverage.hpp"

#include <algorithm>
#include <climits>
#include <iterator>
#include <utility>

#include "optimized/gate.hpp"

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

constexpr int64_t kShortest = 16;  // tokens: below it one at a time is faster, and exact in float32

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
  if (shape.key_length < kShortest)
    return "length: expected at least 16 tokens, found " + std::to_string(shape.key_length);
  return "";
}

// What no kernel by chunks with at most a gate a token runs.
std::string unsupported_of_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype) {
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  if (form.key_gate == MatrixStateForm::Gate::kKey) return "log_key_gate: expected one a token, found one a row";
  if (form.value_gate) return "log_value_gate: expected none, found one";
  return "";
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

std::string unsupported_by_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (const std::string reason = unsupported_of_chunks(shape, form, dtype); !reason.empty()) return reason;
  if (form.delta) return "beta: expected none, found one";
  const int shared = shared_kilobytes(capability);
  return unsupported_size(shape, form, shared == 227 ? 256 : shared == 163 ? 128 : 64, capability);
}

std::string unsupported_by_vector_gates(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  if (form.delta) return "beta: expected none, found one";
  if (form.key_gate != MatrixStateForm::Gate::kKey)
    return "log_key_gate: expected one a row, found none or one a token";
  if (capability >= 80 && shared_kilobytes(capability) < 163)
    return "device: expected 163 KB of shared memory for a CTA, as of compute capability 8.0, found " +
           dotted(capability);
  return unsupported_size(shape, form, shared_kilobytes(capability) == 227 ? 128 : 64, capability);
}

std::string unsupported_by_delta_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype, int capability) {
  if (!form.delta) return "beta: expected one, found none";
  if (const std::string reason = unsupported_of_chunks(shape, form, dtype); !reason.empty()) return reason;
  return unsupported_size(shape, form, shared_kilobytes(capability) == 99 ? 64 : 128, capability);
}

std::string unsupported_by_delta_key_chunks(const Shape& shape, const MatrixStateForm& form, Dtype dtype,
                                            int capability) {
  if (!form.delta) return "beta: expected one, found none";
  if (const std::string reason = unsupported_in_chunks(shape, dtype); !reason.empty()) return reason;
  if (form.key_gate != MatrixStateForm::Gate::kKey)
    return "log_key_gate: expected one a row, found none or one a token";
  if (form.value_gate) return "log_value_gate: expected none, found one";
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
  StatePieces found;
  size_t family = family_of(shape.key_dim, shape.value_dim);
  // A small state tells whether sizes alone are against a better family.
  if (family < kByTokens || family_of(1, 1) >= family) return found;
  for (int64_t count = 2; count <= kMostPieces; ++count)
    for (int64_t rows = 1; rows <= (form.delta || form.normalize ? 1 : count); ++rows) {
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

#include "reference/problem.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <stdexcept>

namespace lethe {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014): one multiply-xorshift chain a number, equal everywhere.
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}

  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal() {  // Box and Muller, the cosine half only
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

// To the nearest number of `precision` significant bits (the hidden one included), ties to even, with the format's smallest normal exponent and
// maximum. On the bits of the double: tests round every weight of a head.
double round_bits(double value, int precision, int min_exponent, double maximum) {
  if (!std::isfinite(value)) return value;
  double rounded;
  if (std::abs(value) <
      std::ldexp(1.0, min_exponent)) {  // a multiple of the smallest subnormal: in this sum it is the last bit
    const double to_quantum = std::ldexp(1.5, min_exponent + 1 - precision + 52);
    rounded = std::copysign((value + to_quantum) - to_quantum, value);
  } else {
    const int dropped = std::numeric_limits<double>::digits - precision;
    uint64_t bits = std::bit_cast<uint64_t>(value);
    bits += (uint64_t{1} << (dropped - 1)) - 1 + (bits >> dropped & 1);
    rounded = std::bit_cast<double>(bits >> dropped << dropped);
  }
  return std::abs(rounded) > maximum ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

double draw_log_forget(Generator& generator, Gate gate) {
  const double open = -1e-4 * generator.uniform(0.0, 2.0);
  switch (gate) {
    case Gate::kOpen: return open;
    case Gate::kInitial: return -std::log1p(std::exp(-0.78 * generator.normal()));
    case Gate::kStrong: return -generator.uniform(1.0, 9.0);
    case Gate::kSpiky: return generator.uniform() < 1.0 / 16 ? -generator.uniform(5.0, 40.0) : open;
    case Gate::kZero: return 0.0;
    case Gate::kCutting: return generator.uniform() < 1.0 / 16 ? -std::numeric_limits<double>::infinity() : open;
  }
  throw std::invalid_argument("gate: expected one of the enumeration, found " + std::to_string(static_cast<int>(gate)));
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace

std::string dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return "float64";
    case Dtype::kFloat32: return "float32";
    case Dtype::kBFloat16: return "bfloat16";
    case Dtype::kFloat16: return "float16";
  }
  throw std::invalid_argument("dtype: expected one of the enumeration, found " +
                              std::to_string(static_cast<int>(dtype)));
}

std::string gate_name(Gate gate) {
  switch (gate) {
    case Gate::kOpen: return "open";
    case Gate::kInitial: return "initial";
    case Gate::kStrong: return "strong";
    case Gate::kSpiky: return "spiky";
    case Gate::kZero: return "zero";
    case Gate::kCutting: return "cutting";
  }
  throw std::invalid_argument("gate: expected one of the enumeration, found " + std::to_string(static_cast<int>(gate)));
}

double round_to(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::kFloat64: return value;
    case Dtype::kFloat32: return static_cast<double>(static_cast<float>(value));
    case Dtype::kBFloat16: return round_bits(value, 8, -126, 0x1.FEp127);
    case Dtype::kFloat16: return round_bits(value, 11, -14, 65504.0);
  }
  throw std::invalid_argument("dtype: expected one of the enumeration, found " +
                              std::to_string(static_cast<int>(dtype)));
}

Problem random_problem(const Shape& shape, Dtype dtype, Gate gate, uint64_t seed) {
  for (int64_t size : {shape.batch, shape.query_length, shape.key_length, shape.heads, shape.query_heads, shape.key_dim,
                       shape.value_dim}) {
    require(size >= 1, "shape: expected every size >= 1, found " + std::to_string(size));
  }
  require(shape.query_heads % shape.heads == 0,
          "query_heads: expected a multiple of heads = " + std::to_string(shape.heads) + ", found " +
              std::to_string(shape.query_heads));
  require(shape.query_length <= shape.key_length,
          "query_length: expected at most key_length = " + std::to_string(shape.key_length) + ", found " +
              std::to_string(shape.query_length));
  Problem problem;
  problem.shape = shape;
  problem.dtype = dtype;
  problem.scale = 1.0 / std::sqrt(static_cast<double>(shape.key_dim));
  Generator generator(seed);
  const auto fill = [&](std::vector<double>& tensor, int64_t count) {
    tensor.resize(static_cast<size_t>(count));
    for (double& x : tensor) x = round_to(dtype, generator.normal());
  };
  fill(problem.query, shape.batch * shape.query_length * shape.query_heads * shape.key_dim);
  fill(problem.key, shape.batch * shape.key_length * shape.heads * shape.key_dim);
  fill(problem.value, shape.batch * shape.key_length * shape.heads * shape.value_dim);
  problem.log_forget.resize(static_cast<size_t>(shape.batch * shape.key_length * shape.query_heads));
  const Dtype gate_dtype = dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  for (double& x : problem.log_forget) x = round_to(gate_dtype, draw_log_forget(generator, gate));
  return problem;
}

}  // namespace lethe

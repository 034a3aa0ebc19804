// Compiled once for each instruction set, with LETHE_INSTRUCTION_SET naming the namespace. Nothing here may be shared between those
// compilations: no standard library, everything local but the one table, or the linker could hand AVX-512 code to a processor without.
#include "optimized/cpu/state_kernels.hpp"

#include <cstring>
#include <numbers>

#include "optimized/cpu/shuffle.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 8;
#elif defined(__AVX__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif
typedef double Lanes __attribute__((vector_size(kLanes * sizeof(double)), may_alias));
typedef int64_t LaneIndices __attribute__((vector_size(kLanes * sizeof(int64_t))));

// N registers of one row of a tile. Loops over them have constant bounds and unroll, so that they stay in registers.
template <int N>
struct Row {
  Lanes part[N];
};

#define LETHE_PARTS _Pragma("GCC unroll 4") for (int n = 0; n < N; ++n)

template <int N>
inline __attribute__((always_inline)) Row<N> load(const double* from) {
  Row<N> row;
  LETHE_PARTS row.part[n] = *reinterpret_cast<const Lanes*>(from + n * kLanes);
  return row;
}

template <int N>
inline __attribute__((always_inline)) void store(const Row<N>& row, double* to) {
  LETHE_PARTS* reinterpret_cast<Lanes*>(to + n * kLanes) = row.part[n];
}

template <int N>
inline __attribute__((always_inline)) Row<N> zeros() {
  Row<N> row;
  LETHE_PARTS row.part[n] = Lanes{};
  return row;
}

template <int N>
inline __attribute__((always_inline)) void add_scaled(Row<N>& row, const Row<N>& other, double factor) {
  LETHE_PARTS row.part[n] += other.part[n] * factor;
}

template <int N>
inline __attribute__((always_inline)) void multiply(Row<N>& row, const Row<N>& other) {
  LETHE_PARTS row.part[n] *= other.part[n];
}

template <int N>
inline __attribute__((always_inline)) void multiply(Row<N>& row, double factor) {
  LETHE_PARTS row.part[n] *= factor;
}

// The lanes' shares of a scalar product; sums_of adds them up.
template <int N>
inline __attribute__((always_inline)) Lanes products(const Row<N>& a, const Row<N>& b) {
  Lanes sum = a.part[0] * b.part[0];
  for (int n = 1; n < N; ++n) sum += a.part[n] * b.part[n];
  return sum;
}

// For each step of sums_of, which lanes of two vectors side by side are added: every lane's own, and its partner's at the distance.
struct Partners {
  alignas(64) int64_t own[4][kLanes], other[4][kLanes];

  constexpr Partners() : own{}, other{} {
    for (int step = 0, distance = 1; distance < kLanes; ++step, distance *= 2) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int vector = (lane & distance) != 0 ? kLanes : 0;
        own[step][lane] = vector + lane;
        other[step][lane] = vector + (lane ^ distance);
      }
    }
  }
};
constexpr Partners kPartners;

// Lane r of the result is the sum over lanes of rows[r]: a transposition that adds as it goes, log2(kLanes) steps for kLanes sums.
inline __attribute__((always_inline)) Lanes sums_of(Lanes* rows) {
#pragma GCC unroll 4
  for (int step = 0, distance = 1; distance < kLanes; ++step, distance *= 2) {
    LaneIndices own, other;
    std::memcpy(&own, kPartners.own[step], sizeof own);
    std::memcpy(&other, kPartners.other[step], sizeof other);
#pragma GCC unroll 8
    for (int r = 0; r < kLanes; r += 2 * distance) {
      const Lanes a = rows[r], b = rows[r + distance];
      rows[r] = shuffled(a, b, own) + shuffled(a, b, other);
    }
  }
  return rows[0];
}

inline double sum_of(Lanes lanes) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

enum class Keep { kNothing, kValues, kHistory };

template <StateRule kRule, int N>
inline __attribute__((always_inline)) Row<N> decay(Row<N> row, double key_gate, const Row<N>& value_gate) {
  if constexpr (kRule == StateRule::kBothGates) multiply(row, value_gate);
  multiply(row, key_gate);
  return row;
}

template <StateRule kRule, Keep kKeep, int N>
void step(const StateChunk& chunk) {
  constexpr int64_t kWidth = N * kLanes;
  const int64_t key_dim = chunk.key_dim;
  double* __restrict state = chunk.state;
  for (int64_t t = 0; t < chunk.tokens; ++t) {
    const double* __restrict k = chunk.key + t * key_dim;
    const double* __restrict f = chunk.key_gate + t * key_dim;
    const double* __restrict q = kKeep == Keep::kValues ? chunk.query + t * key_dim : nullptr;
    double* __restrict decayed = kKeep == Keep::kHistory ? chunk.decayed + t * key_dim * kWidth : nullptr;
    Row<N> write = load<N>(chunk.value + t * kWidth), gate = zeros<N>(), read = zeros<N>();
    if constexpr (kRule == StateRule::kBothGates) gate = load<N>(chunk.value_gate + t * kWidth);
    if constexpr (kRule == StateRule::kDelta) {
      Row<N> held = zeros<N>();
      for (int64_t i = 0; i < key_dim; ++i) {
        const Row<N> row = decay<kRule>(load<N>(state + i * kWidth), f[i], gate);
        add_scaled(held, row, k[i]);
        store(row, state + i * kWidth);
        if constexpr (kKeep == Keep::kHistory) store(row, decayed + i * kWidth);
      }
      add_scaled(write, held, -1.0);
      if constexpr (kKeep == Keep::kHistory) store(write, chunk.residual + t * kWidth);
      multiply(write, chunk.write_strength[t]);
    }
    for (int64_t i = 0; i < key_dim; ++i) {
      Row<N> row = load<N>(state + i * kWidth);
      if constexpr (kRule != StateRule::kDelta) {
        row = decay<kRule>(row, f[i], gate);
        if constexpr (kKeep == Keep::kHistory) store(row, decayed + i * kWidth);
      }
      add_scaled(row, write, k[i]);
      store(row, state + i * kWidth);
      if constexpr (kKeep == Keep::kValues) add_scaled(read, row, q[i]);
    }
    if constexpr (kKeep == Keep::kValues) store(read, chunk.values + t * kWidth);
  }
}

// Rows in groups of kLanes, whose sums over columns are computed together after them.
template <StateRule kRule, int N>
void reverse(const StateChunkGradient& chunk) {
  constexpr int64_t kWidth = N * kLanes;
  constexpr bool kDelta = kRule == StateRule::kDelta;
  const StateChunk& forward = chunk.forward;
  const int64_t key_dim = forward.key_dim;
  double* __restrict d_state = chunk.state_gradient;
  for (int64_t t = forward.tokens - 1; t >= 0; --t) {
    const double* __restrict q = forward.query + t * key_dim;
    const double* __restrict k = forward.key + t * key_dim;
    const double* __restrict f = forward.key_gate + t * key_dim;
    const double* __restrict decayed = forward.decayed + t * key_dim * kWidth;
    double* __restrict d_q = chunk.query_gradient + t * chunk.row_stride;
    double* __restrict d_k = chunk.key_gradient + t * chunk.row_stride;
    double* __restrict d_f = chunk.key_gate_gradient + t * chunk.row_stride;
    const Row<N> d_o = load<N>(chunk.values_gradient + t * kWidth);
    Row<N> write = load<N>((kDelta ? forward.residual : forward.value) + t * kWidth), gate = zeros<N>();
    if constexpr (kRule == StateRule::kBothGates) gate = load<N>(forward.value_gate + t * kWidth);
    const double strength = kDelta ? forward.write_strength[t] : 1.0;
    if constexpr (kDelta) multiply(write, strength);
    const Lanes write_and_read = products(write, d_o);  // S ∂o = S̄ ∂o + k (w·∂o)
    Row<N> d_write = zeros<N>(), d_gate = zeros<N>();
    Lanes for_q[kLanes], for_k[kLanes], for_f[kLanes];
    for (int64_t begin = 0; begin < key_dim; begin += kLanes) {
      const int64_t rows = key_dim - begin < kLanes ? key_dim - begin : kLanes;
      for (int r = 0; r < kLanes; ++r) for_q[r] = for_k[r] = for_f[r] = Lanes{};
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = begin + r;
        const Row<N> before = load<N>(decayed + i * kWidth);
        Row<N> gradient = load<N>(d_state + i * kWidth);
        add_scaled(gradient, d_o, q[i]);
        add_scaled(d_write, gradient, k[i]);
        if constexpr (!kDelta) for_k[r] = products(gradient, write);
        for_q[r] = products(before, d_o) + write_and_read * k[i];
        if constexpr (!kDelta) {
          if constexpr (kRule == StateRule::kBothGates) {
            Row<N> both = before;
            multiply(both, gradient);
            add_scaled(d_gate, both, 1.0);
            Lanes sum = both.part[0];
            for (int n = 1; n < N; ++n) sum += both.part[n];
            for_f[r] = sum;
          } else {
            for_f[r] = products(gradient, before);
          }
          gradient = decay<kRule>(gradient, f[i], gate);
        }
        store(gradient, d_state + i * kWidth);
      }
      *reinterpret_cast<Lanes*>(d_q + begin) += sums_of(for_q);
      if constexpr (!kDelta) {
        *reinterpret_cast<Lanes*>(d_k + begin) += sums_of(for_k);
        *reinterpret_cast<Lanes*>(d_f + begin) += sums_of(for_f);
      }
    }
    if constexpr (kDelta) {
      const Row<N> residual = load<N>(forward.residual + t * kWidth);
      chunk.strength_gradient[t] += sum_of(products(d_write, residual));
      multiply(d_write, strength);  // now ∂v, and minus ∂(S̄ᵀ k)
      for (int64_t begin = 0; begin < key_dim; begin += kLanes) {
        const int64_t rows = key_dim - begin < kLanes ? key_dim - begin : kLanes;
        for (int r = 0; r < kLanes; ++r) for_k[r] = for_f[r] = Lanes{};
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t i = begin + r;
          const Row<N> before = load<N>(decayed + i * kWidth);
          Row<N> gradient = load<N>(d_state + i * kWidth);
          // Both shares of ∂k in one addition: of two, the order would depend on how a head's columns are divided among tasks.
          for_k[r] = products(gradient, write) - products(before, d_write);
          add_scaled(gradient, d_write, -k[i]);
          for_f[r] = products(gradient, before);
          multiply(gradient, f[i]);
          store(gradient, d_state + i * kWidth);
        }
        *reinterpret_cast<Lanes*>(d_k + begin) += sums_of(for_k);
        *reinterpret_cast<Lanes*>(d_f + begin) += sums_of(for_f);
      }
    }
    store(d_write, chunk.value_gradient + t * kWidth);
    if constexpr (kRule == StateRule::kBothGates) store(d_gate, chunk.value_gate_gradient + t * kWidth);
  }
}

constexpr double kLowest = -708.0;

// e^x for x ≤ 0 by e^x = 2^n e^r with |r| ≤ ln 2 / 2 and Taylor's polynomial. Below kLowest the result would be subnormal: 0.
inline __attribute__((always_inline)) double exponential(double x) {
  constexpr double kRounder = 0x1.8p52, kLog2High = 0x1.62e42fefap-1, kLog2Low = 0x1.cf79abc9e3b39p-40;
  constexpr double kInverseFactorials[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  const double clamped = x < kLowest ? kLowest : x;
  const double shifted = clamped * std::numbers::log2e + kRounder;  // its low bits hold n
  const double n = shifted - kRounder;
  const double r = (clamped - n * kLog2High) - n * kLog2Low;
  double polynomial = kInverseFactorials[13];
#pragma GCC unroll 16
  for (int term = 12; term >= 0; --term) polynomial = polynomial * r + kInverseFactorials[term];
  int64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const int64_t power_bits = static_cast<int64_t>((static_cast<uint64_t>(bits) << 52) + 0x3FF0000000000000u);
  double power;
  std::memcpy(&power, &power_bits, sizeof power);
  return x < kLowest ? 0.0 : polynomial * power;
}

template <typename Scalar>
void load_rows(int64_t rows, int64_t columns, const Scalar* from, int64_t from_stride, double factor, double* to,
               int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar* __restrict source = from + i * from_stride;
    double* __restrict target = to + i * to_stride;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) target[j] = factor * static_cast<double>(source[j]);
  }
}

template <typename Scalar>
bool load_exponential(int64_t rows, int64_t columns, const Scalar* from, int64_t from_stride, double* to,
                      int64_t to_stride, bool* has_zero) {
  if (columns == 1) {  // a vector of each row would hold one number
    for (int64_t i = 0; i < rows; ++i) {
      const Scalar log_gate = from[i * from_stride];
      if (!(log_gate <= Scalar(0))) return false;
      const double gate = exponential(static_cast<double>(log_gate));
      to[i * to_stride] = gate;
      has_zero[i] = gate == 0.0;
    }
    return true;
  }
  constexpr int64_t kOutside = int64_t{1} << 32;  // counted beside the zeros, in one sum
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar* __restrict source = from + i * from_stride;
    double* __restrict target = to + i * to_stride;
    int64_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t j = 0; j < columns; ++j)
      count += source[j] <= Scalar(0) ? (source[j] < Scalar(kLowest) ? 1 : 0) : kOutside;
    if (count >= kOutside) return false;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) target[j] = exponential(static_cast<double>(source[j]));
    has_zero[i] = count > 0;
  }
  return true;
}

template <typename Scalar>
void store_rows(int64_t rows, int64_t columns, const double* from, int64_t from_stride, double factor, Scalar* to,
                int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const double* __restrict source = from + i * from_stride;
    Scalar* __restrict target = to + i * to_stride;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) target[j] = static_cast<Scalar>(factor * source[j]);
  }
}

template <StateRule kRule, int N>
constexpr StateTileKernels of_width() {
  return {step<kRule, Keep::kValues, N>, step<kRule, Keep::kNothing, N>, step<kRule, Keep::kHistory, N>,
          reverse<kRule, N>};
}

#define LETHE_RULE(rule) \
  { of_width<rule, 1>(), of_width<rule, 2>(), of_width<rule, 4>() }

}  // namespace

extern const StateKernels state_kernels;
const StateKernels state_kernels{
    kLanes,
    {LETHE_RULE(StateRule::kKeyGate), LETHE_RULE(StateRule::kBothGates), LETHE_RULE(StateRule::kDelta)},
    {load_rows<float>, load_exponential<float>, store_rows<float>},
    {load_rows<double>, load_exponential<double>, store_rows<double>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET

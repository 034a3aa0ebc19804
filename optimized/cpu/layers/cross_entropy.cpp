#include <algorithm>
#include <cmath>
#include <limits>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/cross_entropy_kernels.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"

namespace lethe::cpu {

LETHE_CHOICE(CrossEntropyKernels<float>, float_cross_entropy)
LETHE_CHOICE(CrossEntropyKernels<double>, double_cross_entropy)

namespace {

const CrossEntropyKernels<float>& kernels_of(float) { return float_cross_entropy(); }
const CrossEntropyKernels<double>& kernels_of(double) { return double_cross_entropy(); }

template <typename Scalar>
void run(const LogitRows& rows, at::Tensor& logits) {
  constexpr Scalar kNan = std::numeric_limits<Scalar>::quiet_NaN();
  const auto& kernels = kernels_of(Scalar());
  const int64_t vocabulary = rows.vocabulary, pitch = logits.size(1);
  const int64_t* labels = rows.labels.const_data_ptr<int64_t>();
  Scalar *first_row = logits.data_ptr<Scalar>(), *losses = rows.losses.data_ptr<Scalar>();
  bool* correct = rows.correct.data_ptr<bool>();
  for_rows(logits.size(0), pitch, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      Scalar* row = first_row + n * pitch;
      const int64_t label = labels[n];
      const bool known = 0 <= label && label < vocabulary;
      const Scalar of_label = known ? row[label] : kNan;
      const bool before = known && kernels.contains(row, label, of_label);
      const auto [maximum, sum] = kernels.exponentials(row, vocabulary);
      losses[n] = maximum - of_label + std::log(sum);
      correct[n] = of_label == maximum && !before && !std::isnan(losses[n]);
      if (!rows.scale) continue;
      const auto scale = static_cast<Scalar>(*rows.scale);
      kernels.multiply(row, vocabulary, known ? scale / sum : kNan);
      if (known) row[label] -= scale;
      std::fill(row + vocabulary, row + pitch, Scalar(0));
    }
  });
}

}  // namespace

at::Tensor cross_entropy_rows(const LogitRows& rows) {
  at::Tensor logits = rows.logits.to(rows.losses.scalar_type());
  if (logits.scalar_type() == at::kDouble) run<double>(rows, logits);
  else run<float>(rows, logits);
  if (rows.scale) rows.logits.copy_(logits);  // in place where the dtype is one
  return logits;
}

}  // namespace lethe::cpu

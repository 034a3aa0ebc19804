#include "optimized/torch/linear_cross_entropy.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "optimized/cpu/layers/layers.hpp"
#include "optimized/operators/checks.hpp"
#include "optimized/torch/products.hpp"
#ifdef LETHE_CUDA_KERNELS
#include <c10/cuda/CUDAStream.h>

#include "optimized/cuda/layers/layers.hpp"
#endif

namespace lethe {
namespace {

using at::Tensor;

// ATen's formulas: any dtype and device.
void rows_by_aten(const LogitRows& rows) {
  const Tensor logits = rows.logits.narrow(1, 0, rows.vocabulary).to(rows.losses.scalar_type());
  const Tensor log_normalizer = logits.logsumexp(1, true);
  // A logit of +∞ makes a NaN of the loss, as in a softmax less its maximum.
  const Tensor unknown =
      rows.labels.lt(0).logical_or_(rows.labels.ge(rows.vocabulary)).logical_or_(log_normalizer.isposinf().squeeze(1));
  const Tensor labels = rows.labels.masked_fill(unknown, 0).unsqueeze(1);
  rows.losses.copy_(log_normalizer.sub(logits.gather(1, labels)).squeeze(1).masked_fill_(unknown, NAN));
  rows.correct.copy_(logits.argmax(1, true).eq(labels).squeeze(1).logical_and_(rows.losses.isnan().logical_not_()));
  if (!rows.scale) return;
  Tensor gradient = logits.sub(log_normalizer).exp_();
  gradient.scatter_add_(1, labels, at::full_like(log_normalizer, -1)).mul_(*rows.scale);
  rows.logits.narrow(1, 0, rows.vocabulary).copy_(gradient.masked_fill_(unknown.unsqueeze(1), NAN));
  rows.logits.narrow(1, rows.vocabulary, rows.logits.size(1) - rows.vocabulary).zero_();
}

Tensor rows_on_device(const LogitRows& rows) {
#ifdef LETHE_CUDA_KERNELS
  const at::ScalarType dtype = rows.logits.scalar_type();
  if (rows.logits.is_cuda() && dtype != at::kDouble) {
    layers::cross_entropy_rows({.rows = rows.logits.size(0),
                                .vocabulary = rows.vocabulary,
                                .pitch = rows.logits.size(1),
                                .dtype = dtype == at::kFloat      ? Dtype::kFloat32
                                         : dtype == at::kBFloat16 ? Dtype::kBFloat16
                                                                  : Dtype::kFloat16,
                                .logits = rows.logits.data_ptr(),
                                .labels = rows.labels.const_data_ptr<int64_t>(),
                                .loss = rows.losses.data_ptr<float>(),
                                .correct = rows.correct.data_ptr<bool>(),
                                .gradient = rows.scale.has_value(),
                                .scale = static_cast<float>(rows.scale.value_or(0)),
                                .stream = c10::cuda::getCurrentCUDAStream()});
    return rows.logits;
  }
#endif
  rows_by_aten(rows);
  return rows.logits;
}

// Of a chunk, at most `at_most`: chunks of about equal size, a multiple of 128 rows where that fits, for the matrix products.
int64_t rows_of_chunk(int64_t rows, int64_t at_most) {
  const int64_t chunks = std::max<int64_t>(1, (rows + at_most - 1) / at_most);
  const int64_t even = (rows + chunks - 1) / chunks;
  return std::max<int64_t>(1, std::min(at_most, (even + 127) / 128 * 128));
}

int64_t default_rows(const Tensor& hidden, int64_t padded_vocabulary) {
  const int64_t logits = hidden.is_cuda() ? (int64_t{1} << 29) / hidden.element_size() : int64_t{1} << 23;
  return std::max<int64_t>(1, logits / padded_vocabulary);
}

void check(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t vocabulary, int64_t rows_at_once) {
  check_layout("hidden", hidden);
  check_layout("weight", weight);
  check_layout("labels", labels);
  check_rank("hidden", hidden, 2, "[N,d]");
  check_floating("hidden", hidden);
  check_rank("weight", weight, 2, "[V,d]");
  check_shape("weight", weight, {weight.sym_size(0), hidden.sym_size(1)});
  check_like("weight", weight, hidden.scalar_type(), hidden, "hidden");
  check_shape("labels", labels, {hidden.sym_size(0)});
  check_like("labels", labels, at::kLong, hidden, "hidden");
  TORCH_CHECK(1 <= vocabulary && vocabulary <= weight.size(0), "vocabulary: expected 1 … ", weight.size(0),
              ", the rows of weight, found ", vocabulary);
  TORCH_CHECK(rows_at_once >= 0, "rows_at_once: expected at least 0, found ", rows_at_once);
}

LinearCrossEntropy run(const Tensor& hidden, const Tensor& weight, const Tensor& all_labels, int64_t vocabulary,
                       std::optional<double> scale, Tensor* weight_gradient, int64_t rows_at_once) {
  check(hidden, weight, all_labels, vocabulary, rows_at_once);
  const at::NoGradGuard no_gradient;
  const c10::DeviceGuard device(hidden.device());
  const int64_t rows = hidden.size(0), padded = weight.size(0);
  const int64_t at_once = rows_of_chunk(rows, rows_at_once > 0 ? rows_at_once : default_rows(hidden, padded));
  const Tensor labels = all_labels.contiguous();
  LinearCrossEntropy out;
  out.losses = at::empty({rows}, hidden.options().dtype(accumulation_dtype(hidden.scalar_type())));
  out.correct = at::empty({rows}, hidden.options().dtype(at::kBool));
  if (scale) out.grad_hidden = at::empty(hidden.sizes(), hidden.options());
  const Tensor buffer = at::empty({std::min(at_once, rows), padded}, hidden.options());
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const auto part = [&](const Tensor& tensor) { return tensor.narrow(0, first, count); };
    const Tensor of_chunk = part(hidden);
    LogitRows chunk{buffer.narrow(0, 0, count), part(labels), vocabulary, scale, part(out.losses), part(out.correct)};
    // An evaluation's rows change from call to call: nothing is measured for them.
    if (scale) product_out(chunk.logits, of_chunk, weight.t());
    else at::mm_out(chunk.logits, of_chunk, weight.t());
    const Tensor gradient = hidden.is_cpu() ? cpu::cross_entropy_rows(chunk) : rows_on_device(chunk);
    if (!scale) continue;
    product_out(part(out.grad_hidden), chunk.logits, weight);
    add_product(*weight_gradient, gradient.t(), of_chunk);
  }
  return out;
}

}  // namespace

LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                                        int64_t vocabulary, int64_t rows_at_once) {
  return run(hidden, weight, labels, vocabulary, std::nullopt, nullptr, rows_at_once);
}

LinearCrossEntropy linear_cross_entropy_with_gradients(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                                                       int64_t vocabulary, double scale, Tensor& weight_gradient,
                                                       int64_t rows_at_once) {
  check(hidden, weight, labels, vocabulary, rows_at_once);
  check_layout("weight_gradient", weight_gradient);
  check_shape("weight_gradient", weight_gradient, weight.sym_sizes());
  check_like("weight_gradient", weight_gradient, accumulation_dtype(hidden.scalar_type()), hidden, "hidden");
  check_scale(scale, hidden.scalar_type());
  return run(hidden, weight, labels, vocabulary, scale, &weight_gradient, rows_at_once);
}

}  // namespace lethe

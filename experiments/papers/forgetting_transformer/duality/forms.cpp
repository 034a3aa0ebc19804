#include "experiments/papers/forgetting_transformer/duality/forms.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>

#include "experiments/papers/forgetting_transformer/duality/inputs.hpp"
#include "experiments/papers/forgetting_transformer/duality/single_precision.hpp"
#include "reference/agreement.hpp"

namespace lethe::duality {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Tensor>
double tensor_difference(const Tensor& actual, const Tensor& expected) {
  if (actual.size() == 0 && expected.size() == 0) return 0;
  const Matrix<double> a = actual.template cast<double>(), e = expected.template cast<double>();
  const auto flat = [](const Matrix<double>& m) {
    return std::span<const double>(m.data(), static_cast<size_t>(m.size()));
  };
  return compare(flat(a), flat(e), budget(Dtype::kFloat64)).error;
}

template <typename Scalar>
double difference(const BasicOutput<Scalar>& actual, const BasicOutput<Scalar>& expected) {
  return std::max({tensor_difference(actual.values, expected.values), tensor_difference(actual.state, expected.state),
                   tensor_difference(actual.log_normalizer, expected.log_normalizer),
                   tensor_difference(actual.normalizer, expected.normalizer)});
}

/// All forms other than the recurrent one; each is compared with the recurrent one.
template <typename Scalar, typename Forms>
std::map<std::string, double> of_forms(const Forms& forms, const BasicHead<Scalar>& head,
                                       const std::vector<int64_t>& chunk_lengths) {
  const BasicOutput<Scalar> expected = forms.recurrent(head);
  std::map<std::string, double> found{{"parallel", difference(forms.parallel(head), expected)}};
  if (forms.chunked)
    for (const int64_t length : chunk_lengths)
      found["chunks of " + std::to_string(length)] = difference(forms.chunked(head, length), expected);
  return found;
}

void keep_larger(std::map<std::string, double>& kept, const std::map<std::string, double>& other) {
  for (const auto& [form, value] : other) {
    const auto [place, is_new] = kept.emplace(form, value);
    if (!is_new) place->second = std::max(place->second, value);
  }
}

const reference::Variant& row_named(const std::string& name) {
  const auto found = std::ranges::find(reference::variants(), name, &reference::Variant::name);
  if (found == reference::variants().end())
    throw std::invalid_argument("variant: expected one of the registry, found " + name);
  return *found;
}

}  // namespace

void Differences::merge(const Differences& other) {
  keep_larger(in_double, other.in_double);
  keep_larger(in_float, other.in_float);
  off_by_one = std::min(off_by_one, other.off_by_one);
}

Differences differences(const reference::Variant& variant, const Head& traced,
                        const std::vector<int64_t>& chunk_lengths) {
  const Head head = inputs_of(variant, traced);
  Differences found{
      .in_double = of_forms<double>(variant, head, chunk_lengths), .in_float = {}, .off_by_one = kInfinity};
  if (const auto single = single_forms(variant.name))
    found.in_float = of_forms<float>(*single, single->rounded(head), chunk_lengths);
  if (reads_a_gate(variant))
    found.off_by_one = difference(variant.parallel(with_gates_off_by_one(head)), variant.recurrent(head));
  return found;
}

double gauge_difference(const Head& traced) {
  const reference::Variant& scalar = row_named("gated_linear_attention_unnormalized");
  Head split = inputs_of(scalar, traced);
  const Output expected = scalar.recurrent(split);
  split.log_key_gate = (0.5 * split.log_forget).replicate(1, split.key.cols());
  split.log_value_gate = (0.5 * split.log_forget).replicate(1, split.value.cols());
  return difference(row_named("decay_fast_weights").parallel(split), expected);
}

std::vector<Comparison> statements(const std::map<std::string, Differences>& by_row, double gauge) {
  const double in_double = budget(Dtype::kFloat64), in_float = budget(Dtype::kFloat32);
  double parallel = 0, chunked = 0, single = 0, control = kInfinity;
  for (const auto& [row, found] : by_row) {
    for (const auto& [form, value] : found.in_double)
      (form == "parallel" ? parallel : chunked) = std::max(form == "parallel" ? parallel : chunked, value);
    for (const auto& [form, value] : found.in_float) single = std::max(single, value);
    control = std::min(control, found.off_by_one);
  }
  const std::string rows = "all " + std::to_string(by_row.size()) + " mechanisms";
  const auto at_most = [](const std::string& statement, const char* source, double limit, double measured,
                          bool headline) {
    // The verdict on a NaN or infinite value would be inconclusive, so the largest finite difference replaces it.
    const double finite = std::isfinite(measured) ? measured : std::numeric_limits<double>::max();
    return Comparison{.statement = statement,
                      .source = source,
                      .unit = "",
                      .headline = headline,
                      .expectation = {.high = limit},
                      .paper = 0,
                      .measured = finite};
  };
  return {
      at_most("The parallel form gives what the recurrent one gives: " + rows, "FoX Eq. 3–13; T2FW Eq. 3–7", in_double,
              parallel, true),
      at_most("The chunked forms give what the recurrent one gives: " + rows, "FoX Appendix D", in_double, chunked,
              true),
      {.statement = "A parallel form whose gates are off by one token is told apart: every gated mechanism",
       .source = "control",
       .headline = true,
       .expectation = {.low = 3 * in_double},
       .measured = control},
      at_most("The decay rule doesn't see how a gate is split between rows and columns", "T2FW Eq. 7", in_double, gauge,
              false),
      at_most("In single precision the forms agree to 1e-5: " + rows, "budget of float32", in_float, single, false),
  };
}

}  // namespace lethe::duality

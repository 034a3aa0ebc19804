#include "experiments/papers/forgetting_transformer/duality/single_precision.hpp"

#include <map>

#include "reference/alibi.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/linear_attention.hpp"
#include "reference/local_attention.hpp"
#include "reference/softmax_attention.hpp"

namespace lethe::duality {
namespace {

using namespace reference;
using Index = Eigen::Index;
using Single = BasicHead<float>;

constexpr float kSlope = 0.25F;  // the value of the registry's rows
constexpr Index kWindow = 7;

/// The forms of a rule with or without normaliser; with one, on features.
template <typename Recurrent, typename Parallel, typename Chunked>
SingleForms forms_of(Recurrent recurrent, Parallel parallel, Chunked chunked, reference::Normalized normalized,
                     reference::FeatureMap map) {
  SingleForms forms{.features = {},
                    .recurrent = [=](const Single& head) { return recurrent(head, normalized); },
                    .parallel = [=](const Single& head) { return parallel(head, normalized); },
                    .chunked = [=](const Single& head, Index length) { return chunked(head, normalized, length); }};
  if (normalized == Normalized::kYes) forms.features = [=](const Head& head) { return with_features(head, map); };
  return forms;
}

SingleForms linear(Normalized normalized) {
  namespace rule = linear_attention;
  return forms_of(rule::recurrent<float>, rule::parallel<float>, rule::chunked<float>, normalized,
                  feature_map::elu_plus_one());
}

SingleForms gated_linear(Normalized normalized) {
  namespace rule = gated_linear_attention;
  return forms_of(rule::recurrent<float>, rule::parallel<float>, rule::chunked<float>, normalized,
                  feature_map::elu_plus_one());
}

SingleForms gated(Normalized normalized) {
  namespace rule = gated_fast_weights;
  return forms_of(rule::recurrent<float>, rule::parallel<float>, rule::chunked<float>, normalized,
                  feature_map::elu_plus_one());
}

SingleForms delta(Normalized normalized) {
  namespace rule = delta_fast_weights;
  return forms_of(rule::recurrent<float>, rule::parallel<float>, rule::chunked<float>, normalized,
                  feature_map::sum_normalized(feature_map::elu_plus_one()));
}

}  // namespace

BasicHead<float> SingleForms::rounded(const Head& head) const {
  const Head mapped = features ? features(head) : head;
  return {mapped.query.cast<float>(),          mapped.key.cast<float>(),
          mapped.value.cast<float>(),          mapped.log_forget.cast<float>(),
          static_cast<float>(mapped.scale),    mapped.log_key_gate.cast<float>(),
          mapped.log_value_gate.cast<float>(), mapped.write_strength.cast<float>(),
          mapped.initial_state.cast<float>(),  mapped.initial_normalizer.cast<float>()};
}

std::optional<SingleForms> single_forms(const std::string& variant) {
  static const std::map<std::string, SingleForms> rows{
      {"softmax_attention", {{}, softmax_attention::recurrent<float>, softmax_attention::parallel<float>, {}}},
      {"alibi",
       {{},
        [](const Single& head) { return alibi::recurrent(head, kSlope); },
        [](const Single& head) { return alibi::parallel(head, kSlope); },
        {}}},
      {"forgetting_attention", {{}, forgetting_attention::recurrent<float>, forgetting_attention::parallel<float>, {}}},
      {"local_attention",
       {{},
        [](const Single& head) { return local_attention::recurrent(head, kWindow); },
        [](const Single& head) { return local_attention::parallel(head, kWindow); },
        [](const Single& head, Index length) { return local_attention::chunked(head, kWindow, length); }}},
      {"linear_attention_unnormalized", linear(Normalized::kNo)},
      {"linear_attention", linear(Normalized::kYes)},
      {"gated_linear_attention_unnormalized", gated_linear(Normalized::kNo)},
      {"gated_linear_attention", gated_linear(Normalized::kYes)},
      {"decay_fast_weights",
       {{},
        decay_fast_weights::recurrent<float>,
        decay_fast_weights::parallel<float>,
        decay_fast_weights::chunked<float>}},
      {"gated_fast_weights", gated(Normalized::kNo)},
      {"gated_fast_weights_normalized", gated(Normalized::kYes)},
      {"delta_fast_weights", delta(Normalized::kNo)},
      {"delta_fast_weights_normalized", delta(Normalized::kYes)},
      {"gated_delta_fast_weights",
       {{},
        gated_delta_fast_weights::recurrent<float>,
        gated_delta_fast_weights::parallel<float>,
        gated_delta_fast_weights::chunked<float>}},
  };
  const auto found = rows.find(variant);
  return found == rows.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace lethe::duality

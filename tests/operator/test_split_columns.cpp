#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "optimized/torch/layers.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr int64_t kHeads = 2, kWidth = 6;
const std::vector<int64_t> kSizes{kWidth, kWidth, kWidth,
                                  kHeads, kHeads, 5};  // q, k, v, both shifts, and columns that nothing reads

Tensor product() {
  torch::manual_seed(5);
  return torch::randn({2, 7, 3 * kWidth + 2 * kHeads + 5}, torch::kFloat64).requires_grad_();
}

Tensor loss(const std::vector<Tensor>& pieces) {
  const HeadInputs in = attention_inputs({.query = pieces[0],
                                          .key = pieces[1],
                                          .value = pieces[2],
                                          .key_shift = pieces[3],
                                          .value_shift = pieces[4],
                                          .heads = kHeads,
                                          .epsilon = 1e-6});
  return (in.query * in.key).sum() + in.value.square().sum();
}

TEST(SplitColumns, HaveTheGradientOfASplit) {
  const Tensor a = product(), b = product();
  loss(a.split_with_sizes(kSizes, -1)).backward();
  loss(split_columns(b * 1, kSizes)).backward();
  EXPECT_TRUE(b.grad().equal(a.grad()));
  EXPECT_EQ(b.grad().narrow(-1, 3 * kWidth + 2 * kHeads, 5).abs().max().item<double>(), 0);
}

TEST(SplitColumns, AddUpWhereAPieceHasTwoReaders) {
  const Tensor a = product(), b = product();
  const auto twice = [](const std::vector<Tensor>& pieces) {
    return loss(pieces) + 3 * loss(pieces) + pieces[1].sum();
  };
  twice(a.split_with_sizes(kSizes, -1)).backward();
  twice(split_columns(b * 1, kSizes)).backward();
  EXPECT_LT((b.grad() - a.grad()).abs().max().item<double>(), 1e-12);
}

TEST(SplitColumns, CanBeGoneThroughTwice) {
  const Tensor b = product();
  const Tensor value = loss(split_columns(b * 1, kSizes));
  const Tensor first = torch::autograd::grad({value}, {b}, {}, true)[0].clone();
  const Tensor second = torch::autograd::grad({value}, {b})[0];
  EXPECT_TRUE(first.equal(second));
}

TEST(SplitColumns, GiveAPieceItsPlaceOnceAndOtherTensorsNone) {
  const Tensor all = product() * 1;
  const std::vector<Tensor> pieces = split_columns(all, kSizes);
  EXPECT_EQ(gradient_like(pieces[1]).strides(), pieces[1].strides());
  EXPECT_TRUE(gradient_like(pieces[1]).is_contiguous());
  EXPECT_TRUE(gradient_like(torch::ones({3, 4}).narrow(1, 0, 2)).is_contiguous());
}

TEST(SplitColumns, GiveAPiecesHeadsItsPlace) {
  const Tensor all = product() * 1;
  const std::vector<Tensor> pieces = split_columns(all, kSizes);
  const Tensor heads = pieces[2].unflatten(-1, {kHeads, -1}), place = gradient_like(heads);
  EXPECT_EQ(place.sizes(), heads.sizes());
  EXPECT_EQ(place.strides(), heads.strides());
  place.fill_(2);
  const Tensor gathered = torch::autograd::grad({heads}, {all}, {place})[0];
  EXPECT_EQ(place.const_data_ptr(), gathered.narrow(-1, 2 * kWidth, kWidth).const_data_ptr());
  EXPECT_EQ(gathered.sum().item<double>(), 2.0 * static_cast<double>(heads.numel()));
  EXPECT_TRUE(gradient_like(pieces[0].narrow(-1, 0, 4).unflatten(-1, {2, 2}).transpose(2, 3)).is_contiguous());
}

TEST(SplitColumns, GiveNoPlaceToOtherViewsOfAPiece) {
  using View = Tensor (*)(const Tensor&);
  for (const View view_of :
       {View([](const Tensor& piece) { return piece.narrow(1, 0, 3); }),
        View([](const Tensor& piece) { return piece.transpose(0, 1); }), View([](const Tensor& piece) {
          return piece.narrow(0, 0, 1).expand({2, -1, -1});
        }),
        View([](const Tensor& piece) {
          return piece.narrow(-1, 0, 1).expand({-1, -1, 3});
        })}) {
    const Tensor all = product() * 1;
    const std::vector<Tensor> pieces = split_columns(all, kSizes);
    const Tensor view = view_of(pieces[0]);
    EXPECT_TRUE(gradient_like(view).is_contiguous()) << view.sizes() << view.strides();
    EXPECT_EQ(gradient_like(pieces[0]).stride(1), all.size(2));
  }
}

}  // namespace
}  // namespace lethe

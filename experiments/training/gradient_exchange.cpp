#include "experiments/training/gradient_exchange.hpp"

#include <algorithm>

namespace lethe {

using torch::Tensor;
using Range = FlatParameters::Range;

namespace {

constexpr int64_t kBucket = 1 << 23;  // entries: 32 MiB, where a collective operation is as fast as it gets
constexpr int64_t kLeastBuckets = 16;

Tensor part(const Tensor& buffer, const Range& range) { return buffer.narrow(0, range.begin, range.end - range.begin); }

bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

GradientExchange::GradientExchange(FlatParameters& parameters, World& world, bool is_sharded, int64_t entries)
    : parameters_(parameters), world_(world), is_sharded_(is_sharded && world.size() > 1) {
  const int64_t size = parameters.gradient.size(0), ranks = is_sharded_ ? world.size() : 1,
                unit = FlatParameters::kAlignment * ranks;
  if (entries == 0) entries = std::min(kBucket, size / kLeastBuckets);
  const int64_t length = std::max<int64_t>(1, (entries + unit - 1) / unit) * unit;
  const int64_t in_products = parameters.products.empty() ? 0 : parameters.products.back().end;
  for (int64_t begin = 0; begin < size; begin += length) {
    const Range all{begin, std::min(size, begin + length)};
    const int64_t share = (all.end - all.begin) / ranks, first = begin + (is_sharded_ ? world.rank() * share : 0);
    // A bucket with other parameters waits for one product more than there are: until finish().
    const int64_t products =
        std::ranges::count_if(parameters.products, [&](const Range& one) { return overlap(one, all); });
    buckets_.push_back({all, {first, first + share}, products + (all.end > in_products ? 1 : 0)});
    own_.push_back(buckets_.back().own);
  }
  if (!is_sharded_) own_ = {{0, size}};
  const auto rest = std::ranges::find_if(buckets_, [&](const Bucket& bucket) { return bucket.all.end > in_products; });
  std::reverse(buckets_.begin(), rest);
  for (const Bucket& bucket : buckets_) waits_for_.push_back(bucket.products);
}

GradientExchange::~GradientExchange() { parameters_.watch->complete = nullptr; }

void GradientExchange::begin() {
  if (world_.size() == 1) return;
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i].products = waits_for_[i];
  parameters_.watch->uses.assign(parameters_.products.size(), 0);
  parameters_.watch->complete = [this](size_t product) { complete(product); };
}

// Buckets are exchanged in one order on all ranks, whatever order their products are completed in.
void GradientExchange::complete(size_t product) {
  for (Bucket& bucket : buckets_)
    if (overlap(bucket.all, parameters_.products[product])) --bucket.products;
  while (next_ < buckets_.size() && buckets_[next_].products == 0) start_next();
}

void GradientExchange::start_next() {
  const Bucket& bucket = buckets_[next_++];
  const Tensor all = part(parameters_.gradient, bucket.all);
  pending_.push_back(is_sharded_ ? world_.reduce_scatter(part(parameters_.gradient, bucket.own), all)
                                 : world_.sum(all));
}

void GradientExchange::finish() {
  if (world_.size() == 1) return;
  parameters_.watch->complete = nullptr;
  while (next_ < buckets_.size()) start_next();
  for (const Pending& one : pending_) one.wait();
  pending_.clear();
  next_ = 0;
}

void GradientExchange::gather(const Tensor& buffer) const {
  if (!is_sharded_) return;
  std::vector<Pending> pending;
  for (const Bucket& bucket : buckets_)
    pending.push_back(world_.all_gather(part(buffer, bucket.all), part(buffer, bucket.own)));
  for (const Pending& one : pending) one.wait();
}

}  // namespace lethe

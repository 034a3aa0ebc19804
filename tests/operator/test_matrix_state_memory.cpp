// The memory of training through the matrix state's operators: numbers a token, not a state a token, for any width of the values and any number of
// threads that share one head.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "optimized/torch/matrix_state.hpp"

namespace lethe {
namespace {

// Torch's allocator of the CPU, counting the bytes of every thread during its lifetime.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, kPriority); }

  c10::DataPtr allocate(size_t size) override {
    const int64_t now = live_ += static_cast<int64_t>(size);
    for (int64_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) {
    }
    auto block = std::make_unique<Block>(inner_->allocate(size), size);
    void* memory = block->memory.get();
    return {memory, block.release(), release, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  static int64_t peak() { return peak_; }
  static void restart() { peak_ = live_.load(); }
  static int64_t live() { return live_; }

 private:
  static constexpr uint8_t kPriority = 100;
  struct Block {
    Block(c10::DataPtr given, size_t bytes) : memory(std::move(given)), size(static_cast<int64_t>(bytes)) {}
    c10::DataPtr memory;
    int64_t size;
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    live_ -= block->size;
  }

  c10::Allocator* inner_;
  inline static std::atomic<int64_t> live_{0}, peak_{0};
};

struct MemoryShape {
  int64_t length, key_dim, value_dim;
};

// The most bytes beyond the inputs that one head uses forward and backward, its results and gradients included.
double peak_of(const MemoryShape& shape, int threads, bool delta) {
  const auto [length, key_dim, value_dim] = shape;
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const auto rows = [length = length](int64_t columns) { return at::rand({1, length, 1, columns}); };
  const at::Tensor query = rows(key_dim).requires_grad_(), value = rows(value_dim).requires_grad_(),
                   key = (rows(key_dim) / key_dim).requires_grad_(), gate = (-rows(key_dim)).requires_grad_(),
                   value_gate = (-rows(value_dim)).requires_grad_(),
                   beta = rows(1).squeeze(3).detach().requires_grad_();
  CountingAllocator allocator;
  CountingAllocator::restart();
  const int64_t held = CountingAllocator::live();
  {
    const at::Tensor values = delta ? std::get<0>(delta_state(query, key, value, beta, gate))
                                    : std::get<0>(gated_state(query, key, value, gate, value_gate));
    values.backward(at::ones({1}).expand(values.sizes()));
    for (const at::Tensor& tensor : {query, key, value, gate, value_gate, beta}) tensor.mutable_grad() = at::Tensor();
  }
  at::set_num_threads(before);
  return static_cast<double>(CountingAllocator::peak() - held);
}

// Gradients and results: four [T, K], three [T, V], and one more that Torch passes on.
double results_of(const MemoryShape& shape) {
  return 4.0 * static_cast<double>(shape.length * (4 * shape.key_dim + 4 * shape.value_dim + 1));
}

constexpr int64_t kWidestTile = 32;  // of columns, with AVX-512; every other instruction set has more tiles to a head

// Two shares of the gradients over rows for each token, [3K + 1] in float64, and states between chunks, 32·T·K bytes; K is a multiple of the widest
// register. Besides, a thread's scratch for one chunk, and states.
double allowed_of(const MemoryShape& shape, int threads) {
  const auto [length, key_dim, value_dim] = shape;
  const double of_tokens = 8.0 * static_cast<double>(2 * (3 * key_dim + 1) * length + 4 * key_dim * length);
  const int64_t chunk = std::max<int64_t>(32, value_dim / 4);
  const double of_a_chunk = 8.0 * static_cast<double>(chunk * (kWidestTile * key_dim + 6 * kWidestTile + 6 * key_dim)),
               of_a_state = 8.0 * static_cast<double>(key_dim * value_dim);
  return results_of(shape) + of_tokens + threads * of_a_chunk + 4 * of_a_state;
}

// The memory if each tile kept its shares for all tokens at a time.
double shares_of_all_tiles(const MemoryShape& shape) {
  return 8.0 * static_cast<double>(shape.value_dim / kWidestTile * (3 * shape.key_dim + 1) * shape.length);
}

TEST(MatrixStateMemory, IsOfTheTokensAndNotOfTheirStatesWhereThreadsShareAHead) {
  for (const bool delta : {false, true}) {
    for (const MemoryShape& shape :
         {MemoryShape{4096, 32, 256}, MemoryShape{2048, 64, 512}, MemoryShape{300, 16, 1024}}) {
      for (const int threads : {1, 2, 3}) {
        SCOPED_TRACE(std::string(delta ? "delta" : "gates") + ", T = " + std::to_string(shape.length) +
                     ", V = " + std::to_string(shape.value_dim) + ", threads " + std::to_string(threads));
        const double peak = peak_of(shape, threads, delta);
        EXPECT_LE(peak, allowed_of(shape, threads));
        EXPECT_GE(peak, 4.0 * static_cast<double>(shape.length * (3 * shape.key_dim + 2 * shape.value_dim)))
            << "values and gradients alone are more: this counts nothing";
      }
    }
  }
}

// At fixed T and K wider values cost only their own rows and states: no share of the rows' gradients grows with the columns.
TEST(MatrixStateMemory, GrowsWithTheColumnsAsTheirOwnRowsDo) {
  const MemoryShape narrow{4096, 64, 256}, wide{4096, 64, 512};
  const double grown = peak_of(wide, 2, true) - peak_of(narrow, 2, true);
  const double shares = shares_of_all_tiles(wide) - shares_of_all_tiles(narrow);
  const double own = allowed_of(wide, 2) - allowed_of(narrow, 2);
  EXPECT_LE(grown, own);
  EXPECT_GT(shares, 2.0 * own) << "the bound would let shares of every tile for all tokens pass";
}

}  // namespace
}  // namespace lethe

// The wrappers that synchronise threads, CTAs and kernels, one by one. No wait of a test's own is endless.

#include <fstream>
#include <numeric>
#include <string>

#include "optimized/cuda/hopper/handover.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/launch.cuh"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

constexpr long long kCyclesOfAMillisecond = 2'000'000;         // at 2 GHz; of a little more where the clock is slower
constexpr long long kPatience = 1000 * kCyclesOfAMillisecond;  // for events that come at once in correct code

__device__ void let_pass(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) __nanosleep(1000);
  asm volatile("" ::: "memory");  // later accesses stay after it
}

/// Whether the number becomes `value` within `cycles`.
__device__ bool comes_to(const int32_t* number, int32_t value, long long cycles = kPatience) {
  const long long begin = clock64();
  while (ptx::load_acquire(number) != value)
    if (clock64() - begin > cycles) return false;
  return true;
}

// The first tests fail where a barrier is broken; at such a barrier the later ones would wait forever.

// Whether the phase of either parity has ended, tested before each arrival of two phases and after the last.
constexpr uint32_t kArrivals = 3;
__global__ void ask_between_arrivals(int* ended) {
  __shared__ uint64_t barrier;
  ptx::mbarrier_init(&barrier, kArrivals);
  for (uint32_t i = 0; i <= 2 * kArrivals; ++i) {
    for (uint32_t parity = 0; parity < 2; ++parity) ended[2 * i + parity] = ptx::mbarrier_try_wait(&barrier, parity);
    ptx::mbarrier_arrive(&barrier);
  }
}

TEST(Barriers, EndAPhaseWithItsLastArrival) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int> ended(2 * (2 * kArrivals + 1));
  ask_between_arrivals<<<1, 1>>>(ended.data());
  const auto got = ended.host();
  for (uint32_t i = 0; i <= 2 * kArrivals; ++i)
    for (uint32_t parity = 0; parity < 2; ++parity)
      EXPECT_EQ(got[2 * i + parity], (i / kArrivals + parity) % 2) << i << " arrivals, parity " << parity;
}

// The same before the copy that has been announced, and long after its beginning.
__global__ void ask_around_a_copy(const float* source, int* ended) {
  __shared__ alignas(16) float run[4];
  __shared__ uint64_t barrier;
  ptx::mbarrier_init(&barrier, 1);
  ptx::mbarrier_init_fence();
  ptx::mbarrier_arrive_expect(&barrier, sizeof run);
  ended[0] = ptx::mbarrier_try_wait(&barrier, 0);
  ptx::load_run(run, source, sizeof run, &barrier);
  let_pass(kCyclesOfAMillisecond);
  ended[1] = ptx::mbarrier_try_wait(&barrier, 0);
}

TEST(Barriers, EndAPhaseWithItsLastByte) {
  LETHE_NEEDS_GPU();
  const DeviceArray<float> source(4);
  const DeviceArray<int> ended(2);
  ask_around_a_copy<<<1, 1>>>(source.data(), ended.data());
  EXPECT_EQ(ended.host(), (std::vector<int>{0, 1}));
}

// Two warps release one after the other. Tests after each whether the phase has ended.
__global__ void ask_between_warps(int* ended) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 2 * hopper::kArrivalsOfAWarp);
  __syncthreads();
  for (uint32_t warp = 0; warp < 2; ++warp) {
    if (threadIdx.x / 32 == warp) hopper::release(&barrier, threadIdx.x % 32);
    __syncthreads();
    if (threadIdx.x == 0) ended[warp] = ptx::mbarrier_try_wait(&barrier, 0);
    __syncthreads();
  }
}

TEST(Barriers, AreReleasedOnceByEachWarp) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int> ended(2);
  ask_between_warps<<<1, 64>>>(ended.data());
  EXPECT_EQ(ended.host(), (std::vector<int>{0, 1}));
}

// The first warp arrives at one barrier and goes on; the second observes that before it comes there itself. At another barrier the second waits for
// the number that the first, a millisecond late, writes before it arrives.
__global__ void meet(int32_t* gone_on, int* heard, int* read) {
  __shared__ int number;
  if (threadIdx.x == 0) number = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    ptx::named_barrier_arrive(1, 64);
    if (threadIdx.x == 0) {
      ptx::store_release(gone_on, 1);
      let_pass(kCyclesOfAMillisecond);
      number = 1;
    }
    __syncwarp();
    ptx::named_barrier_arrive(2, 64);
  } else {
    if (threadIdx.x == 32) *heard = comes_to(gone_on, 1);
    __syncwarp();
    ptx::named_barrier_sync(1, 64);
    ptx::named_barrier_sync(2, 64);
    read[threadIdx.x - 32] = number;
  }
}

TEST(Barriers, StopAWarpThatSyncsButNotOneThatArrives) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int32_t> gone_on(std::vector<int32_t>{0});
  const DeviceArray<int> heard(1), read(32);
  meet<<<1, 64>>>(gone_on.data(), heard.data(), read.data());
  EXPECT_EQ(heard.host(), std::vector<int>(1, 1));
  EXPECT_EQ(read.host(), std::vector<int>(32, 1));
}

// A producer warpgroup passes numbers 0..kRounds-1 to a consumer through a ring of two slots; a pair of named barriers keeps the two
// in step, round by round.
constexpr int kRounds = 9;
__global__ void __launch_bounds__(256, 1) hand_over_in_step(int* received) {
  __shared__ uint64_t full[2], empty[2];
  __shared__ int slot[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], 128);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::RingPosition at;
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    for (int round = 0; round < kRounds; ++round, at.advance(2)) {
      if (threadIdx.x == 0) {
        ptx::mbarrier_wait(&empty[at.index], at.parity ^ 1);  // the first pass finds both slots free
        slot[at.index] = round;
        ptx::mbarrier_arrive(&full[at.index]);
      }
      __syncwarp();
      ptx::named_barrier_arrive(1, 256);
      ptx::named_barrier_sync(2, 256);
    }
  } else {
    ptx::registers_grow<200>();
    for (int round = 0; round < kRounds; ++round, at.advance(2)) {
      ptx::mbarrier_wait(&full[at.index], at.parity);
      received[round * 128 + threadIdx.x - 128] = slot[at.index];
      ptx::mbarrier_arrive(&empty[at.index]);
      ptx::named_barrier_sync(1, 256);
      ptx::named_barrier_arrive(2, 256);
    }
  }
}

TEST(Barriers, PassStagesThroughARingInOrder) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int> received(kRounds * 128);
  hand_over_in_step<<<1, 256>>>(received.data());
  const auto got = received.host();
  for (int i = 0; i < kRounds * 128; ++i) ASSERT_EQ(got[i], i / 128);
}

// The same from one thread to a warp, in step by the ring alone. The producer is slow at first, later the consumer is: without its wait a side reads
// slots not yet written, or overwrites slots not yet read. Each is once slower than the hardware's limit for one try_wait.
constexpr int kSlowRounds = 6;
template <bool kPatiently>
__global__ void hand_over_slowly(int* received) {
  const auto wait = [](uint64_t* barrier, uint32_t parity) {
    if constexpr (kPatiently) ptx::mbarrier_wait_patiently(barrier, parity);
    else ptx::mbarrier_wait(barrier, parity);
  };
  __shared__ uint64_t full[2], empty[2];
  __shared__ int slot[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::RingPosition at;
  if (threadIdx.x == 0) {
    for (int round = 0; round < 2 * kSlowRounds; ++round, at.advance(2)) {
      wait(&empty[at.index], at.parity ^ 1);
      if (round < kSlowRounds) let_pass((round == 0 ? 100 : 1) * kCyclesOfAMillisecond);
      slot[at.index] = round;
      ptx::mbarrier_arrive(&full[at.index]);
    }
  } else if (threadIdx.x >= 32) {
    for (int round = 0; round < 2 * kSlowRounds; ++round, at.advance(2)) {
      wait(&full[at.index], at.parity);
      if (round >= kSlowRounds) let_pass((round == kSlowRounds ? 100 : 1) * kCyclesOfAMillisecond);
      received[round * 32 + threadIdx.x - 32] = slot[at.index];
      ptx::mbarrier_arrive(&empty[at.index]);
    }
  }
}

TEST(Barriers, WaitForTheSlowerWarp) {
  LETHE_NEEDS_GPU();
  for (const auto kernel : {hand_over_slowly<false>, hand_over_slowly<true>}) {
    const DeviceArray<int> received(2 * kSlowRounds * 32);
    kernel<<<1, 64>>>(received.data());
    const auto got = received.host();
    for (int i = 0; i < 2 * kSlowRounds * 32; ++i) ASSERT_EQ(got[i], i / 32);
  }
}

__global__ void take_from_warp(const int* values, int* of_first_lane, int* of_all_lanes) {
  of_first_lane[threadIdx.x] = ptx::broadcast(values[threadIdx.x]);
  of_all_lanes[threadIdx.x] = ptx::in_uniform_register(values[threadIdx.x / 32 * 32]);
}

TEST(Registers, HoldOneValueForTheWholeWarp) {
  LETHE_NEEDS_GPU();
  std::vector<int> values(128);
  uint32_t bits = 7;
  for (int& value : values) value = static_cast<int>(bits = bits * 1664525u + 1013904223u);
  values[32] = -1;
  values[64] = 0;
  const DeviceArray<int> source(values), of_first_lane(values.size()), of_all_lanes(values.size());
  take_from_warp<<<1, 128>>>(source.data(), of_first_lane.data(), of_all_lanes.data());
  const auto first = of_first_lane.host(), all = of_all_lanes.host();
  for (int i = 0; i < 128; ++i) {
    EXPECT_EQ(first[i], values[i / 32 * 32]) << "thread " << i;
    EXPECT_EQ(all[i], values[i / 32 * 32]) << "thread " << i;
  }
}

// Two CTAs: once the second sees the first's flag, it reads the numbers that the first wrote before. The second has read before the first writes, so
// its cache holds the old numbers.
__global__ void hand_over(volatile int* memory, int32_t* told, int* read) {
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) comes_to(told, 1);
    __syncthreads();
    memory[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    if (threadIdx.x == 0) ptx::store_release(told, 2);
  } else {
    const int* cached = const_cast<const int*>(memory);
    read[threadIdx.x] = cached[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::store_release(told, 1);
      comes_to(told, 2);
    }
    __syncthreads();
    read[threadIdx.x] += cached[threadIdx.x];
  }
}

TEST(GlobalMemory, IsPublishedToAnotherCtaByOneFlag) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int> memory(std::vector<int>(128, 0)), told(std::vector<int>(1, 0)), read(128);
  hand_over<<<2, 128>>>(memory.data(), told.data(), read.data());
  std::vector<int> expected(128);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(read.host(), expected);
}

// Two CTAs in turn: the first writes numbers by ordinary stores; the second's copy engine loads them and adds to them; the first reads
// the sums, and writes the next.
constexpr int kTurns = 300, kNumbers = 256;
__global__ void __launch_bounds__(kNumbers, 1) take_turns(float* numbers, int32_t* told, float* loaded, float* sums) {
  __shared__ alignas(16) float run[kNumbers], addend[kNumbers];
  __shared__ uint64_t full;
  const int i = threadIdx.x;
  if (blockIdx.x == 0) {
    for (int turn = 0; turn < kTurns; ++turn) {
      numbers[i] = static_cast<float>(1000 * turn + i);
      __syncthreads();
      if (i == 0) ptx::store_release(told, 2 * turn + 1);
      if (!__syncthreads_and(i != 0 || comes_to(told, 2 * turn + 2))) return;
      sums[turn * kNumbers + i] = numbers[i];
    }
  } else {
    addend[i] = static_cast<float>(i + 1);
    ptx::fence_async_shared();
    if (i == 0) {
      ptx::mbarrier_init(&full, 1);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool heard = i != 0 || comes_to(told, 2 * turn + 1);
      if (i == 0 && heard) {
        ptx::fence_async_global();
        ptx::mbarrier_arrive_expect(&full, sizeof run);
        ptx::load_run(run, numbers, sizeof run, &full);
        ptx::mbarrier_wait(&full, turn % 2);
        ptx::reduce_add_run(numbers, addend, sizeof addend);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
      }
      if (!__syncthreads_and(heard)) return;
      ptx::mbarrier_wait(&full, turn % 2);
      loaded[turn * kNumbers + i] = run[i];
      __syncthreads();
      if (i == 0) ptx::store_release(told, 2 * turn + 2);
    }
  }
}

TEST(GlobalMemory, IsPublishedToAnotherCtasCopyEngineAndBack) {
  LETHE_NEEDS_GPU();
  const DeviceArray<int32_t> told(std::vector<int32_t>{0});
  const DeviceArray<float> numbers(kNumbers), loaded(kTurns * kNumbers), sums(kTurns * kNumbers);
  take_turns<<<2, kNumbers>>>(numbers.data(), told.data(), loaded.data(), sums.data());
  const auto before = loaded.host(), after = sums.host();
  for (int turn = 0; turn < kTurns; ++turn)
    for (int i = 0; i < kNumbers; ++i) {
      ASSERT_EQ(before[turn * kNumbers + i], 1000 * turn + i) << "turn " << turn << ", number " << i;
      ASSERT_EQ(after[turn * kNumbers + i], 1000 * turn + 2 * i + 1) << "turn " << turn << ", number " << i;
    }
}

// A kernel that lets the next one start waits until that one has, if it does, and a millisecond more before it writes.
__global__ void write_late(int32_t* next_started, int32_t* seen, int* numbers, long long patience) {
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    *seen = comes_to(next_started, 1, patience);
    let_pass(kCyclesOfAMillisecond);
  }
  __syncthreads();
  numbers[threadIdx.x] = threadIdx.x + 1;
}

__global__ void read_late(int32_t* started, int* numbers, int* read) {
  if (threadIdx.x == 0) ptx::store_release(started, 1);
  wait_for_previous_kernel();
  read[threadIdx.x] = numbers[threadIdx.x];
}

struct Overlap {
  bool seen;              // whether the first kernel saw the second's start
  std::vector<int> read;  // 1, 2, … where the second has waited for the first
};

Overlap overlap(long long patience) {
  const DeviceArray<int32_t> started(std::vector<int32_t>{0}), seen(1);
  const DeviceArray<int> numbers(std::vector<int>(128, 0)), read(128);
  testing::require(cudaDeviceSynchronize());
  cudaStream_t stream;
  testing::require(cudaStreamCreate(&stream));
  write_late<<<1, 128, 0, stream>>>(started.data(), seen.data(), numbers.data(), patience);
  launch_overlapping(read_late, dim3(1), 128, 0, stream, started.data(), numbers.data(), read.data());
  testing::require(cudaStreamSynchronize(stream));
  testing::require(cudaStreamDestroy(stream));
  return {seen.host().front() == 1, read.host()};
}

std::vector<int> one_to_128() {
  std::vector<int> numbers(128);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

// In the first run kernels are loaded, which may wait for a running one: there neither waits for the other to start.
TEST(DependentKernels, WaitForAllThatThePreviousOneWrites) {
  LETHE_NEEDS_GPU();
  EXPECT_EQ(overlap(0).read, one_to_128());
  EXPECT_EQ(overlap(kPatience).read, one_to_128());
}

// compute-sanitizer, whose library is then in the process, lets one kernel end before it launches the next.
bool launches_one_by_one() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("libsanitizer-") != std::string::npos) return true;
  return false;
}

TEST(DependentKernels, StartBeforeThePreviousOneEndsWhereItLetsThem) {
  LETHE_NEEDS_GPU();
  if (launches_one_by_one()) GTEST_SKIP() << "compute-sanitizer launches one kernel after the other";
  overlap(0);
  EXPECT_TRUE(overlap(kPatience).seen);
}

}  // namespace
}  // namespace lethe

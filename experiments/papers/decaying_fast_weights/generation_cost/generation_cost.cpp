// T2FW Fig. 1: time and memory of one generated token over the length of the context, for the decay rule, the delta rule and
// attention; as the paper's script measures them, and with only the tensors that generation needs.

#include <ATen/Parallel.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <span>
#include <stdexcept>

#include "experiments/claims/claim.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/decaying_fast_weights/generation_cost/costs.hpp"
#include "experiments/papers/decaying_fast_weights/generation_cost/memory_meter.hpp"
#include "reference/agreement.hpp"
#include "reference/variant.hpp"

namespace lethe::generation_cost {
namespace {

struct Options {
  Sizes sizes;
  std::vector<int64_t> contexts;
};

torch::Dtype dtype_of(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "float16") return torch::kFloat16;
  if (name == "bfloat16") return torch::kBFloat16;
  throw std::invalid_argument("dtype: expected float32, float16 or bfloat16, found " + name);
}

Dtype reference_dtype(torch::Dtype dtype) {
  return dtype == torch::kFloat32 ? Dtype::kFloat32 : dtype == torch::kFloat16 ? Dtype::kFloat16 : Dtype::kBFloat16;
}

Options options_of(const nlohmann::json& settings, const char* edition) {
  const nlohmann::json& table = settings.at(edition);
  return {.sizes = {.batch = whole_number(table, "batch"),
                    .heads = table.contains("heads") ? whole_number(table, "heads") : 1,
                    .key_dim = whole_number(table, "key_dim"),
                    .value_dim = whole_number(table, "value_dim"),
                    .device = device_named(settings.at("device")),
                    .dtype = dtype_of(settings.at("dtype"))},
          .contexts = table.at("contexts")};
}

constexpr double kRivalsBudget = 20;  ///< times ours: plain operations round scores and states to the type of their inputs

/// Checks the values of a step's next call against the reference: a step with other values is an error and never timed.
void check(const Step& step, const Rival& rival, int64_t context, torch::Dtype dtype) {
  const Head head = step.head();
  const torch::Tensor values =
      step.run().detach().select(0, 0).select(1, 0).to(torch::kCPU, torch::kFloat64).contiguous();
  const auto row = std::ranges::find(reference::variants(), step.variant, &reference::Variant::name);
  // With zero tokens of context attention has no value to return, but the script calls it.
  const Matrix<double> expected =
      head.key.rows() == 0 ? Matrix<double>::Zero(1, head.value.cols()) : row->recurrent(head).values;
  const auto flat = [](const double* data, int64_t size) {
    return std::span<const double>(data, static_cast<size_t>(size));
  };
  const Agreement agreement = compare(flat(values.const_data_ptr<double>(), values.numel()),
                                      flat(expected.data(), expected.size()),
                                      (rival.implementation == "lethe" ? 1 : kRivalsBudget) * budget(reference_dtype(dtype)));
  if (!agreement.passed())
    throw std::runtime_error(rival.name() + " after " + std::to_string(context) +
                             " tokens: expected the reference's values, found " + agreement.describe());
}

/// A step to be timed, and the place of its times.
struct Cell {
  Step step;
  size_t series, context;
};

/// The buffer that is written before every timing, so that no cache holds a step's inputs.
class Flush {
 public:
  Flush(int64_t bytes, torch::Device device)
      : buffer_(torch::zeros({bytes}, torch::TensorOptions().dtype(torch::kInt8).device(device))) {}
  void operator()() { buffer_.zero_(); }

 private:
  torch::Tensor buffer_;
};

double seconds(const Step& step) {
  const auto wait = [] {
    if (torch::cuda::is_available()) torch::cuda::synchronize();
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  step.run();
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Limits Torch to this thread, the only one that a meter counts.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

/// Constructs every step of an edition, checks it, and counts the bytes at the peak of one call.
void prepare(Edition edition, const Options& options, const std::vector<std::string>& implementations,
             int64_t flush_bytes, std::vector<Series>& series, std::vector<Cell>& cells) {
  const OneThread alone;
  for (const Rival& rival : rivals(edition, implementations)) {
    series.push_back({.edition = edition, .rival = rival});
    for (const int64_t context : options.contexts) {
      MemoryMeter meter;
      // The peak that the script reports includes its buffer against caches.
      const auto bytes = torch::TensorOptions().dtype(torch::kInt8).device(options.sizes.device);
      const torch::Tensor scripts_flush = torch::empty({edition == Edition::kScripted ? flush_bytes : 0}, bytes);
      Step step = make_step(edition, rival, options.sizes, context);
      check(step, rival, context, options.sizes.dtype);
      meter.restart_peak();
      step.run();
      series.back().contexts.push_back(static_cast<double>(context));
      series.back().bytes.push_back(static_cast<double>(meter.peak()));
      cells.push_back({std::move(step), series.size() - 1, series.back().contexts.size() - 1});
    }
  }
}

/// Times all cells in a new random order each repetition.
void time(std::vector<Cell>& cells, int64_t repetitions, Flush& flush, std::vector<Series>& series,
          const std::function<void(double)>& progress) {
  std::mt19937_64 random(1);
  for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
    for (Series& one : series) one.seconds.emplace_back(one.contexts.size());
    std::ranges::shuffle(cells, random);
    for (const Cell& cell : cells) {
      flush();
      series[cell.series].seconds.back()[cell.context] = seconds(cell.step);
    }
    progress(static_cast<double>(repetition + 1) / static_cast<double>(repetitions));
  }
}

const char* prefix(Edition edition) { return edition == Edition::kScripted ? "scripted_" : ""; }

/// The curves for the plots: the median, and the quartiles around it.
void add_points(const Series& one, std::vector<Point>& points) {
  const auto add = [&](const std::string& quantity, double context, double value) {
    points.push_back(
        {.quantity = prefix(one.edition) + quantity, .variant = one.rival.name(), .x = context, .value = value});
  };
  for (size_t c = 0; c < one.contexts.size(); ++c) {
    std::vector<double> column;
    for (const auto& repetition : one.seconds) column.push_back(repetition[c]);
    std::ranges::sort(column);
    const size_t last = column.size() - 1;
    add("time", one.contexts[c], median(column));
    add("time_low", one.contexts[c], column[last / 4]);
    add("time_high", one.contexts[c], column[last - last / 4]);
    add("memory", one.contexts[c], one.bytes[c]);
  }
}

/// The numbers of the table: both ends, the slopes, and the crossing of attention's cost with the decay rule's.
void add_records(const Study& study, const Options& options, const std::vector<Series>& all, const Series& one,
                 std::vector<Record>& records) {
  const auto add = [&](const std::string& metric, const std::string& unit, double context, double value, double stddev,
                       size_t samples) {
    records.push_back({.experiment = study.experiment.paper,
                       .claim = study.experiment.claim,
                       .variant = one.rival.name(),
                       .implementation = "lethe",
                       .device = study.settings.at("device"),
                       .dtype = study.settings.at("dtype"),
                       .batch = options.sizes.batch,
                       .length = static_cast<int64_t>(context),
                       .heads = options.sizes.heads,
                       .key_dim = options.sizes.key_dim,
                       .value_dim = options.sizes.value_dim,
                       .metric = prefix(one.edition) + metric,
                       .unit = unit,
                       .value = value,
                       .stddev = stddev,
                       .samples = static_cast<int64_t>(samples)});
  };
  const auto medians = one.median_seconds();
  const size_t samples = one.seconds.size();
  const double longest = one.contexts.back(), to_deviation = std::sqrt(static_cast<double>(samples)) / (1.25 * 1.96);
  add("time", "s", longest, medians.back(), 0, samples);
  const Estimate growth = time_growth(one);
  add("time_growth", "1", longest, growth.value, growth.band * to_deviation, samples);
  add("memory", "B", longest, one.bytes.back(), 0, 1);
  add("memory_a_token", "B", longest, slope(one.contexts, one.bytes), 0, 1);
  const auto attention = std::ranges::find_if(
      all, [&](const Series& other) { return other.edition == one.edition && other.rival.rule == "attention"; });
  if (one.rival.rule == "attention") return;
  if (const auto at = crossing(one.contexts, attention->median_seconds(), medians))
    add("time_crossing", "tokens", longest, *at, 0, samples);
  if (const auto at = crossing(one.contexts, attention->bytes, one.bytes))
    add("memory_crossing", "tokens", longest, *at, 0, 1);
}

}  // namespace

std::vector<Run> runs(const nlohmann::json&, int64_t) { return {}; }

Findings measure(const Study& study) {
  const auto implementations = study.settings.at("implementations").get<std::vector<std::string>>();
  const int64_t flush_bytes = study.settings.at("flush_bytes");
  const std::pair<Edition, Options> editions[] = {{Edition::kScripted, options_of(study.settings, "scripted")},
                                                  {Edition::kClean, options_of(study.settings, "clean")}};
  torch::manual_seed(0);
  std::vector<Series> series;
  std::vector<Cell> cells;
  for (const auto& [edition, options] : editions)
    prepare(edition, options, implementations, flush_bytes, series, cells);
  Flush flush(flush_bytes, editions[0].second.sizes.device);
  time(cells, study.settings.at("repetitions"), flush, series, study.progress);

  Findings findings;
  for (const auto& [edition, options] : editions) {
    for (const Series& one : series) {
      if (one.edition != edition) continue;
      add_points(one, findings.points);
      add_records(study, options, series, one, findings.records);
    }
    const auto said = statements(series, edition, static_cast<double>(options.sizes.cache_bytes()),
                                 study.settings.at("steady_margin"));
    findings.comparisons.insert(findings.comparisons.end(), said.begin(), said.end());
  }
  return findings;
}

}  // namespace lethe::generation_cost

#include "experiments/evaluation/associative_recall.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/journal.hpp"
#include "experiments/training/optimizer.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr int kRecallVersion = 3;                     // 3: on a CPU a seed has one thread, whatever their number
constexpr int64_t kTestSequences = int64_t{1} << 40;  // their first number
constexpr int64_t kTestedAtOnce = 64;

/// Random numbers of one sequence.
class Draw {
 public:
  Draw(uint64_t seed, int64_t sequence) {
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
    const auto number = static_cast<uint64_t>(sequence);
    std::seed_seq words{low(seed), low(seed >> 32), low(number), low(number >> 32)};
    random_.seed(words);
  }

  int64_t below(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }

  /// `count` of the numbers first … first + all − 1, each once, in random order.
  std::vector<int64_t> some_of(int64_t first, int64_t all, int64_t count) {
    std::vector<int64_t> numbers(all);
    std::iota(numbers.begin(), numbers.end(), first);
    for (int64_t i = 0; i < count; ++i) std::swap(numbers[i], numbers[i + below(all - i)]);
    numbers.resize(count);
    return numbers;
  }

  /// `count` places 0 … weights − 1 without replacement, each time with a chance in proportion to its weight: those whose exponential
  /// times of these rates are the first.
  std::vector<int64_t> weighted(const std::vector<double>& weights, int64_t count) {
    std::vector<std::pair<double, int64_t>> times;
    for (size_t place = 0; place < weights.size(); ++place) {
      const double uniform = static_cast<double>((random_() >> 11) + 1) * 0x1p-53;
      times.emplace_back(-std::log(uniform) / weights[place], static_cast<int64_t>(place));
    }
    std::ranges::sort(times);
    std::vector<int64_t> places;
    for (int64_t i = 0; i < count; ++i) places.push_back(times[i].second);
    return places;
  }

 private:
  std::mt19937_64 random_;
};

/// Writes one sequence into rows of the batch's tensors.
void write_sequence(const RecallTask& task, const std::vector<double>& weights, Draw draw, int64_t* tokens,
                    int64_t* answers, int64_t* outdated) {
  const int64_t half = task.vocabulary / 2, context = 2 * (task.pairs + task.updates);
  for (int64_t at = 0; at < task.tokens(); ++at) tokens[at] = draw.below(task.vocabulary);
  const auto keys = draw.some_of(0, half, task.pairs);
  std::vector<int64_t> values = draw.some_of(half, half, task.pairs);
  std::vector<int64_t> first(task.pairs, -1);  // of the keys with two values
  for (int64_t i = 0; i < task.pairs; ++i) tokens[2 * i] = keys[i], tokens[2 * i + 1] = values[i];
  const auto updated = draw.some_of(0, task.pairs, task.updates);
  for (int64_t u = 0; u < task.updates; ++u) {
    const int64_t key = updated[u], another = draw.below(half - 1);
    first[key] = values[key];
    values[key] = half + another + (half + another >= first[key] ? 1 : 0);
    tokens[2 * (task.pairs + u)] = keys[key];
    tokens[2 * (task.pairs + u) + 1] = values[key];
  }
  const auto places = draw.weighted(weights, task.pairs);
  for (int64_t i = 0; i < task.pairs; ++i) {
    const int64_t at = context + 2 * places[i];
    tokens[at] = keys[i];
    answers[at] = values[i];
    outdated[at] = first[i];
  }
}

}  // namespace

void RecallTask::check() const {
  expect(vocabulary >= 4 && vocabulary % 2 == 0 && vocabulary < (int64_t{1} << 20), "vocabulary",
         "an even number from 4 on", std::to_string(vocabulary));
  expect(pairs >= 1 && pairs <= vocabulary / 2, "pairs", "1 … vocabulary / 2 = " + std::to_string(vocabulary / 2),
         std::to_string(pairs));
  expect(updates >= 0 && updates <= pairs, "updates", "0 … pairs = " + std::to_string(pairs), std::to_string(updates));
  expect(length == 0 || (length >= least_length() && length % 2 == 0), "length",
         "0 or an even number from " + std::to_string(least_length()) + " on", std::to_string(length));
  expect(power > 0 && std::isfinite(power), "power", "> 0 and finite", std::to_string(power));
}

RecallTask RecallTask::with_pairs(int64_t fewer) const {
  RecallTask task = *this;
  task.pairs = fewer;
  task.updates = updates * fewer / pairs;
  return task;
}

RecallBatch recall_batch(const RecallTask& task, uint64_t seed, int64_t first, int64_t count) {
  std::vector<double> weights((task.tokens() - 2 * (task.pairs + task.updates)) / 2);
  for (size_t g = 0; g < weights.size(); ++g) weights[g] = std::pow(static_cast<double>(g + 1), task.power - 1);
  RecallBatch batch{torch::empty({count, task.tokens()}, torch::kInt64), {}, {}};
  batch.answers = torch::full_like(batch.tokens, -1);
  batch.outdated = torch::full_like(batch.tokens, -1);
  const auto row = [&](Tensor& tensor, int64_t n) { return tensor.data_ptr<int64_t>() + n * task.tokens(); };
  for (int64_t n = 0; n < count; ++n)
    write_sequence(task, weights, Draw(seed, first + n), row(batch.tokens, n), row(batch.answers, n),
                   row(batch.outdated, n));
  return batch;
}

RecallScore recall_score(const Predictor& predict, const RecallTask& task, uint64_t seed, int64_t sequences) {
  Tensor right = torch::zeros({}, torch::kFloat64), right_updated = torch::zeros_like(right),
         with_first = torch::zeros_like(right), loss = torch::zeros_like(right);
  for (int64_t first = 0; first < sequences; first += kTestedAtOnce) {
    const RecallBatch batch =
        recall_batch(task, seed, kTestSequences + first, std::min(kTestedAtOnce, sequences - first));
    const auto found = predict(batch.tokens, batch.answers);
    const Tensor asked = batch.answers.ge(0), updated = batch.outdated.ge(0);
    right += found.correct.logical_and(asked).sum();
    right_updated += found.correct.logical_and(updated).sum();
    loss += found.losses.sum();
    if (task.updates > 0) with_first += predict(batch.tokens, batch.outdated).correct.logical_and(updated).sum();
  }
  const auto share = [&](const Tensor& sum, int64_t of_sequence) {
    return of_sequence == 0 ? std::numeric_limits<double>::quiet_NaN()
                            : sum.item<double>() / static_cast<double>(of_sequence * sequences);
  };
  return {share(right, task.pairs), share(right_updated, task.updates), share(with_first, task.updates),
          share(loss, task.pairs)};
}

RecallScore trained_recall(ModelConfig config, const RecallTask& task, const RecallTraining& training, uint64_t seed,
                           torch::Device device, const std::function<void(double)>& progress) {
  const torch::AutoGradMode with_gradients(true);
  config.vocabulary = task.vocabulary;
  LanguageModel model(config, device, seed);
  model->flatten(true);
  TrainingConfig options;
  options.context_length = task.tokens();
  options.batch_tokens = training.batch * task.tokens();
  options.total_tokens = training.steps * options.batch_tokens;
  options.warmup_tokens = options.total_tokens / 10;
  options.learning_rate = training.learning_rate;
  AdamW optimizer(model->flat(), options);
  for (int64_t step = 0; step < training.steps; ++step) {
    const int64_t pairs = training.pairs.empty() ? task.pairs : training.pairs[step % std::ssize(training.pairs)];
    const RecallBatch batch = recall_batch(task.with_pairs(pairs), seed, step * training.batch, training.batch);
    model->flat().gradient.zero_();
    const Tensor losses = model->predictions(batch.tokens.to(device), batch.answers.to(device)).losses;
    const Tensor loss = losses.sum() / static_cast<double>(training.batch * pairs);
    loss.backward();
    optimizer.step(learning_rate_at(options, step * options.batch_tokens), loss.detach().to(torch::kFloat64));
    if (progress) progress(static_cast<double>(step + 1) / static_cast<double>(training.steps));
  }
  model->eval();
  return recall_score(predictor_of(model), task, seed, training.tested);
}

namespace {

struct RecallSettings {
  explicit RecallSettings(const nlohmann::json& settings) {
    JsonReader reader(settings, "associative_recall");
    reader("pairs", task.pairs);
    reader("updates", task.updates);
    reader("vocabulary", task.vocabulary);
    reader("length", task.length);
    reader("power", task.power);
    reader("steps", training.steps);
    reader("batch", training.batch);
    reader("learning_rate", training.learning_rate);
    reader("training_pairs", training.pairs);
    reader("tested", training.tested);
    reader("seeds", seeds);
    reader("model", model);
    reader("raw", raw);
    reader.finish();
    task.check();
    for (const auto& [name, value] : {std::pair("steps", training.steps), std::pair("batch", training.batch),
                                      std::pair("tested", training.tested), std::pair("seeds", seeds)})
      expect(value >= 1, name, "at least 1", std::to_string(value));
    for (const int64_t pairs : training.pairs)
      expect(pairs >= 1 && pairs <= task.pairs, "training_pairs", "1 … pairs = " + std::to_string(task.pairs),
             std::to_string(pairs));
    expect(model.is_object(), "model", "a JSON object", model.dump());
  }

  RecallTask task;
  RecallTraining training;
  int64_t seeds = 1;
  nlohmann::json model = nlohmann::json::object();  ///< members that replace the measured model's
  std::string raw;
};

/// Trains and tests the seeds that the journal lacks: on a CPU each on one thread, as many at once as there are threads, on a GPU one after another.
///
/// throws   what a training throws, or `progress`, after those that run beside it have ended; their measurements are kept
void train_missing(const LanguageModel& model, const ModelConfig& config, const RecallSettings& settings,
                   Journal& journal, const std::function<void(double)>& progress) {
  std::vector<int64_t> missing;
  for (int64_t seed = 0; seed < settings.seeds; ++seed)
    if (!journal.find({{"seed", seed}})) missing.push_back(seed);
  const auto seeds = static_cast<double>(settings.seeds);
  double done = seeds - static_cast<double>(missing.size());
  std::mutex mutex;  // of done, the journal and progress
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto train = [&] {
    for (size_t place; !failed && (place = next++) < missing.size();) try {
        double before = 0;
        const auto advance = [&](double share) {
          const std::lock_guard lock(mutex);
          done += share - before;
          before = share;
          if (progress) progress(done / seeds);
        };
        const RecallScore score = trained_recall(config, settings.task, settings.training,
                                                 static_cast<uint64_t>(missing[place]), model->device(), advance);
        const std::lock_guard lock(mutex);
        journal.add({{"seed", missing[place]},
                     {"accuracy", score.accuracy},
                     {"updated_accuracy", score.updated_accuracy},
                     {"outdated", score.outdated},
                     {"loss", score.loss}});
      } catch (...) {
        failed = true;
        throw;
      }
  };
  if (!model->device().is_cpu()) return train();
  const int threads = std::max(1, at::get_num_threads());
  std::vector<std::future<void>> trainings;
  for (size_t i = 0; i < std::min<size_t>(missing.size(), threads); ++i)
    trainings.push_back(std::async(std::launch::async, [&] {
      at::set_num_threads(1);  // of this thread, and of those that begin later
      train();
    }));
  for (const auto& training : trainings) training.wait();
  at::set_num_threads(threads);
  for (auto& training : trainings) training.get();
}

/// The mean of a metric over seeds, and every seed's number as a point.
void add_metric(Evaluated& result, Record empty, const char* metric, const char* unit,
                const std::vector<double>& values) {
  empty.metric = metric;
  empty.unit = unit;
  empty.samples = std::ssize(values);
  empty.value = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - empty.value) * (value - empty.value);
  if (values.size() > 1) empty.stddev = std::sqrt(squares / static_cast<double>(values.size() - 1));
  result.records.push_back(empty);
  for (size_t seed = 0; seed < values.size(); ++seed)
    result.points.push_back(
        {.quantity = std::string(metric) + "_at_seed", .x = static_cast<double>(seed), .value = values[seed]});
}

}  // namespace

Evaluation associative_recall_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset&, const nlohmann::json& given,
                      const std::function<void(double)>& progress) {
    const RecallSettings settings(given);
    nlohmann::json config = model->config();
    config.update(settings.model);
    config["vocabulary"] = settings.task.vocabulary;
    nlohmann::json about = {
        {"evaluation", "associative_recall"}, {"version", kRecallVersion}, {"settings", given}, {"model", config}};
    about["settings"].erase("raw");
    Journal journal(settings.raw, about, {"seed"});
    train_missing(model, config.get<ModelConfig>(), settings, journal, progress);
    std::map<std::string, std::vector<double>> values;
    for (int64_t seed = 0; seed < settings.seeds; ++seed)
      for (const char* metric : {"accuracy", "updated_accuracy", "outdated", "loss"})
        if (const auto& value = journal.find({{"seed", seed}})->at(metric); value.is_number())
          if (!std::isnan(value.get<double>())) values[metric].push_back(value.get<double>());
    Record empty = record_of_model(model, settings.training.tested, settings.task.tokens(), "", "", 0);
    const ModelConfig trained = config.get<ModelConfig>();
    empty.heads = trained.heads;
    empty.key_dim = empty.value_dim = trained.head_dim();
    Evaluated result;
    for (const auto& [metric, unit] : {std::pair("accuracy", "1"), std::pair("updated_accuracy", "1"),
                                       std::pair("outdated", "1"), std::pair("loss", "nats")})
      if (values.contains(metric)) add_metric(result, empty, metric, unit, values[metric]);
    return result;
  };
  Evaluation row{"associative_recall",
                 "The architecture, trained anew on multi-query associative recall, with keys that change or not", run,
                 kRecallVersion};
  row.own_settings = [](int64_t) { return nlohmann::json::object(); };
  return row;
}

}  // namespace lethe

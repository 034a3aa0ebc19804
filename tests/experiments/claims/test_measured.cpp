// Measurements as files of their own: made once, read without weights, refused where damaged.

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "experiments/claims/claim.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

class MeasuredFiles : public TinyDatasetTest {
 protected:
  MeasuredFiles() {
    run.training.total_tokens = run.training.batch_tokens;
    run.training.warmup_tokens = 0;
    model = trained(run, dataset, models);
    study.trained = {model};
  }

  double ask(const Measure& measure, const nlohmann::json& settings = {{"length", 8}}) {
    const auto compute = [&](LanguageModel& weights) {
      ++computed;
      return nlohmann::json{{"width", weights->config().width}, {"asked", computed}};
    };
    return study.measured(model, measure, settings, compute).at("asked");
  }

  fs::path only_file() const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(model.folder / "measured")) found = entry.path();
    return found;
  }

  lethe::Run run = tiny_run();
  Experiment experiment{"paper", "claim", nullptr, nullptr};
  nlohmann::json settings = {{"evaluation", {{"tokens", 128}}}};
  Artefact model;
  double shared = 0;  // the last progress
  Study study{.experiment = experiment,
              .settings = settings,
              .dataset = dataset,
              .data = {},
              .paper = {},
              .trained = {},
              .progress = [this](double share) { shared = share; }};
  int computed = 0;
};

TEST_F(MeasuredFiles, AreMadeOnceForMeasureVersionAndSettings) {
  EXPECT_EQ(ask({"width"}), 1);
  EXPECT_EQ(ask({"width"}), 1);
  EXPECT_EQ(ask({"width", 2}), 2);
  EXPECT_EQ(ask({"depth"}), 3);
  EXPECT_EQ(ask({"width"}, {{"length", 9}}), 4);
  EXPECT_EQ(ask({"width"}), 1);
}

TEST_F(MeasuredFiles, HaveTheirKeyAndCertificateBesideTheValue) {
  ask({"width"});
  const nlohmann::json file = read_sealed(only_file());
  for (const char* member :
       {"measure", "version", "settings", "value", "device", "commit", "machine", "versions", "time"})
    EXPECT_TRUE(file.contains(member)) << member;
  EXPECT_EQ(file.at("value").at("width"), run.model.width);
}

TEST_F(MeasuredFiles, AreReadWhereTheWeightsAreAbsent) {
  ask({"width"});
  nlohmann::json done = read_sealed(model.folder / "done.json");
  done["weights"] = "absent";
  write_sealed(model.folder / "done.json", done);
  fs::remove(model.folder / "checkpoint.pt");
  EXPECT_EQ(trained(run, dataset, models).folder, model.folder);
  study.loaded.reset();
  EXPECT_EQ(ask({"width"}), 1);
  try {
    ask({"depth"});
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("expected its weights, found them absent"), std::string::npos)
        << error.what();
  }
}

TEST_F(MeasuredFiles, AreRefusedWhereTheFileIsDamaged) {
  ask({"width"});
  const fs::path file = only_file();
  std::string text = read_whole(file);
  text.replace(text.find("\"asked\": 1"), 10, "\"asked\": 7");
  write_whole(file, text);
  EXPECT_THROW(ask({"width"}), std::exception);
}

TEST_F(MeasuredFiles, OfOtherWeightsAreMadeAgain) {
  ask({"width"});
  nlohmann::json done = read_sealed(model.folder / "done.json");
  done["weights_sha256"] = std::string(64, '0');
  write_sealed(model.folder / "done.json", done);
  study.makes = false;
  EXPECT_THROW(ask({"width"}), NotMeasured);
  study.makes = true;
  EXPECT_EQ(ask({"width"}), 2);
  EXPECT_EQ(ask({"width"}), 2);
  EXPECT_EQ(read_sealed(only_file()).at("weights_sha256"), std::string(64, '0'));
}

TEST_F(MeasuredFiles, AreNotMadeByAStudyThatMakesNone) {
  study.makes = false;
  EXPECT_THROW(ask({"width"}), NotMeasured);
  EXPECT_EQ(computed, 0);
  study.makes = true;
  ask({"width"});
  study.makes = false;
  EXPECT_EQ(ask({"width"}), 1);
}

TEST_F(MeasuredFiles, StopBetweenTheStepsOfAnEvaluation) {
  int steps = 0;
  study.check = [&] {
    if (++steps == 3) throw Interrupted(15, "SIGTERM");
  };
  const nlohmann::json task = {{"steps", 1000000}, {"batch", 1}, {"pairs", 2}, {"vocabulary", 8}};
  EXPECT_THROW(evaluated(study, model, "associative_recall", task), Interrupted);
  EXPECT_EQ(steps, 3);
  EXPECT_FALSE(fs::exists(model.folder / "measured"));
}

TEST_F(MeasuredFiles, OfAPartEndTheClaimAfterItsLastModel) {
  int asked = 0;
  study.each([&](const Artefact&) { ++asked; });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(shared, 1);
  study.is_part = true;
  EXPECT_THROW(study.each([&](const Artefact&) { ++asked; }), PartMeasured);
  EXPECT_EQ(asked, 2);
}

TEST_F(MeasuredFiles, AreThoseOfTheEvaluationToTheLastDigit) {
  const nlohmann::json pieces = {{"length", 32}, {"sequences", 4}};
  const Evaluated made = evaluate(study, model, 32), read = evaluate(study, model, 32);
  LanguageModel weights = load_model(model);
  const Evaluated found = evaluation_named("per_token_loss").run(weights, dataset, pieces, {});
  for (const Evaluated& one : {made, read}) {
    EXPECT_EQ(one.value("loss"), found.value("loss"));
    EXPECT_EQ(one.curve("loss_at_position"), found.curve("loss_at_position"));
    EXPECT_EQ(one.records.front().samples, found.records.front().samples);
    EXPECT_TRUE(std::isnan(one.points.front().y));
  }
}

TEST(LossCurve, HasMeansOfStretchesAfter1024Positions) {
  Evaluated found;
  double sum = 0;
  for (int i = 1; i <= 5001; ++i) {
    found.points.push_back({.quantity = "loss_at_position", .x = static_cast<double>(i), .value = 1.0 / i});
    sum += 1.0 / i;
  }
  const std::vector<Point> curve = loss_curve(tiny_run(), found);
  ASSERT_EQ(std::ssize(curve), 1024 + 512 + 512 + (5000 - 4096) / 8 + 1);
  double begin = 0;
  for (const Point& point : curve) {
    const double stretch = point.x <= 1024 ? 1 : point.x <= 2048 ? 2 : point.x <= 4096 ? 4 : point.x <= 5000 ? 8 : 1;
    ASSERT_EQ(point.x, begin + stretch);
    sum -= stretch * point.value;
    begin = point.x;
  }
  EXPECT_EQ(begin, 5001);
  EXPECT_NEAR(sum, 0, 1e-12);
  EXPECT_EQ(curve[99].value, 0.01);
  EXPECT_NEAR(curve[1024].value, (1.0 / 1025 + 1.0 / 1026) / 2, 1e-15);
}

TEST_F(MeasuredFiles, GiveTheLossOfEachSequenceBetweenTwoPositions) {
  const Evaluated found = evaluate(study, model, 32);
  const auto whole = losses_of_sequences(found, 0, 32), late = losses_of_sequences(found, 8, 32);
  ASSERT_EQ(std::ssize(whole), found.records.front().batch);
  EXPECT_NEAR(mean(whole), found.value("loss"), 1e-12);
  const auto curve = found.curve("loss_at_position");
  EXPECT_NEAR(mean(late), mean({curve.begin() + 8, curve.end()}), 1e-12);
  EXPECT_THROW(losses_of_sequences(found, 0, 31), std::invalid_argument);
  EXPECT_THROW(losses_of_sequences(found, 16, 16), std::invalid_argument);
}

}  // namespace
}  // namespace lethe

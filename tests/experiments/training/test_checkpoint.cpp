// Checkpoints, logs and descriptions of a trained model that were cut, flipped or exchanged.

#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include <nlohmann/json.hpp>
#include <random>

#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/safetensors.hpp"
#include "experiments/training/checkpoint.hpp"
#include "experiments/training/stored_artefact.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

// The message of a call's error, or "no error".
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

lethe::Run short_run() {
  lethe::Run run = tiny_run();
  run.model.layers = 1;
  run.training.total_tokens = 256 * 6;
  run.training.checkpoint_tokens = 256 * 2;  // after 2, 4 and 6 steps
  return run;
}

class Stored : public TinyDatasetTest {
 protected:
  static Tensor weights(const Artefact& artefact) {
    return torch::nn::utils::parameters_to_vector(load_model(artefact)->parameters()).detach();
  }

  // Trains on, and keeps the notices and the steps.
  Artefact go_on() {
    notices.clear(), steps.clear();
    return trained(run, dataset, models, [&](const Progress& progress) {
      if (progress.notice.find("commit") != std::string::npos) return;  // the folder is in no checkout
      if (progress.notice.empty()) steps.push_back(progress.step);
      else notices.push_back(progress.notice);
    });
  }

  static void flip(const fs::path& path, size_t bit) {
    std::string bytes = read_whole(path);
    bytes.at(bit / 8) = static_cast<char>(bytes.at(bit / 8) ^ 1 << bit % 8);
    overwrite(path, bytes);
  }

  lethe::Run run = short_run();
  Artefact artefact = trained(run, dataset, models);
  fs::path checkpoint = artefact.folder / "checkpoint.pt", log = artefact.folder / "log.jsonl",
           done = artefact.folder / "done.json", run_json = artefact.folder / "run.json";
  std::vector<std::string> notices;
  std::vector<int64_t> steps;
};

// The message must name the file and what to do; no flip may give other numbers.
TEST_F(Stored, RefusesACheckpointWithAnyFlippedBit) {
  const std::string whole = read_whole(checkpoint);
  std::mt19937 random(1);
  std::vector<size_t> bits;
  for (size_t bit = 0; bit < 8 * 100; bit += 3) bits.push_back(bit);  // the first line, and some of the second
  for (int i = 0; i < 400; ++i) bits.push_back(random() % (8 * whole.size()));
  for (const size_t bit : bits) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    overwrite(checkpoint, bytes);
    const std::string message = refusal([&] { load_model(artefact); });
    ASSERT_TRUE(message.starts_with(checkpoint.string() + ": expected ")) << "bit " << bit << ": " << message;
    ASSERT_NE(message.find(", found "), std::string::npos) << message;
    ASSERT_TRUE(message.ends_with("; delete it: training goes on from checkpoint.previous.pt")) << message;
    ASSERT_EQ(message.find('\n'), std::string::npos) << message;
  }
  write_whole(checkpoint, whole);
  EXPECT_EQ(refusal([&] { load_model(artefact); }), "no error");
}

TEST_F(Stored, RefusesACheckpointOfAnyOtherLength) {
  const std::string whole = read_whole(checkpoint);
  std::mt19937 random(2);
  std::vector<size_t> lengths{0, 1, 16, 17, 19, 80, 99, 100, 101, whole.size() - 1};
  for (int i = 0; i < 50; ++i) lengths.push_back(random() % whole.size());
  for (const size_t length : lengths) {
    overwrite(checkpoint, whole.substr(0, length));
    ASSERT_NE(refusal([&] { load_model(artefact); }), "no error") << length;
  }
  write_whole(checkpoint, whole + "x");
  EXPECT_NE(refusal([&] { load_model(artefact); }), "no error");
}

TEST_F(Stored, RefusesOtherFormatsOfACheckpointByName) {
  std::string bytes = read_whole(checkpoint);
  bytes.replace(bytes.find(" 2 "), 3, " 1 ");
  write_whole(checkpoint, bytes);
  EXPECT_NE(refusal([&] { load_model(artefact); }).find("expected format 2, found format 1; delete it"),
            std::string::npos);
  bytes.replace(bytes.find(" 1 "), 3, " 3 ");
  write_whole(checkpoint, bytes);
  EXPECT_NE(refusal([&] {
              load_model(artefact);
            }).find("expected format 2 (a newer lethe may have written it: update this one), found format 3"),
            std::string::npos);
  write_whole(checkpoint, std::string_view(bytes).substr(bytes.find("{\"")));  // the rest alone, without a hash
  EXPECT_NE(refusal([&] {
              load_model(artefact);
            }).find("expected a checkpoint of lethe with its SHA-256, found another kind"),
            std::string::npos);
}

// As from an attacker: the hash fits.
TEST_F(Stored, RefusesTensorsOfAnotherModelUnderAValidHash) {
  const Checkpoint whole = read_checkpoint(checkpoint);
  const std::string data(1024, 'x');
  const auto message = [&](const std::string& header) {
    uint64_t length = header.size();
    const std::string_view count(reinterpret_cast<const char*>(&length), sizeof length);
    write_checkpoint(checkpoint, whole.header, std::vector<std::string_view>{count, header, data});
    return refusal([&] { load_model(artefact); });
  };
  const std::string name = "{\"weights.embedding.weight\":{\"dtype\":\"F32\",",
                    start = checkpoint.string() + ": expected ";
  for (const std::string place :
       {"\"shape\":[1099511627776],\"data_offsets\":[0,4398046511104]}}",
        "\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", "\"shape\":[257],\"data_offsets\":[0,1028]}}",
        "\"shape\":[1],\"data_offsets\":[0,1e30]}}", "\"shape\":[1e30],\"data_offsets\":[0,4]}}",
        "\"shape\":[1],\"data_offsets\":[-4,0]}}", "\"shape\":[1],\"data_offsets\":[4]}}",
        "\"shape\":[1],\"data_offsets\":[1023,1027]}}", "\"shape\":[2],\"data_offsets\":[0,4]}}"})
    EXPECT_TRUE(message(name + place).starts_with(start + "safetensors with ")) << place;
  EXPECT_TRUE(message("{}").starts_with(start + "the weights of this model, found none named weights."));
  Safetensors other = {.tensors = {}};
  for (const auto& [key, tensor] : parse_safetensors(whole.tensors, "whole").tensors)
    other.tensors[key] = torch::zeros({1});
  write_checkpoint(checkpoint, whole.header, pieces_of(other).bytes());
  EXPECT_NE(refusal([&] { load_model(artefact); }).find(" of another shape or type"), std::string::npos);
  write_checkpoint(checkpoint, whole.header, std::vector<std::string_view>{whole.tensors});
  EXPECT_EQ(refusal([&] { load_model(artefact); }), "no error");
}

TEST_F(Stored, RefusesTheCheckpointOfAnotherRun) {
  lethe::Run other = run;
  other.training.seed = 1;
  const Artefact theirs = trained(other, dataset, models);
  fs::copy_file(theirs.folder / "checkpoint.pt", checkpoint, fs::copy_options::overwrite_existing);
  const std::string message = refusal([&] { load_model(artefact); });
  EXPECT_NE(message.find("run.json: expected the run of checkpoint.pt (/training/seed: 1), found 0"), std::string::npos)
      << message;
  fs::remove(done);
  EXPECT_NE(refusal([&] { go_on(); }).find("expected a checkpoint of this run, found another run's"),
            std::string::npos);
}

TEST_F(Stored, RefusesAnEditedRunUnderTheOldName) {
  lethe::Run edited = run;
  edited.model.mixer.only<AttentionConfig>().log_pruning_tolerance = -10;
  write_whole(run_json, nlohmann::json(edited).dump());
  const std::string broken = read_artefact(artefact.folder).broken;
  EXPECT_NE(
      broken.find("run.json: expected the run of done.json (/model/mixer/log_pruning_tolerance: null), found -10"),
      std::string::npos)
      << broken;
  EXPECT_NE(refusal([&] { load_model({artefact.folder, edited}); }), "no error");
  edited = run;
  edited.label = "a label is no part of the identity";
  write_whole(run_json, nlohmann::json(edited).dump());
  EXPECT_EQ(read_artefact(artefact.folder).broken, "");
}

TEST_F(Stored, GoesOnFromTheCheckpointBeforeADamagedOne) {
  const Tensor expected = weights(artefact);
  fs::remove(done);  // as where the training was killed
  flip(checkpoint, 5000);
  go_on();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("checkpoint.pt: expected content with SHA-256"), std::string::npos) << notices[0];
  EXPECT_NE(notices[0].find("; training goes on from checkpoint.previous.pt"), std::string::npos) << notices[0];
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 6})) << "an interval, and not the training";
  EXPECT_TRUE(weights(artefact).equal(expected));
  EXPECT_TRUE(fs::exists(artefact.folder / "checkpoint.damaged.pt"));
}

TEST_F(Stored, GoesOnWhereADamagedCheckpointIsDeletedAsAdvised) {
  const Tensor expected = weights(artefact);
  fs::remove(checkpoint);
  EXPECT_FALSE(is_finished(artefact.folder));
  EXPECT_EQ(refusal([&] { load_model(artefact); }),
            checkpoint.string() + ": expected a checkpoint, found none; training goes on from checkpoint.previous.pt");
  go_on();
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 6}));
  EXPECT_TRUE(weights(artefact).equal(expected));
}

TEST_F(Stored, IsRefusedWhereNoCheckpointIsWhole) {
  fs::remove(done);
  flip(checkpoint, 5000);
  flip(previous_checkpoint(checkpoint), 5000);
  const std::string message = refusal([&] { go_on(); });
  EXPECT_NE(message.find("checkpoint.previous.pt: expected content"), std::string::npos) << message;
  EXPECT_NE(message.find("; delete it: training starts anew"), std::string::npos) << message;
  EXPECT_TRUE(fs::exists(checkpoint)) << "nothing is lost";
}

TEST_F(Stored, WritesADamagedEndAnewFromItsCheckpoint) {
  const std::string whole = read_whole(done);
  const auto loss = read_sealed(done).at("validation_loss");
  for (size_t bit : {size_t{100}, 4 * whole.size(), 8 * whole.find("validation_loss") + 160}) {
    flip(done, bit);
    EXPECT_NE(read_artefact(artefact.folder).broken, "") << bit;
    go_on();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_NE(notices[0].find("done.json: expected "), std::string::npos) << notices[0];
    EXPECT_TRUE(steps.empty());
    EXPECT_EQ(read_sealed(done).at("validation_loss"), loss);
  }
}

TEST_F(Stored, WritesADamagedRunOfAFinishedModelAnew) {
  const std::string whole = read_whole(run_json);
  std::string another = whole;
  another.replace(another.find("\"total_tokens\": 1536"), 20, "\"total_tokens\": 1280");
  for (const std::string& bytes : {whole.substr(0, 100), another, std::string()}) {
    overwrite(run_json, bytes);
    EXPECT_TRUE(is_finished(run, dataset, models));
    EXPECT_NE(read_artefact(artefact.folder).broken, "");
    go_on();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_NE(notices[0].find("run.json: expected the run of done.json, found another"), std::string::npos);
    EXPECT_EQ(read_whole(run_json), whole);
  }
  go_on();
  EXPECT_TRUE(notices.empty());
  flip(done, 100);
  EXPECT_FALSE(is_finished(run, dataset, models)) << "it is written anew";
}

TEST_F(Stored, RefusesAFlippedBitInItsLog) {
  const std::string whole = read_whole(log);
  int64_t lines = 0;
  read_log(artefact.folder, [&](const nlohmann::json&) { ++lines; });
  EXPECT_EQ(lines, 6);
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    flip(log, random() % (8 * whole.size()));
    ASSERT_NE(refusal([&] { read_log(artefact.folder, [](const nlohmann::json&) {}); }).find("log.jsonl: expected "),
              std::string::npos);
    overwrite(log, whole);
  }
  fs::remove(done);
  flip(log, 100);
  EXPECT_NE(refusal([&] { go_on(); }).find("log.jsonl: expected "), std::string::npos);
}

TEST_F(Stored, ComparesTheLogOfAnUnfinishedTrainingWithItsCheckpoint) {
  const auto reading = [&] { return refusal([&] { read_log(artefact.folder, [](const nlohmann::json&) {}); }); };
  fs::remove(done);
  const std::string whole = read_whole(log);
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    flip(log, random() % (8 * whole.size()));
    ASSERT_NE(reading().find("log.jsonl: expected "), std::string::npos);
    overwrite(log, whole);
  }
  overwrite(log, whole.substr(0, whole.size() - 1));
  EXPECT_NE(reading().find("those of its checkpoint"), std::string::npos);
  overwrite(log, whole + whole);
  EXPECT_EQ(reading(), "no error") << "a training has gone on";
  fs::rename(checkpoint, checkpoint.string() + ".away");  // between both renames of write_checkpoint
  EXPECT_EQ(reading(), "no error");
  overwrite(log, "{}\n" + whole);
  EXPECT_NE(reading().find("log.jsonl: expected "), std::string::npos);
  fs::remove(previous_checkpoint(checkpoint));
  EXPECT_EQ(reading(), "no error") << "there is nothing to compare with";
  write_whole(checkpoint, "torn");
  EXPECT_NE(reading().find("checkpoint.pt: expected a checkpoint of lethe"), std::string::npos);
}

TEST_F(Stored, IsRefusedWhereARunExceedsTheMemoryOrTheBounds) {
  const auto message = [&](auto change) {
    lethe::Run large = run;
    change(large);
    return refusal([&] { trained(large, dataset, models); });
  };
  const auto expect_words = [](const std::string& found, const char* words) {
    EXPECT_NE(found.find(words), std::string::npos) << found;
  };
  expect_words(message([](lethe::Run& r) { r.model.layers = 1000000000; }),
               "layers: expected 1 … 1000, found 1000000000");
  expect_words(message([](lethe::Run& r) { r.model.layers = 1000, r.model.width = 1 << 14; }), "GiB for ");
  expect_words(message([](lethe::Run& r) { r.training.batch_tokens = r.training.total_tokens = int64_t{1} << 45; }),
               "GiB for ");
  expect_words(message([](lethe::Run& r) { r.training.batch_tokens = int64_t{1} << 62; }),
               "batch_tokens: expected 1 … 2^53");
  expect_words(message([](lethe::Run& r) { r.training.total_tokens = -1; }),
               "total_tokens: expected 1 … 2^53, found -1");
  lethe::Run wide = run;
  wide.model.layers = 1000, wide.model.width = 1 << 14;
  expect_words(refusal([&] { load_model({artefact.folder, wide}); }), "GiB for the model's weights");
}

}  // namespace
}  // namespace lethe

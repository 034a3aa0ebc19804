// Records: they are read back as written, with a certificate, and an invalid record is refused by file, line and column.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "experiments/certificate.hpp"
#include "experiments/claims/record_files.hpp"

namespace lethe {
namespace {

const char* const kHeader =
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,"
    "stddev,samples,commit,machine,artefact";

class Records : public testing::Test {
 protected:
  Records()
      : folder_(std::filesystem::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Records() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(const std::string& text) {
    const auto path = folder_ / "file.csv";
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Record example() {
  return {"paper", "claim", "FoX (Pro)", "lethe", "cpu", "float32", 4, 256, 3,        32,
          64,      7,       "loss",      "nats",  0.1,   1e-300,    5, "c", "theirs", "3f2a"};
}

/// The error of reading a text as records.
template <typename Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

TEST_F(Records, AreReadBackToTheLastBit) {
  Record tricky = example();
  tricky.value = 0.1 + 0.2;
  tricky.stddev = std::nextafter(2.0 / 3, 1);
  tricky.seed = std::numeric_limits<uint64_t>::max();
  write_records(folder_ / "claim", {example(), tricky}, "lethe run");
  const auto read = read_records(folder_ / "claim.csv");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].value, 0.1);
  EXPECT_EQ(read[0].stddev, 1e-300);
  EXPECT_EQ(read[1].value, tricky.value);
  EXPECT_EQ(read[1].stddev, tricky.stddev);
  EXPECT_EQ(read[1].seed, tricky.seed);
  EXPECT_EQ(read[0].variant, "FoX (Pro)");
  EXPECT_EQ(read[0].value_dim, 64);
  EXPECT_EQ(read[0].samples, 5);
  EXPECT_EQ(read[0].commit + " " + read[0].machine + " " + read[0].artefact, "c theirs 3f2a");
}

TEST_F(Records, WithoutAnOriginHaveThatOfTheCertificate) {
  Record measured_here = example();
  measured_here.commit = measured_here.machine = measured_here.artefact = "";
  write_records(folder_ / "claim", {measured_here}, "lethe run");
  const Record read = read_records(folder_ / "claim.csv").front();
  const auto certificate = nlohmann::json::parse(text_of(folder_ / "claim.json"));
  EXPECT_EQ(read.commit, certificate.at("commit"));
  EXPECT_EQ(read.machine, machine_name());
  EXPECT_EQ(read.artefact, "");
}

TEST_F(Records, FromBeforeOriginsAreRead) {
  const std::string header(kHeader);
  const auto path = file(header.substr(0, header.find(",commit")) + "\na,b,c,d,e,f,1,2,3,4,5,6,m,u,0.5,0,1\n");
  EXPECT_EQ(read_records(path).front().value, 0.5);
  EXPECT_EQ(read_records(path).front().commit, "");
}

TEST_F(Records, HaveTheSchemasHeaderAndNoDraftIsLeft) {
  write_records(folder_ / "claim", {example()}, "lethe run");
  const std::string text = text_of(folder_ / "claim.csv");
  EXPECT_EQ(text.substr(0, text.find('\n')), kHeader);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "claim.csv.new"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "claim.json.new"));
}

TEST_F(Records, AreBornWithACertificate) {
  write_records(folder_ / "claim", {example()}, "lethe run ablations", {{"verdict", "refuted"}});
  const auto certificate = nlohmann::json::parse(text_of(folder_ / "claim.json"));
  for (const char* member : {"commit", "dirty", "command_line", "time", "machine", "versions"})
    EXPECT_TRUE(certificate.contains(member)) << member;
  EXPECT_EQ(certificate["command_line"], "lethe run ablations");
  EXPECT_EQ(certificate["verdict"], "refuted");
  EXPECT_EQ(certificate["machine"]["name"], machine_name());
  EXPECT_FALSE(certificate["machine"].contains("gpu"));
}

TEST_F(Records, WithoutTheSealOfTheirCertificateAreRefused) {
  write_records(folder_ / "claim", {example()}, "lethe run");
  EXPECT_EQ(read_certificate(folder_ / "claim").at("command_line"), "lethe run");
  auto unsealed = nlohmann::json::parse(text_of(folder_ / "claim.json"));
  unsealed.erase("sha256");
  unsealed.erase("files");
  std::ofstream(folder_ / "claim.json") << unsealed;
  EXPECT_THROW(read_certificate(folder_ / "claim"), std::invalid_argument);
}

// A program of this name on PATH stands for the driver's.
class GpuCertificate : public Records {
 protected:
  nlohmann::json with_nvidia_smi(const std::string& script) {
    std::ofstream(folder_ / "nvidia-smi") << "#!/bin/sh\n" << script;
    std::filesystem::permissions(folder_ / "nvidia-smi", std::filesystem::perms::owner_all);
    setenv("PATH", folder_.c_str(), 1);
    return gpu_certificate({"NVIDIA H200", "0000:1B:00.0"});
  }
  ~GpuCertificate() override { setenv("PATH", path_.c_str(), 1); }

  const std::string path_ = std::getenv("PATH");
};

TEST_F(GpuCertificate, NamesTheGpuItsDriverAndItsClocks) {
  const auto found = with_nvidia_smi(
      "[ \"$*\" = '--query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader,nounits "
      "--id=0000:1B:00.0' ] && echo '580.65.06, 1755, 1980, 700.00'\n");
  EXPECT_EQ(found, nlohmann::json({{"name", "NVIDIA H200"},
                                   {"driver", "580.65.06"},
                                   {"clock_mhz", 1755},
                                   {"largest_clock_mhz", 1980},
                                   {"power_limit_watts", 700.0}}));
}

TEST_F(GpuCertificate, LeavesNullWhatNvidiaSmiDoesNotReport) {
  const nlohmann::json nothing = {{"name", "NVIDIA H200"},
                                  {"driver", nullptr},
                                  {"clock_mhz", nullptr},
                                  {"largest_clock_mhz", nullptr},
                                  {"power_limit_watts", nullptr}};
  EXPECT_EQ(with_nvidia_smi("exit 9\n"), nothing);
  auto driver_alone = nothing;
  driver_alone["driver"] = "580.65.06";
  EXPECT_EQ(with_nvidia_smi("echo '580.65.06, [N/A], [N/A], [N/A]'\n"), driver_alone);
  std::filesystem::remove(folder_ / "nvidia-smi");
  EXPECT_EQ(gpu_certificate({"NVIDIA H200", "0000:1B:00.0"}), nothing);
}

TEST_F(Records, RefuseATextThatWouldNeedQuoting) {
  Record record = example();
  record.variant = "FoX, Pro";
  EXPECT_THROW(write_records(folder_ / "claim", {record}, "lethe run"), std::invalid_argument);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "claim.csv"));
}

TEST_F(Records, ThatArentNumbersAreRefusedByFileLineAndColumn) {
  const auto path = file(std::string(kHeader) +
                         "\na,b,c,d,e,f,1,2,3,4,5,6,m,u,0.5,0,1,,,\na,b,c,d,e,f,1,2,3,4,5,6,m,u,half,0,1,,,\n");
  const std::string error = error_of([&] { read_records(path); });
  for (const char* part : {"file.csv", "line 3", "value", "half"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST_F(Records, WithoutAColumnAreRefusedByItsName) {
  const auto path = file("experiment,claim\na,b\n");
  EXPECT_NE(error_of([&] { read_records(path); }).find("variant"), std::string::npos);
}

TEST_F(Records, OfThePaperNameTheirSourceAndWhatIsClaimed) {
  const auto path =
      file(std::string(kHeader) +
           ",source,comparability\na,b,c,d,e,f,,16384,,,,0,perplexity,1,6.65,0,1,,,,\"FoX, Table 3\",trend\n");
  const auto numbers = read_paper(path);
  ASSERT_EQ(numbers.size(), 1u);
  EXPECT_EQ(numbers[0].source, "FoX, Table 3");
  EXPECT_EQ(numbers[0].comparability, "trend");
  EXPECT_EQ(numbers[0].record.value, 6.65);
}

TEST_F(Records, OfThePaperWithAnUnknownComparabilityAreRefused) {
  const auto path =
      file(std::string(kHeader) + ",source,comparability\na,b,c,d,e,f,0,1,0,0,0,0,m,1,6.65,0,1,,,,there,roughly\n");
  EXPECT_NE(error_of([&] { read_paper(path); }).find("roughly"), std::string::npos);
}

TEST_F(Records, PointsOfACurveLeaveTheSecondAxisEmpty) {
  write_points(folder_ / "claim.points.csv",
               {{.quantity = "loss_at_position", .variant = "FoX (Pro)", .seed = 1, .x = 256, .value = 1.23456789},
                {.quantity = "attention_weight", .variant = "layer 0 head 1", .x = 3, .y = 2, .value = 0.5}});
  EXPECT_EQ(text_of(folder_ / "claim.points.csv"),
            "quantity,variant,seed,x,y,value\nloss_at_position,FoX (Pro),1,256,,1.23457\nattention_weight,layer 0 head "
            "1,0,3,2,0.5\n");
}

TEST(MachineName, IsALowerCaseNameOfThisMachinesProcessorAndCores) {
  const std::string name = machine_name();
  EXPECT_TRUE(name.ends_with("-cores")) << name;
  EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos) << name;
}

}  // namespace
}  // namespace lethe

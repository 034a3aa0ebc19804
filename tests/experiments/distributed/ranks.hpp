#pragma once
// Several processes of the program rank, without a launcher.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/files.hpp"

namespace lethe {

/// The program beside this one.
inline std::string rank_program() {
  return std::filesystem::canonical("/proc/self/exe").replace_filename("rank").string();
}

/// A port of this machine that is free now.
inline int free_port() {
  const int socket_number = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(socket_number, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(socket_number, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(socket_number);
  return ntohs(address.sin_port);
}

/// The ranks 0 … size − 1 of a task; those that still run are killed with the object.
class Ranks {
 public:
  Ranks(const std::vector<std::string>& arguments, int size, const std::filesystem::path& folder,
        const std::string& device = "")
      : folder_(folder) {
    const std::string port = std::to_string(free_port());
    for (int rank = 0; rank < size; ++rank) {
      std::vector<std::string> variables{"RANK=" + std::to_string(rank),
                                         "LOCAL_RANK=" + std::to_string(rank),
                                         "WORLD_SIZE=" + std::to_string(size),
                                         "MASTER_ADDR=127.0.0.1",
                                         "MASTER_PORT=" + port,
                                         "OMP_NUM_THREADS=1",
                                         "TORCH_CPP_LOG_LEVEL=ERROR"};
      if (!device.empty()) variables.push_back("LETHE_RANK_DEVICE=" + device);
      for (char** variable = environ; *variable; ++variable)
        if (!std::string(*variable).starts_with("OMP_NUM_THREADS=")) variables.emplace_back(*variable);
      children_.push_back(start(arguments, variables, errors_of(rank)));
    }
  }
  ~Ranks() { end_now(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void end_now() {
    for (const pid_t child : children_)
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    children_.clear();
  }

  /// Waits for a rank: its status as waitpid gives it.
  int status(int rank) {
    int status = 0;
    EXPECT_EQ(waitpid(children_.at(static_cast<size_t>(rank)), &status, 0), children_[static_cast<size_t>(rank)]);
    children_[static_cast<size_t>(rank)] = 0;
    return status;
  }

  /// What a rank wrote to standard error.
  std::string errors(int rank) const { return read_whole(errors_of(rank)); }

  /// Expects every rank to end well.
  void expect_success() {
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) EXPECT_EQ(status(rank), 0) << errors(rank);
  }

 private:
  std::filesystem::path errors_of(int rank) const { return folder_ / ("errors" + std::to_string(rank)); }

  static pid_t start(std::vector<std::string> arguments, std::vector<std::string> variables,
                     const std::filesystem::path& errors) {
    arguments.insert(arguments.begin(), rank_program());
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> all;
      for (std::string& text : texts) all.push_back(text.data());
      all.push_back(nullptr);
      return all;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, arguments[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                          pointers(variables).data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }

  std::filesystem::path folder_;
  std::vector<pid_t> children_;
};

}  // namespace lethe

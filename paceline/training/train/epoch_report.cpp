#include "paceline/training/train/epoch_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <vector>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/train/training_run_core.h"

namespace paceline::train {

namespace {

// The name under which a file's best value is kept. It leaves out the folder, which may be moved or
// spelled in another way when the run is resumed.
std::string name_of(const std::string& file) {
  return std::filesystem::path(file).filename().string();
}

}  // namespace

bool BestValues::take(const std::string& file, double value, std::int64_t epoch) {
  const std::string name = name_of(file);
  const std::string& known = paths_.try_emplace(name, file).first->second;
  check(known == file,
        "save_if_best: {} and {} have the same file name, under which the best value is kept: give "
        "them different names",
        known, file);
  const auto found = best_.find(name);
  if (std::isnan(value) || (found != best_.end() && value >= found->second.value)) return false;
  best_[name] = {value, epoch};
  return true;
}

std::int64_t BestValues::last_epoch() const {
  std::int64_t last = 0;
  for (const auto& [file, best] : best_) last = std::max(last, best.epoch);
  return last;
}

optim::Metadata BestValues::state() const {
  optim::Metadata words;
  for (const auto& [file, best] : best_)
    words[file] = optim::to_word(std::vector{best.value, static_cast<double>(best.epoch)});
  return words;
}

void BestValues::set_state(const optim::Metadata& words) {
  best_.clear();
  for (const auto& [file, word] : words) {
    const std::vector<double> numbers = optim::numbers_in(words, file, "the best value");
    check(numbers.size() == 2, "the best value for {}: \"{}\" are not two numbers", file, word);
    best_[file] = {numbers[0], static_cast<std::int64_t>(numbers[1])};
  }
}

bool EpochReport::save_if_best(const std::string& file, double value) const {
  engine(group_).enter(kSaveIfBest);
  group_.broadcast(std::span(&value, 1), 0);  // all ranks decide by the same value
  if (!best_.take(file, value, state.epoch)) return false;
  write_weights_(file);
  return true;
}

EpochReport::EpochReport(ProcessGroup& group, const TrainingState& state, const TestResult& test,
                         BestValues& best,
                         std::function<void(const std::string& file)> write_weights)
    : state(state),
      test(test),
      group_(group),
      best_(best),
      write_weights_(std::move(write_weights)) {}

std::int64_t EpochReport::epochs_since_best() const { return state.epoch - best_.last_epoch(); }

}  // namespace paceline::train

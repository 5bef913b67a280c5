// How long a checkpoint keeps the training waiting, in turns, into the same folder:
//
//   synchronous  the save returns when the disk has it (CheckpointDirectory::save);
//   alone        rank 0 copies the snapshot, and a thread writes the copy (CheckpointWriter::save);
//   together     all ranks copy a share of it (SharedStaging), and the thread writes that.
//
//   checkpoint_bench --directory DIR                                     alone: one rank
//   paceline run --nproc-per-node 2 checkpoint_bench --directory DIR
//
// A save begins when all ranks are there and ends, on each of them, when rank 0 has told how it
// went, as train::Checkpointer does; its time is that of the slowest rank. A background save is
// finished before the next turn. What its thread costs the training beside the copy is shown as its
// CPU time. DIR must be on the disk that checkpoints go to: on tmpfs fsync costs nothing.

#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/checkpoint/checkpoint_writer.h"
#include "paceline/checkpoint/memory_checkpoint.h"
#include "paceline/checkpoint/shared_staging.h"
#include "paceline/collectives/group/init.h"
#include "paceline/core/check.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// A model of `bytes` and its optimizer's state, in tensors of at most 4 MiB.
class Model {
 public:
  explicit Model(std::size_t bytes) : memory_(bytes) {
    constexpr std::size_t kLargest = std::size_t{4} << 20;
    for (std::size_t begin = 0; begin < bytes; begin += kLargest) {
      const std::size_t size = std::min(kLargest, bytes - begin);
      snapshot_.tensors.push_back({fmt::format("model.{}", begin),
                                   Dtype::kFloat32,
                                   {static_cast<std::int64_t>(size / 4)},
                                   std::span(memory_).subspan(begin, size)});
    }
    train();
  }
  // Every element changes, as in a step.
  void train() { std::memset(memory_.data(), ++step_ & 0xff, memory_.size()); }
  const Snapshot& snapshot() const { return snapshot_; }
  // As one of several replicas.
  std::vector<HeldTensor> held() const {
    std::vector<HeldTensor> held;
    for (const NamedTensor& tensor : snapshot_.tensors) held.push_back({tensor});
    return held;
  }

 private:
  std::vector<std::byte> memory_;
  Snapshot snapshot_;
  int step_ = 0;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double cpu_milliseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// One rank of the job that saves.
class Saver {
 public:
  Saver(std::shared_ptr<ProcessGroup> group, const std::string& folder, std::size_t bytes)
      : group_(std::move(group)), model_(bytes), staging_(group_) {
    if (group_->rank() != 0) return;
    directory_.emplace(folder, CheckpointDirectoryOptions{.keep = 2});
    writer_.emplace(*directory_);
    memory_.emplace(fmt::format("/dev/shm/checkpoint_bench.{}", getpid()));
  }
  ~Saver() {
    if (memory_) std::filesystem::remove(memory_->path());
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  double synchronous() {
    return time_save([&] {
      if (directory_) directory_->save(++step_, model_.snapshot());
    });
  }
  double alone() {
    return time_save([&] {
      if (writer_) writer_->save(++step_, model_.snapshot());
    });
  }
  double together() {
    return time_save([&] {
      if (writer_) writer_->take_turn(++step_);
      const auto held = model_.held();
      check(staging_.stage(held), "the ranks share no memory");
      if (writer_) writer_->save_in_place(step_, {.tensors = staging_.staged(held)});
    });
  }
  double into_memory() {
    return time_save([&] {
      if (memory_) memory_->save(++step_, 0, model_.snapshot());
    });
  }

  // What a background save has cost when it is on the disk, on rank 0.
  struct Whole {
    double milliseconds = 0;
    double cpu = 0;  // of other threads
  };
  Whole finish() {
    if (writer_) {
      if (const auto error = writer_->finish()) throw *error;
    }
    return {milliseconds_since(begin_), cpu_of_others() - cpu_before_};
  }

 private:
  static double cpu_of_others() {
    return cpu_milliseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_milliseconds(CLOCK_THREAD_CPUTIME_ID);
  }
  // Milliseconds on the slowest rank.
  double time_save(const std::function<void()>& save) {
    group_->barrier();  // no rank has slept when its step ends
    model_.train();
    group_->barrier();
    cpu_before_ = cpu_of_others();
    begin_ = Clock::now();
    save();
    std::int32_t is_written = 1;
    group_->broadcast(std::span(&is_written, 1), 0);
    double took = milliseconds_since(begin_);
    group_->all_reduce(std::span(&took, 1), ReduceOp::kMax);
    return took;
  }

  const std::shared_ptr<ProcessGroup> group_;
  Model model_;
  SharedStaging staging_;
  std::optional<CheckpointDirectory> directory_;  // rank 0's, as what follows
  std::optional<CheckpointWriter> writer_;
  std::optional<MemoryCheckpoint> memory_;
  std::int64_t step_ = 0;
  Clock::time_point begin_;
  double cpu_before_ = 0;
};

void compare(const std::shared_ptr<ProcessGroup>& group, const std::string& folder,
             std::size_t bytes, int rounds) {
  Saver saver(group, folder, bytes);
  const bool has_others = group->world_size() > 1;
  std::vector<double> synchronous, alone, alone_share, together, together_share, whole, cpu, memory;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const double first = saver.synchronous();
    const double second = saver.alone();
    Saver::Whole background = saver.finish();
    const double third = has_others ? saver.together() : second;
    if (has_others) background = saver.finish();
    const double kept = saver.into_memory();
    if (round < 0) continue;
    synchronous.push_back(first);
    alone.push_back(second);
    alone_share.push_back(100 * second / first);
    together.push_back(third);
    together_share.push_back(100 * third / first);
    whole.push_back(background.milliseconds);
    cpu.push_back(background.cpu);
    memory.push_back(kept);
  }
  if (group->rank() != 0) return;
  fmt::print("| {} | {} | {} | {} |", bytes >> 20, with_spread(synchronous), with_spread(alone),
             with_spread(alone_share));
  if (has_others) fmt::print(" {} | {} |", with_spread(together), with_spread(together_share));
  fmt::print(" {} | {} | {} |\n", with_spread(whole), with_spread(cpu), with_spread(memory));
  std::fflush(stdout);
}

void run(const std::string& folder, const std::vector<std::size_t>& sizes, int rounds) {
  const auto group = init_process_group();
  if (group->rank() == 0) {
    const bool has_others = group->world_size() > 1;
    fmt::print(
        "| MiB | synchronous save, ms | alone returns, ms | share, % |{} on the disk, ms | CPU "
        "of the background, ms | into memory, ms |\n|---|---|---|---|{}---|---|---|\n",
        has_others ? " together returns, ms | share, % |" : "", has_others ? "---|---|" : "");
  }
  for (const std::size_t size : sizes) {
    compare(group, folder, size << 20, rounds);
    if (group->rank() == 0) std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  CLI::App app("How long a checkpoint keeps the training waiting.");
  std::string folder;
  std::vector<std::size_t> sizes = {1, 8, 64, 256};
  int rounds = 15;
  app.add_option("--directory", folder, "where checkpoints are written; removed afterwards")
      ->required();
  app.add_option("--mib", sizes, "bytes of model and optimizer, in MiB");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const std::string own = fmt::format("{}/checkpoint_bench.{}", folder, getpid());
  try {
    paceline::benchmarks::run(own, sizes, rounds);
  } catch (const std::exception& error) {
    std::filesystem::remove_all(own);
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}

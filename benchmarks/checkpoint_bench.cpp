// How long a checkpoint keeps the training waiting: a save that returns when the disk has it
// (CheckpointDirectory::save) against one that goes on in the background (CheckpointWriter::save),
// in turns, into the same folder.
//
//   checkpoint_bench --directory DIR
//
// The background save is finished before the next turn. What its thread costs the training beside
// the copy is shown as its CPU time. DIR must be on the disk that checkpoints go to: on tmpfs fsync
// costs nothing.

#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/checkpoint/checkpoint_writer.h"
#include "paceline/checkpoint/memory_checkpoint.h"
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

 private:
  std::vector<std::byte> memory_;
  Snapshot snapshot_;
  int step_ = 0;
};

template <class Body>
double milliseconds_of(Body body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double cpu_milliseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void compare(const std::string& folder, std::size_t bytes, int rounds) {
  Model model(bytes);
  CheckpointDirectory directory(folder, {.keep = 2});
  CheckpointWriter writer(directory);
  std::vector<double> synchronous;
  std::vector<double> stall;
  std::vector<double> whole;
  std::vector<double> cpu;
  std::vector<double> share;
  std::vector<double> memory;
  MemoryCheckpoint in_memory(fmt::format("/dev/shm/checkpoint_bench.{}", getpid()));
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    model.train();
    const double first = milliseconds_of([&] { directory.save(2 * round + 2, model.snapshot()); });
    model.train();
    const double all_before = cpu_milliseconds(CLOCK_PROCESS_CPUTIME_ID);
    const double own_before = cpu_milliseconds(CLOCK_THREAD_CPUTIME_ID);
    double second = 0;
    const double until_on_disk = milliseconds_of([&] {
      second = milliseconds_of([&] { writer.save(2 * round + 3, model.snapshot()); });
      const auto error = writer.finish();
      if (error) throw *error;
    });
    const double all = cpu_milliseconds(CLOCK_PROCESS_CPUTIME_ID) - all_before;
    const double own = cpu_milliseconds(CLOCK_THREAD_CPUTIME_ID) - own_before;
    const double kept = milliseconds_of([&] { in_memory.save(round + 1, 0, model.snapshot()); });
    if (round < 0) continue;
    synchronous.push_back(first);
    stall.push_back(second);
    whole.push_back(until_on_disk);
    cpu.push_back(all - own);
    share.push_back(100 * second / first);
    memory.push_back(kept);
  }
  std::filesystem::remove(in_memory.path());
  fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", bytes >> 20, with_spread(synchronous),
             with_spread(stall), with_spread(share), with_spread(whole), with_spread(cpu),
             with_spread(memory));
  std::fflush(stdout);
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
  fmt::print(
      "| MiB | synchronous save, ms | background save returns, ms | share, % | on the disk, ms | "
      "CPU of the background, ms | into memory, ms |\n|---|---|---|---|---|---|---|\n");
  try {
    for (const std::size_t size : sizes) {
      paceline::benchmarks::compare(own, size << 20, rounds);
      std::filesystem::remove_all(own);
    }
  } catch (const std::exception& error) {
    std::filesystem::remove_all(own);
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}

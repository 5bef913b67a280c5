// The cost of a checkpoint of divided state. The variants take turns, in the same folder:
//
//   plain        each rank writes its part with write() and syncs: the speed of the disk;
//   synchronous  CheckpointTeam::save(), until the checkpoint is on the disk;
//   stall        the same, until save() returns: the time for which the training is held up;
//   load         each rank reads a part; there is one part more than there are ranks.
//
//   checkpoint_bench --directory DIR                                     one rank
//   paceline run --nproc-per-node 2 checkpoint_bench --directory DIR
//
// A time is that of the slowest rank, from a moment at which all ranks are ready. A second table
// shows how rank 0 spends the time of a save. Between the turns older checkpoints are removed, and
// dirty pages are written (sync). DIR must be on the disk that will hold the checkpoints: on tmpfs
// fsync costs nothing. A load right after a save reads from the kernel's cache.
//
// --only save keeps the last checkpoint, and --only load reads it with any number of ranks; they
// print one number for each round (checkpoint_beside_python.py).

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/files/checkpoint/checkpoint_team.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// One of several parts of a model and its optimizer's state: some rows of each tensor of 1024 x
// 1024 floats.
class Part {
 public:
  Part(std::int64_t bytes, int number, int num_parts) {
    const std::int64_t begin = kRows * number / num_parts, end = kRows * (number + 1) / num_parts;
    const std::int64_t part_bytes = (end - begin) * kRowBytes;
    const std::int64_t num_tensors = bytes / (kRows * kRowBytes);
    memory_.resize(static_cast<std::size_t>(num_tensors * part_bytes));
    for (std::int64_t tensor = 0; tensor < num_tensors; ++tensor) {
      boxes_.push_back({{fmt::format("model.{:05}", tensor),
                         Dtype::kFloat32,
                         {kRows, kColumns},
                         {{begin, 0}, {end - begin, kColumns}}},
                        {memory_.data() + tensor * part_bytes, {kColumns, 1}}});
    }
  }
  // Changes every element, as a step does.
  void train() { std::memset(memory_.data(), ++step_ & 0xff, memory_.size()); }
  const std::vector<HeldMemory>& held() const { return boxes_; }
  std::span<const std::byte> bytes() const { return memory_; }
  std::vector<WantedBox> wanted() const {
    std::vector<WantedBox> wanted;
    for (const HeldMemory& one : boxes_)
      wanted.push_back({one.held.name, one.held.box, one.place.data});
    return wanted;
  }

 private:
  static constexpr std::int64_t kRows = 1024, kColumns = 1024, kRowBytes = kColumns * 4;

  std::vector<std::byte> memory_;
  std::vector<HeldMemory> boxes_;
  int step_ = 0;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// How a rank spends the time of a save, in milliseconds.
struct Parts {
  double copy = 0;   // until save() returns
  double write = 0;  // writing the boxes
  double sync = 0;   // syncing the boxes
  double names = 0;  // manifest and folders
  double rest = 0;   // checksums, and messages between the ranks
};

// The machine's file system; it also measures the time that its calls take.
class TimedFiles final : public FileSystem {
 public:
  Parts take() { return std::exchange(parts_, {}); }

  int open(const std::string& path, int flags, mode_t mode) override {
    const int fd = timed(parts_.names, [&] { return real().open(path, flags, mode); });
    if (path.find("/boxes-") != std::string::npos) boxes_ = fd;
    return fd;
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return real().read_at(fd, position, bytes);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return timed(fd == boxes_ ? parts_.write : parts_.names,
                 [&] { return real().write(fd, bytes); });
  }
  int fsync(int fd) override {
    return timed(fd == boxes_ ? parts_.sync : parts_.names, [&] { return real().fsync(fd); });
  }
  int close(int fd) override {
    if (fd == boxes_) boxes_ = -1;
    return timed(parts_.names, [&] { return real().close(fd); });
  }
  int mkdir(const std::string& path, mode_t mode) override {
    return timed(parts_.names, [&] { return real().mkdir(path, mode); });
  }
  int rename(const std::string& from, const std::string& to) override {
    return timed(parts_.names, [&] { return real().rename(from, to); });
  }
  int exchange(const std::string& a, const std::string& b) override {
    return timed(parts_.names, [&] { return real().exchange(a, b); });
  }
  int unlink(const std::string& path) override { return real().unlink(path); }
  int rmdir(const std::string& path) override { return real().rmdir(path); }

 private:
  template <class Call>
  static std::invoke_result_t<Call> timed(double& sum, const Call& call) {
    const auto begin = Clock::now();
    const auto result = call();
    sum += milliseconds_since(begin);
    return result;
  }

  Parts parts_;
  int boxes_ = -1;
};

class Saver {
 public:
  Saver(std::shared_ptr<ProcessGroup> group, const std::string& folder, std::int64_t bytes)
      : group_(std::move(group)),
        folder_(folder),
        part_(bytes, group_->rank(), group_->world_size()),
        other_part_(bytes, group_->rank(), group_->world_size() + 1),
        team_(group_, folder, {.keep = 1000}, files_) {}

  double plain() {
    const std::string path = fmt::format("{}/plain.{}", folder_, group_->rank());
    const double took = time([&] {
      const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
      if (!file || !write_whole_at(file.get(), 0, part_.bytes()) || ::fsync(file.get()) != 0)
        throw system_error(path);
    });
    std::filesystem::remove(path);
    return took;
  }
  struct Saved {
    double whole = 0;
    double stall = 0;
    Parts parts;  // this rank's
  };
  // Saves a checkpoint. Measures the time until it is on the disk, and until the training may
  // continue.
  Saved save() {
    Saved saved;
    files_.take();
    saved.whole = time([&] {
      const auto begin = Clock::now();
      team_.save(++step_, part_.held(), {});
      saved.stall = milliseconds_since(begin);
      if (const auto error = team_.finish()) throw *error;
      const double whole = milliseconds_since(begin);
      Parts& parts = saved.parts = files_.take();
      parts.copy = saved.stall;
      parts.rest = whole - parts.copy - parts.write - parts.sync - parts.names;
    });
    saved.stall = all_reduce_value(*group_, saved.stall, ReduceOp::kMax);
    return saved;
  }
  // Loads a part of the newest checkpoint. For these loads the state has one part more than there
  // are ranks.
  double load_other() { return load(other_part_); }
  // Loads the rank's part of the newest checkpoint.
  double load_own() { return load(part_); }
  void remove() {
    group_->barrier();
    if (group_->rank() == 0) {
      std::filesystem::remove_all(fmt::format("{}/step-{:08}", folder_, step_));
      ::sync();
    }
    group_->barrier();
  }

 private:
  double load(const Part& part) {
    const CheckpointDirectory directory(folder_, {.read_only = true});
    const std::int64_t step = directory.list().back();
    return time([&] { team_.read(directory.read_manifest(step), part.wanted()); });
  }
  // The time of `action` on the slowest rank, in milliseconds.
  double time(const std::function<void()>& action) {
    part_.train();
    group_->barrier();
    const auto begin = Clock::now();
    action();
    return all_reduce_value(*group_, milliseconds_since(begin), ReduceOp::kMax);
  }

  const std::shared_ptr<ProcessGroup> group_;
  const std::string folder_;
  Part part_;
  Part other_part_;
  TimedFiles files_;
  CheckpointTeam team_;
  std::int64_t step_ = 0;
};

std::string row_of(std::int64_t mib, const std::vector<std::vector<double>>& columns) {
  std::string row = fmt::format("| {} |", mib);
  for (const auto& column : columns) row += fmt::format(" {} |", with_spread(column));
  return row + "\n";
}

// Returns a row of each table.
std::pair<std::string, std::string> compare(const std::shared_ptr<ProcessGroup>& group,
                                            const std::string& folder, std::int64_t mib,
                                            int rounds) {
  Saver saver(group, folder, mib << 20);
  std::vector<std::vector<double>> totals(6), parts(5);
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const double plain = saver.plain();
    saver.remove();
    const Saver::Saved saved = saver.save();
    const double load = saver.load_other();
    saver.remove();
    if (round < 0) continue;
    const auto add = [](std::vector<std::vector<double>>& to, std::initializer_list<double> row) {
      for (std::size_t i = 0; i < row.size(); ++i) to[i].push_back(row.begin()[i]);
    };
    add(totals, {plain, saved.whole, plain / saved.whole, saved.stall,
                 100 * saved.stall / saved.whole, load});
    const Parts& of = saved.parts;
    add(parts, {of.copy, of.write, of.sync, of.names, of.rest});
  }
  return {row_of(mib, totals), row_of(mib, parts)};
}

void compare_all(const std::shared_ptr<ProcessGroup>& group, const std::string& folder,
                 const std::vector<std::int64_t>& sizes, int rounds) {
  std::string totals, parts;
  for (const std::int64_t size : sizes) {
    const auto [of_totals, of_parts] = compare(group, folder, size, rounds);
    totals += of_totals;
    parts += of_parts;
    group->barrier();
    if (group->rank() == 0) std::filesystem::remove_all(folder);
    group->barrier();
  }
  if (group->rank() != 0) return;
  fmt::print(
      "| MiB | plain write, ms | save, ms | of the plain write's speed | stall, ms | of the save, "
      "% | load, ms |\n|---|---|---|---|---|---|---|\n{}\n"
      "| MiB | copy, ms | write(), ms | sync, ms | manifest and folders, ms | sums and agreement, "
      "ms |\n|---|---|---|---|---|---|\n{}",
      totals, parts);
}

// Prints the milliseconds of each round.
void repeat(const std::shared_ptr<ProcessGroup>& group, const std::string& folder, std::int64_t mib,
            int rounds, bool saves) {
  Saver saver(group, folder, mib << 20);
  for (int round = -1; round < rounds; ++round) {
    if (saves && round >= 0) saver.remove();
    const double took = saves ? saver.save().whole : saver.load_own();
    if (round >= 0 && group->rank() == 0) fmt::print("{}\n", took);
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  CLI::App app("What a checkpoint costs.");
  std::string folder, only;
  std::vector<std::int64_t> sizes = {8, 64, 256, 1024};
  int rounds = 15;
  app.add_option("--directory", folder, "where checkpoints are written; removed afterwards")
      ->required();
  app.add_option("--mib", sizes, "bytes of model and optimizer, in MiB");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--only", only, "of the first size, and what was saved stays")
      ->check(CLI::IsMember({"save", "load"}));
  CLI11_PARSE(app, argc, argv);
  const std::string own = folder + "/checkpoint_bench";
  try {
    const auto group = paceline::init_process_group();
    if (only.empty()) {
      paceline::benchmarks::compare_all(group, own, sizes, rounds);
    } else {
      paceline::benchmarks::repeat(group, own, sizes.at(0), rounds, only == "save");
    }
  } catch (const std::exception& error) {
    std::filesystem::remove_all(own);
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}

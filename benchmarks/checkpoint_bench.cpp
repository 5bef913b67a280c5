// What a checkpoint of divided state costs, in turns, into the same folder:
//
//   plain        each rank writes its part with write() and syncs: what the disk can do;
//   synchronous  CheckpointTeam::save(), until the checkpoint is on the disk;
//   stall        the same, until save() returns: how long the training is held up;
//   load         each rank reads a part, of a division into one part more than there are ranks.
//
//   checkpoint_bench --directory DIR                                     one rank
//   paceline run --nproc-per-node 2 checkpoint_bench --directory DIR
//
// A time is that of the slowest rank, from a moment when all are there. Older checkpoints are
// removed between the turns, and what they left is written (sync). DIR must be on the disk that
// checkpoints go to: on tmpfs fsync costs nothing. A load right after a save reads from the
// kernel's cache.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/checkpoint/checkpoint_team.h"
#include "paceline/checkpoint/memory_checkpoint.h"
#include "paceline/checkpoint/plain_file.h"
#include "paceline/collectives/group/init.h"
#include "paceline/core/check.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// Of a model and its optimizer's state, in tensors of 4 MiB: the runs of elements that one of so
// many parts has.
class Part {
 public:
  Part(std::int64_t bytes, int number, int num_parts) {
    const std::int64_t all = bytes / 4;
    const std::int64_t begin = all * number / num_parts, end = all * (number + 1) / num_parts;
    memory_.resize(static_cast<std::size_t>(end - begin) * 4);
    for (std::int64_t tensor = 0; tensor * kElements < all; ++tensor) {
      const std::int64_t from = std::max(begin, tensor * kElements);
      const std::int64_t to = std::min({end, (tensor + 1) * kElements, all});
      if (from >= to) continue;
      const Box box{{from - tensor * kElements}, {to - from}};
      const std::vector<std::int64_t> shape = {std::min(kElements, all - tensor * kElements)};
      boxes_.push_back({{fmt::format("model.{:05}", tensor), Dtype::kFloat32, shape, box},
                        {memory_.data() + (from - begin) * 4, {1}}});
    }
  }
  // Every element changes, as in a step.
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
  static constexpr std::int64_t kElements = std::int64_t{1} << 20;

  std::vector<std::byte> memory_;
  std::vector<HeldMemory> boxes_;
  int step_ = 0;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class Saver {
 public:
  Saver(std::shared_ptr<ProcessGroup> group, const std::string& folder, std::int64_t bytes)
      : group_(std::move(group)),
        folder_(folder),
        part_(bytes, group_->rank(), group_->world_size()),
        other_part_(bytes, group_->rank(), group_->world_size() + 1),
        team_(group_, folder, {.keep = 1000}) {}

  double plain() {
    const std::string path = fmt::format("{}/plain.{}", folder_, group_->rank());
    const double took = time([&] {
      PlainFileWriter file(FileSystem::real(), path, part_.bytes().size());
      file.write(part_.bytes());
      file.finish();
    });
    std::filesystem::remove(path);
    return took;
  }
  struct Saved {
    double whole = 0;
    double stall = 0;
  };
  // Until it is on the disk, and until the training may go on.
  Saved save() {
    Saved saved;
    saved.whole = time([&] {
      const auto begin = Clock::now();
      team_.save(++step_, part_.held(), {});
      saved.stall = milliseconds_since(begin);
      if (const auto error = team_.finish()) throw *error;
    });
    saved.stall = all_reduce_value(*group_, saved.stall, ReduceOp::kMax);
    return saved;
  }
  double load() {
    const CheckpointDirectory directory(folder_, {.read_only = true});
    return time([&] { team_.read(directory.read_manifest(step_), other_part_.wanted()); });
  }
  void remove() {
    group_->barrier();
    if (group_->rank() == 0) {
      std::filesystem::remove_all(fmt::format("{}/step-{:08}", folder_, step_));
      ::sync();
    }
    group_->barrier();
  }

 private:
  // Milliseconds on the slowest rank.
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
  CheckpointTeam team_;
  std::int64_t step_ = 0;
};

void compare(const std::shared_ptr<ProcessGroup>& group, const std::string& folder,
             std::int64_t mib, int rounds) {
  Saver saver(group, folder, mib << 20);
  std::vector<double> plain, whole, of_plain, stall, stall_share, load;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const double alone = saver.plain();
    saver.remove();
    const Saver::Saved saved = saver.save();
    const double read = saver.load();
    saver.remove();
    if (round < 0) continue;
    plain.push_back(alone);
    whole.push_back(saved.whole);
    of_plain.push_back(alone / saved.whole);
    stall.push_back(saved.stall);
    stall_share.push_back(100 * saved.stall / saved.whole);
    load.push_back(read);
  }
  if (group->rank() != 0) return;
  fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", mib, with_spread(plain), with_spread(whole),
             with_spread(of_plain), with_spread(stall), with_spread(stall_share),
             with_spread(load));
  std::fflush(stdout);
}

void run(const std::string& folder, const std::vector<std::int64_t>& sizes, int rounds) {
  const auto group = init_process_group();
  if (group->rank() == 0) {
    fmt::print(
        "| MiB | plain write, ms | save, ms | of the plain write's speed | stall, ms | of the "
        "save, "
        "% | load, ms |\n|---|---|---|---|---|---|---|\n");
  }
  for (const std::int64_t size : sizes) {
    compare(group, folder, size, rounds);
    group->barrier();
    if (group->rank() == 0) std::filesystem::remove_all(folder);
    group->barrier();
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  CLI::App app("What a checkpoint costs.");
  std::string folder;
  std::vector<std::int64_t> sizes = {8, 64, 256, 1024};
  int rounds = 15;
  app.add_option("--directory", folder, "where checkpoints are written; removed afterwards")
      ->required();
  app.add_option("--mib", sizes, "bytes of model and optimizer, in MiB");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const std::string own = folder + "/checkpoint_bench";
  try {
    paceline::benchmarks::run(own, sizes, rounds);
  } catch (const std::exception& error) {
    std::filesystem::remove_all(own);
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}

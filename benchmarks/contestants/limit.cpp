// The limit: handwritten collectives of float32 between two ranks, which do only what is physically
// necessary if both ranks map both ranks' buffers. Each rank signals when it has arrived and when
// it is done.
//
//   all_reduce      a rank reads its half of both buffers and writes the sum to both. Up to 1 KB
//                   in one step: a rank leaves a copy where the other rank finds it, and adds the
//                   other rank's copy to its own.
//   reduce_scatter  a rank adds its block of both inputs into its output
//   all_gather      a rank copies both inputs into its output, or its own input into both outputs
//   broadcast       the other rank copies the root's buffer, or each rank copies a half
//   all_to_all      a rank copies its block of both inputs into its output
//
// Each operation can be done in several ways, some with stores that bypass the caches, which are
// faster for large buffers. The first calls of an operation and size try the ways in turn, and
// later calls use the fastest one, so the result is the limit of this machine. There are no other
// types, no comparison of the ranks' calls, no deadline and no errors: the time that a library
// needs beyond this limit is the library's overhead.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rendezvous/rendezvous.h"

#include "apps/bench/contestant/contestant.h"
#include "benchmarks/contestants/limit_kernels.h"

namespace paceline::bench {
namespace {

// Up to this size one step was faster than two in measurements.
constexpr std::size_t kSmallBytes = 1 << 10;
// Each rank's part of the shared file: flags and small copies, then its buffers, an input and an
// output.
constexpr std::size_t kHeadBytes = 64 << 10;
constexpr std::size_t kBufferBytes = std::size_t(1) << 30;
constexpr std::size_t kNumBuffers = 2;
constexpr std::size_t kPartBytes = kHeadBytes + kNumBuffers * kBufferBytes;
constexpr std::size_t kLine = 16;  // elements

struct Way {
  bool streams = false;
  // all_gather: a rank writes to both outputs. broadcast: both ranks write one half each.
  bool shares = false;
};
constexpr std::array<Way, 4> kWays = {{{false, false}, {true, false}, {false, true}, {true, true}}};

struct Head {
  alignas(128) std::atomic<std::uint32_t> steps;
  std::uint32_t way;                              // rank 0 sets it together with its step
  alignas(128) std::byte copies[2][kSmallBytes];  // used in turn
};
static_assert(sizeof(Head) <= kHeadBytes);

// Finds the fastest way for one operation and size.
class Trial {
 public:
  Trial(std::uint32_t num_ways, std::size_t bytes)
      : num_ways_(num_ways), times_(bytes < kLargeBytes ? 8 : 3) {
    least_.fill(1e30);
  }

  bool is_over() const { return calls_ == times_ * num_ways_; }
  std::uint32_t way() const { return is_over() ? best_ : calls_ % num_ways_; }
  // Records a call that used way(). Requires: !is_over().
  void note(double seconds) {
    double& least = least_[way()];
    least = std::min(least, seconds);
    ++calls_;
    best_ =
        static_cast<std::uint32_t>(std::min_element(least_.begin(), least_.end()) - least_.begin());
  }

 private:
  // Above this size a turn has few calls.
  static constexpr std::size_t kLargeBytes = 12 << 20;
  // Calls of each way. The first one finds cold pages and caches.
  const std::uint32_t num_ways_, times_;
  std::uint32_t calls_ = 0, best_ = 0;
  std::array<double, kWays.size()> least_;
};

// How many of kWays this call can use; the last ways share work.
std::uint32_t ways_of(const Collective& call) {
  const bool can_stream = limit::kCanStream && call.count % (2 * kLine) == 0;
  if (!can_stream) return 1;
  return call.op == Op::kAllGather || call.op == Op::kBroadcast ? 4 : 2;
}

class Limit : public Contestant {
 public:
  explicit Limit(const WorkerPlace& place) : rank_(place.rank), world_size_(place.world_size) {
    if (world_size_ == 2) map_parts();
  }
  ~Limit() override {
    if (memory_ != nullptr) munmap(memory_, 2 * kPartBytes);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  std::string version() const override { return "shared memory by hand"; }

  std::string lacks(Op op, Dtype dtype, Placement placement) const override {
    const bool is_known = op == Op::kAllReduce || op == Op::kReduceScatter ||
                          op == Op::kAllGather || op == Op::kBroadcast || op == Op::kAllToAll;
    if (!is_known) return fmt::format("has no {}", name_of(Operation(op)));
    const bool can =
        dtype == Dtype::kFloat32 && placement == usual_placement(op) && world_size_ == 2;
    return can ? "" : "is for float32 and 2 ranks only, in the usual form";
  }

  // Both ranks ask for buffers in the same order, so a buffer has the same place in both parts.
  Memory allocate(MemoryKind, std::size_t bytes) override {
    const auto free = std::find(is_used_.begin(), is_used_.end(), false);
    check(free != is_used_.end() && bytes <= kBufferBytes, "limit: {} bytes are too many", bytes);
    *free = true;
    const auto number = static_cast<std::size_t>(free - is_used_.begin());
    std::byte* const data = part(rank_) + kHeadBytes + number * kBufferBytes;
    return {data, std::shared_ptr<void>(data, [this, number](void* buffer) {
              madvise(buffer, kBufferBytes, MADV_REMOVE);
              is_used_[number] = false;
            })};
  }

  void run(const Collective& call) override {
    const std::size_t bytes = call.count * sizeof(float);
    if (call.op == Op::kAllReduce && bytes <= kSmallBytes) {
      exchange(call.output, bytes);
      return;
    }
    Trial& trial = trials_.try_emplace({call.op, call.count}, ways_of(call), bytes).first->second;
    const bool tries = rank_ == 0 && !trial.is_over();
    if (rank_ == 0) head(0).way = trial.way();
    step();
    const auto begin = tries ? Clock::now() : Clock::time_point();
    work(call, kWays[head(0).way]);
    step();
    if (tries) trial.note(std::chrono::duration<double>(Clock::now() - begin).count());
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Rank 0 makes the file; only this user can open the kernel's path to its descriptor.
  void map_parts() {
    const Rendezvous met = rendezvous();
    int fd = -1;
    if (rank_ == 0) {
      fd = memfd_create("paceline-limit", MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, 2 * kPartBytes) != 0) throw system_error("shared memory");
      met.store->set("limit/memory", fmt::format("/proc/{}/fd/{}", getpid(), fd));
    } else {
      fd = open(met.store->get("limit/memory").c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) throw system_error("opening rank 0's memory");
      met.store->set("limit/opened", "");
    }
    const Fd file(fd);
    void* memory =
        mmap(nullptr, 2 * kPartBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) throw system_error("mapping shared memory");
    memory_ = static_cast<std::byte*>(memory);
    if (rank_ == 0) met.store->wait({"limit/opened"});
  }

  std::byte* part(int rank) const { return memory_ + static_cast<std::size_t>(rank) * kPartBytes; }
  Head& head(int rank) const { return *reinterpret_cast<Head*>(part(rank)); }
  // The corresponding place in the other rank's part.
  template <class Byte>
  Byte* others(Byte* own) const {
    const auto distance = static_cast<std::ptrdiff_t>(kPartBytes);
    return own + (rank_ == 0 ? distance : -distance);
  }

  void step() {
    ++steps_;
    head(rank_).steps.store(steps_, std::memory_order_release);
    const auto& others_steps = head(1 - rank_).steps;
    while (static_cast<std::int32_t>(others_steps.load(std::memory_order_acquire) - steps_) < 0)
      spin_pause();
  }

  void exchange(std::byte* own, std::size_t bytes) {
    const std::size_t turn = steps_ % 2;
    std::memcpy(head(rank_).copies[turn], own, bytes);
    step();
    kernels_.add_to(reinterpret_cast<float*>(own),
                    reinterpret_cast<const float*>(head(1 - rank_).copies[turn]),
                    bytes / sizeof(float));
  }

  void work(const Collective& call, Way way) const {
    const auto* const input = reinterpret_cast<const float*>(call.input);
    const auto* const others_input =
        call.input == nullptr ? nullptr : reinterpret_cast<const float*>(others(call.input));
    auto* const output = reinterpret_cast<float*>(call.output);
    auto* const others_output = reinterpret_cast<float*>(others(call.output));
    const std::size_t count = call.count;
    const std::size_t mine = static_cast<std::size_t>(rank_) * count;
    const std::size_t theirs = static_cast<std::size_t>(1 - rank_) * count;
    switch (call.op) {
      case Op::kAllReduce:
        for_half(count, [&](std::size_t begin, std::size_t length) {
          (way.streams ? limit::stream_add_for_both : kernels_.add_for_both)(
              output + begin, others_output + begin, length);
        });
        return;
      case Op::kReduceScatter:
        (way.streams ? limit::stream_add_into : kernels_.add_into)(output, input + mine,
                                                                   others_input + mine, count);
        return;
      case Op::kAllGather:
        if (way.shares) {
          copy_to_both(output + mine, others_output + mine, input, count, way.streams);
        } else {
          copy(output + mine, input, count, way.streams);
          copy(output + theirs, others_input, count, way.streams);
        }
        return;
      case Op::kAllToAll:
        copy(output + mine, input + mine, count, way.streams);
        copy(output + theirs, others_input + mine, count, way.streams);
        return;
      default:
        broadcast(output, others_output, count, way);
    }
  }

  // Rank 0 is the root.
  void broadcast(float* own, float* others, std::size_t count, Way way) const {
    if (!way.shares) {
      if (rank_ != 0) copy(own, others, count, way.streams);
      return;
    }
    for_half(count, [&](std::size_t begin, std::size_t length) {
      rank_ == 0 ? copy(others + begin, own + begin, length, way.streams)
                 : copy(own + begin, others + begin, length, way.streams);
    });
  }

  // Calls `body` for this rank's half, in whole cache lines.
  template <class Body>
  void for_half(std::size_t count, Body body) const {
    const std::size_t half = count / 2 / kLine * kLine;
    rank_ == 0 ? body(0, half) : body(half, count - half);
  }

  static void copy(float* to, const float* from, std::size_t count, bool streams) {
    if (streams) {
      limit::stream_copy(to, from, count);
    } else {
      std::memcpy(to, from, count * sizeof(float));
    }
  }
  static void copy_to_both(float* a, float* b, const float* from, std::size_t count, bool streams) {
    if (streams) {
      limit::stream_copy_to_both(a, b, from, count);
    } else {
      std::memcpy(a, from, count * sizeof(float));
      std::memcpy(b, from, count * sizeof(float));
    }
  }

  const int rank_, world_size_;
  const limit::Kernels kernels_ = limit::choose_kernels();
  std::byte* memory_ = nullptr;
  std::uint32_t steps_ = 0;
  std::array<bool, kNumBuffers> is_used_ = {};
  std::map<std::pair<Op, std::size_t>, Trial> trials_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Limit>(place);
  });
}

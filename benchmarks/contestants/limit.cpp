// The limit: an all-reduce of float32 between two ranks by hand, doing only what physics demands
// when both ranks map both buffers. A rank reads its half of its own buffer and of the other's, and
// writes the sum to both; each says when it has come and when it is done. Small buffers take one
// step: a rank leaves a copy where the other finds it, and adds the other's to its own. No types,
// no checks of what the other rank means, no deadline, no error: what a library adds to this is its
// price.

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/bench/worker.h"
#include "paceline/core/check.h"
#include "paceline/core/fd.h"
#include "paceline/core/futex.h"
#include "paceline/rendezvous/rendezvous.h"

namespace paceline::bench {
namespace {

// Up to here one step was faster than two when it was measured.
constexpr std::size_t kSmallBytes = 1 << 10;
// Each rank's part of the shared file: a page of flags and small copies, then its buffer.
constexpr std::size_t kHeadBytes = 64 << 10;
constexpr std::size_t kPartBytes = kHeadBytes + (std::size_t(1) << 30);

struct Head {
  alignas(128) std::atomic<std::uint32_t> steps;
  alignas(128) std::byte copies[2][kSmallBytes];  // used in turn
};
static_assert(sizeof(Head) <= kHeadBytes);

// The loops, compiled once per instruction set.
struct Kernels {
  void (*add_to)(float* sum, const float* x, std::size_t count);
  void (*add_for_both)(float* a, float* b, std::size_t count);
};

[[gnu::always_inline]] inline void add_to_here(float* __restrict sum, const float* __restrict x,
                                               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += x[i];
}

[[gnu::always_inline]] inline void add_for_both_here(float* __restrict a, float* __restrict b,
                                                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

void add_to(float* sum, const float* x, std::size_t count) { add_to_here(sum, x, count); }
void add_for_both(float* a, float* b, std::size_t count) { add_for_both_here(a, b, count); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] void add_to_avx2(float* sum, const float* x, std::size_t count) {
  add_to_here(sum, x, count);
}
[[gnu::target("avx2")]] void add_for_both_avx2(float* a, float* b, std::size_t count) {
  add_for_both_here(a, b, count);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] void add_to_avx512(float* sum, const float* x,
                                                                      std::size_t count) {
  add_to_here(sum, x, count);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] void add_for_both_avx512(float* a, float* b,
                                                                            std::size_t count) {
  add_for_both_here(a, b, count);
}
#endif

Kernels choose_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {add_to_avx512, add_for_both_avx512};
  if (__builtin_cpu_supports("avx2")) return {add_to_avx2, add_for_both_avx2};
#endif
  return {add_to, add_for_both};
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
    const bool can = op == Op::kAllReduce && dtype == Dtype::kFloat32 &&
                     placement == Placement::kInPlace && world_size_ == 2;
    return can ? "" : "is written for all_reduce of float32 in place between 2 ranks only";
  }

  Memory allocate(MemoryKind, std::size_t bytes) override {
    // Pages of an earlier, larger buffer go back.
    madvise(buffer(rank_), kPartBytes - kHeadBytes, MADV_REMOVE);
    check(bytes <= kPartBytes - kHeadBytes, "limit: {} bytes are too many", bytes);
    return {buffer(rank_), nullptr};
  }

  void run(const Collective& call) override {
    const std::size_t bytes = call.count * sizeof(float);
    bytes <= kSmallBytes ? exchange(call.output, bytes) : reduce_halves(call.count);
  }

 private:
  // Rank 0 makes the file; the kernel's path to its descriptor is good for this user alone.
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

  Head& head(int rank) const { return *reinterpret_cast<Head*>(memory_ + rank * kPartBytes); }
  std::byte* buffer(int rank) const { return memory_ + rank * kPartBytes + kHeadBytes; }

  void step() {
    ++steps_;
    head(rank_).steps.store(steps_, std::memory_order_release);
    const auto& others = head(1 - rank_).steps;
    while (static_cast<std::int32_t>(others.load(std::memory_order_acquire) - steps_) < 0)
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

  void reduce_halves(std::size_t count) {
    step();
    const std::size_t half = count / 2 / 16 * 16;  // whole cache lines
    const std::size_t begin = rank_ == 0 ? 0 : half;
    kernels_.add_for_both(reinterpret_cast<float*>(buffer(0)) + begin,
                          reinterpret_cast<float*>(buffer(1)) + begin,
                          rank_ == 0 ? half : count - half);
    step();
  }

  const int rank_, world_size_;
  const Kernels kernels_ = choose_kernels();
  std::byte* memory_ = nullptr;
  std::uint32_t steps_ = 0;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Limit>(place);
  });
}

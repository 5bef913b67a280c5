#include "paceline/engine/telemetry/step_gauge.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/telemetry/record_file.h"

namespace paceline {

namespace {

constexpr std::array<char, 8> kMagic = {'P', 'L', 'S', 'T', 'E', 'P', 'S', '1'};
constexpr double kNanoseconds = 1e9;
constexpr ssize_t kShortest = 64;  // bytes of a gauge without last_ended_ns, which is also read

std::uint64_t load(const std::uint64_t& word) {
  std::uint64_t value = 0;
  __atomic_load(&word, &value, __ATOMIC_RELAXED);
  return value;
}

void add(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(load(word) + value, std::memory_order_relaxed);
}

// Nanoseconds on CLOCK_MONOTONIC, the clock of std::chrono::steady_clock.
std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

double seconds_of(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanoseconds;
}

std::optional<double> moment_of(std::uint64_t nanoseconds) {
  return nanoseconds > 0 ? std::optional(seconds_of(nanoseconds)) : std::nullopt;
}

std::uint64_t nanoseconds(double seconds) {
  return seconds > 0 ? static_cast<std::uint64_t>(seconds * kNanoseconds) : 0;
}

}  // namespace

struct StepGauge::Page {
  std::array<char, 8> magic;
  std::uint64_t pid, steps, samples, step_ns, communication_ns;
  std::uint64_t begun_after;  // 1 + the steps before the first counted step; 0: unknown
  std::uint64_t first_began_ns, last_ended_ns;  // 0: unknown
};

std::string step_gauge_name(int rank) { return fmt::format("rank-{:03}.steps", rank); }

std::optional<StepReading> read_step_gauge(const std::string& path) {
  const Fd file = open_to_read(path);
  std::array<std::uint64_t, 9> words{};
  const auto into = std::as_writable_bytes(std::span(words));
  if (!file || read_whole_at(file.get(), 0, into) < kShortest) return {};
  if (std::memcmp(words.data(), kMagic.data(), kMagic.size()) != 0) return {};
  return StepReading{static_cast<int>(words[1]),
                     words[2],
                     words[3],
                     seconds_of(words[4]),
                     seconds_of(words[5]),
                     words[6] > 0 ? std::optional(words[6] - 1) : std::nullopt,
                     moment_of(words[7]),
                     moment_of(words[8])};
}

StepGauge::StepGauge() noexcept {
  static_assert(sizeof(Page) == 72);
  const auto folder = record_folder("PACELINE_FLIGHT_DIR");
  if (!folder) return;
  path_ = fmt::format("{}/{}", *folder, step_gauge_name(rank_of_process()));
  page_ = map_gauge<Page>(path_);
  if (page_ == nullptr) return;
  const auto pid = static_cast<std::uint64_t>(getpid());
  if (page_->magic == kMagic && page_->pid == pid) return;
  *page_ = {};
  page_->pid = pid;
  std::atomic_thread_fence(std::memory_order_release);
  page_->magic = kMagic;
}

StepGauge::~StepGauge() {
  if (page_ == nullptr) return;
  munmap(page_, sizeof(Page));
  remove_record(path_);
}

void StepGauge::begin_at(std::int64_t steps) noexcept {
  if (page_ == nullptr || steps < 0 || load(page_->begun_after) != 0) return;
  add(page_->begun_after, static_cast<std::uint64_t>(steps) + 1);
}

void StepGauge::step(std::int64_t samples, double seconds, double communication_seconds) noexcept {
  if (page_ == nullptr) return;
  add(page_->samples, samples > 0 ? static_cast<std::uint64_t>(samples) : 0);
  add(page_->step_ns, nanoseconds(seconds));
  add(page_->communication_ns, nanoseconds(communication_seconds));
  const std::uint64_t now = now_ns(), took = nanoseconds(seconds);
  if (load(page_->first_began_ns) == 0) add(page_->first_began_ns, now > took ? now - took : now);
  std::atomic_ref(page_->last_ended_ns).store(now, std::memory_order_relaxed);
  add(page_->steps, 1);
}

}  // namespace paceline

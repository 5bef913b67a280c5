#include "paceline/engine/telemetry/call_gauge.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/timing.h"
#include "paceline/engine/telemetry/call_gauge_file.h"
#include "paceline/engine/telemetry/record_file.h"

namespace paceline {
namespace {

using Word = std::atomic_ref<std::uint64_t>;

void add_one(std::uint64_t& word) { Word(word).fetch_add(1, std::memory_order_relaxed); }

// Whether another live process writes this file.
bool is_taken(const calls::Header& header) {
  if (header.magic != calls::kMagic || header.pid == getpid()) return false;
  const auto sight = look_at_process(header);
  return sight.process == FlightProcess::kRunning || sight.process == FlightProcess::kStopped;
}

calls::Method& method_of(CallCounter counter) {
  return *static_cast<calls::Method*>(counter.method);
}

void write_open(calls::Open& to, const OpenCall& from) {
  to = {};
  to.begun = from.begun;
  to.number = from.number;
  to.caller = from.caller;
  to.state = static_cast<std::uint64_t>(from.state);
  put_text(to.worker, from.worker);
  put_text(to.other, from.other);
  put_text(to.method, from.method);
}

}  // namespace

std::uint64_t worker_hash(std::string_view incarnation) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : incarnation) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::shared_ptr<CallGauge> CallGauge::of_process(std::string_view worker) {
  static std::mutex mutex;  // guards owner and gauge
  static const OwnerProcess* owner = nullptr;
  static std::weak_ptr<CallGauge>* gauge = nullptr;  // never destroyed: workers may end at exit
  const auto folder = record_folder("PACELINE_FLIGHT_DIR");
  if (!folder) return nullptr;
  const std::lock_guard lock(mutex);
  if (owner == nullptr) {
    owner = new OwnerProcess;
    gauge = new std::weak_ptr<CallGauge>;
  }
  if (!owner->is_this()) return nullptr;
  if (auto there = gauge->lock()) return there;
  const int rank = rank_of_process();
  auto made = std::make_shared<CallGauge>(fmt::format("{}/{}", *folder, call_gauge_name(rank)),
                                          rank, worker);
  if (!made->is_open()) return nullptr;
  *gauge = made;
  return made;
}

CallGauge::CallGauge(const std::string& path, int rank, std::string_view worker) : path_(path) {
  auto* const file = map_gauge<calls::File>(path);
  if (file == nullptr) return;
  if (is_taken(file->header)) {
    munmap(file, sizeof(calls::File));
    return;
  }
  file->header.magic = {};
  std::atomic_thread_fence(std::memory_order_release);
  std::memset(static_cast<void*>(file), 0, sizeof(calls::File));
  auto& header = file->header;
  header.rank = rank;
  name_this_process(header);
  put_text(header.worker, worker);
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = calls::kMagic;
  file_ = file;
}

CallGauge::~CallGauge() {
  if (file_ == nullptr) return;
  munmap(file_, sizeof(calls::File));
  remove_record(path_);
}

CallCounter CallGauge::counter(CallSide side, std::uint64_t number,
                               std::string_view name) noexcept {
  auto& methods = file_->methods[static_cast<std::size_t>(side)];
  for (std::size_t i = 0; i < methods.size(); ++i) {
    calls::Method& method = methods[(number + i) % methods.size()];
    std::uint64_t there = Word(method.number).load(std::memory_order_relaxed);
    if (there == number) return {&method};
    if (there != 0) continue;
    if (!Word(method.number).compare_exchange_strong(there, number, std::memory_order_relaxed)) {
      if (there == number) return {&method};
      continue;
    }
    put_text(method.name, name);
    return {&method};
  }
  return {};
}

void CallGauge::begin(CallCounter counter) noexcept {
  if (counter.method != nullptr) add_one(method_of(counter).begun);
}

void CallGauge::start(CallCounter counter) noexcept {
  if (counter.method != nullptr) add_one(method_of(counter).started);
}

void CallGauge::end(CallCounter counter, std::uint64_t ns, bool failed) noexcept {
  if (counter.method == nullptr) return;
  calls::Method& method = method_of(counter);
  add_one(method.ended[calls::bucket_of(ns)]);
  if (failed) add_one(method.failed);
}

void CallGauge::publish(std::string_view worker, std::span<const OpenCall> callers,
                        std::span<const OpenCall> callees, std::uint64_t references,
                        std::uint64_t objects) {
  const std::lock_guard lock(mutex_);
  auto shown = std::find_if(shown_.begin(), shown_.end(),
                            [&](const Shown& one) { return one.worker == worker; });
  if (shown == shown_.end()) shown = shown_.insert(shown_.end(), {.worker = std::string(worker)});
  const bool had_none = shown->open[0].empty() && shown->open[1].empty();
  shown->open[0].assign(callers.begin(), callers.end());
  shown->open[1].assign(callees.begin(), callees.end());
  shown->references = references;
  shown->objects = objects;
  if (!had_none || !callers.empty() || !callees.empty()) {
    write_table(CallSide::kCaller);
    write_table(CallSide::kCallee);
  }
  std::uint64_t all_references = 0, all_objects = 0;
  for (const Shown& one : shown_) {
    all_references += one.references;
    all_objects += one.objects;
  }
  auto& header = file_->header;
  Word(header.references).store(all_references, std::memory_order_relaxed);
  Word(header.objects).store(all_objects, std::memory_order_relaxed);
  Word(header.looked).store(record_time(), std::memory_order_relaxed);
}

// Requires: the mutex is held.
void CallGauge::write_table(CallSide side) {
  const auto index = static_cast<std::size_t>(side);
  std::vector<const OpenCall*> open;
  for (const Shown& one : shown_) {
    for (const OpenCall& call : one.open[index]) open.push_back(&call);
  }
  std::sort(open.begin(), open.end(),
            [](const OpenCall* a, const OpenCall* b) { return a->begun < b->begun; });
  if (open.size() > calls::kNumOpen) open.resize(calls::kNumOpen);
  static_assert(CallGauge::kMaxOpen == calls::kNumOpen);
  calls::Table& table = file_->tables[index];
  const Word stamp(table.stamp);
  stamp.store(table.stamp + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  table.count = open.size();
  for (std::size_t i = 0; i < open.size(); ++i) write_open(table.open[i], *open[i]);
  stamp.store(table.stamp + 1, std::memory_order_release);
}

}  // namespace paceline

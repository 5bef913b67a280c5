#include "tests/harness/simulated_cuda/streams.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tests/harness/random_seed.h"

namespace paceline::simulated {

namespace {

struct {
  std::atomic<std::uint64_t> synchronisations{0}, kernels{0}, events{0}, waits{0};
} counted;
std::array<std::atomic<std::uint64_t>, kMaxDevices> touches{};

std::atomic<double> delayed_share{Delays().share};
std::atomic<std::int64_t> longest_delay{Delays().most.count()};

struct Streams {
  std::mutex mutex;
  std::map<std::pair<int, std::int64_t>, Stream*> all;
};
Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

}  // namespace

int num_devices() {
  static const int count = [] {
    const char* const text = std::getenv("PACELINE_SIMULATED_CUDA_DEVICES");
    const int wanted = text == nullptr ? 4 : std::atoi(text);
    return wanted < 0 ? 0 : wanted > kMaxDevices ? kMaxDevices : wanted;
  }();
  return count;
}

void set_delays(const Delays& delays) {
  delayed_share = delays.share;
  longest_delay = delays.most.count();
}

Stream& Stream::of(int device, std::int64_t id) {
  auto& [mutex, all] = streams();
  const std::lock_guard lock(mutex);
  Stream*& stream = all[{device, id}];
  if (stream == nullptr) stream = new Stream(device, id);
  return *stream;
}

void Stream::for_each(int device, const std::function<void(Stream&)>& visit) {
  std::vector<Stream*> found;
  {
    auto& [mutex, all] = streams();
    const std::lock_guard lock(mutex);
    for (const auto& [key, stream] : all) {
      if (key.first == device) found.push_back(stream);
    }
  }
  for (Stream* stream : found) visit(*stream);
}

Stream::Stream(int device, std::int64_t id) : device_(device), id_(id) {
  std::thread([this] { carry_out_tasks(); }).detach();
}

void Stream::push(std::function<void()> task, bool may_be_late) {
  count_touch(device_);
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(task), may_be_late});
    ++num_pushed_;
  }
  changed_.notify_all();
}

void Stream::carry_out_tasks() {
  std::mt19937 random(harness::random_seed() + 1009 * static_cast<unsigned>(device_) +
                      static_cast<unsigned>(id_));
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (task.may_be_late) be_late(random);
    task.body();
    task.body = nullptr;  // before the task counts as done, because it may own memory
    {
      const std::lock_guard lock(mutex_);
      ++num_done_;
    }
    changed_.notify_all();
  }
}

void Stream::set_delays(const Delays& delays) {
  const std::lock_guard lock(mutex_);
  delays_ = delays;
}

void Stream::be_late(std::mt19937& random) {
  double share = delayed_share;
  std::int64_t most = longest_delay;
  {
    const std::lock_guard lock(mutex_);
    if (delays_) {
      share = delays_->share;
      most = delays_->most.count();
    }
  }
  const bool is_late = std::uniform_real_distribution<double>(0, 1)(random) < share;
  if (!is_late || most <= 0) return;
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(0, most)(random)));
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = num_pushed_;
  changed_.wait(lock, [&] { return num_done_ >= last; });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return num_done_ == num_pushed_;
}

void Event::record(Stream& stream) {
  ++counted.events;
  const auto promise = std::make_shared<std::promise<void>>();
  reached_ = promise->get_future().share();
  stream.push_mark([promise] { promise->set_value(); });
}

void Event::block(Stream& stream) const {
  ++counted.waits;
  if (reached_.valid()) stream.push_mark([reached = reached_] { reached.wait(); });
}

bool Event::is_reached() const {
  return !reached_.valid() ||
         reached_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void Event::synchronize() const {
  count_synchronisation();
  if (reached_.valid()) reached_.wait();
}

Counts counts() {
  return {counted.synchronisations, counted.kernels, counted.events, counted.waits};
}

void reset_counts() {
  counted.synchronisations = 0;
  counted.kernels = 0;
  counted.events = 0;
  counted.waits = 0;
}

std::uint64_t num_touches(int device) { return touches.at(static_cast<std::size_t>(device)); }
void count_synchronisation() { ++counted.synchronisations; }
void count_kernel() { ++counted.kernels; }
void count_touch(int device) { ++touches.at(static_cast<std::size_t>(device)); }

}  // namespace paceline::simulated

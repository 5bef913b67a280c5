#include "paceline/engine/rpc/pool.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline::rpc {
namespace {

constexpr std::uint64_t kWakeId = 0, kTimerId = 1;  // ids of the pool's own descriptors
// The interval of a waiting thread's checks while the queue has tasks, or had tasks recently.
constexpr std::chrono::microseconds kCheckInterval(50);
constexpr int kMaxQuietLooks = 10;
// A thread that stays with a source is checked less and less often while its tasks are short: the
// interval doubles after each kLooksBeforeDoubling checks, up to kRareLook.
constexpr int kLooksBeforeDoubling = 32;
constexpr std::chrono::microseconds kRareLook(3200);
constexpr std::chrono::milliseconds kStuckForLong(50);
// kBacklog: a queue of at least this many tasks is a backlog. kInRow: after this many consecutive
// events of one source, a thread stays with that source. kShort: a task that ran longer sends its
// reply immediately, because batching would gain nothing.
constexpr std::size_t kBacklog = 8;
constexpr std::size_t kMaxReceived = 1024;
constexpr int kInRow = 8;
constexpr std::chrono::microseconds kShort(20), kLatest(50);
constexpr std::chrono::nanoseconds kHousekeeping = std::chrono::milliseconds(100);

thread_local Pool* current_pool = nullptr;  // the pool that this thread belongs to
thread_local bool is_in_ready = false, is_in_task = false, is_active = false;
thread_local std::uint64_t turns_seen = 0;
thread_local std::chrono::steady_clock::time_point task_began;
thread_local std::vector<std::shared_ptr<Pool::Task>>* received =
    nullptr;  // tasks queued in ready()
thread_local const pid_t kOwnNumber = ::gettid();

class FunctionTask final : public Pool::Task {
 public:
  explicit FunctionTask(std::function<void()> body) : body_(std::move(body)) {}
  void run() override { body_(); }

 private:
  std::function<void()> body_;
};

void watch(int epoll, int descriptor, std::uint64_t id) {
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = id}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw system_error("waiting for a worker's tasks");
  }
}

// Waits for one event; without a limit, forever.
int wait_for_one(int epoll, epoll_event& event, std::optional<std::chrono::microseconds> limit) {
  if (!limit) return ::epoll_wait(epoll, &event, 1, -1);
  const timespec time{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(*limit).count()};
  const int count = ::epoll_pwait2(epoll, &event, 1, &time, nullptr);
  if (count >= 0 || errno != ENOSYS) return count;  // Linux 5.11 introduced epoll_pwait2()
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(*limit);
  return ::epoll_wait(epoll, &event, 1, static_cast<int>(rounded.count()));
}

}  // namespace

Pool::Pool(int num_threads, int max_threads, std::function<void()> housekeeping)
    : max_threads_(std::max(max_threads, 2)),
      housekeeping_(std::move(housekeeping)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      last_id_(kTimerId),
      usual_running_(std::clamp(num_threads, 1, max_threads_ - 1)),
      max_running_(1) {
  if (!epoll_ || !wake_ || !timer_)
    throw system_error("making a descriptor for the threads of a worker");
  watch(epoll_.get(), wake_.get(), kWakeId);
  watch(epoll_.get(), timer_.get(), kTimerId);
  itimerspec period{};
  period.it_interval.tv_nsec = period.it_value.tv_nsec = kHousekeeping.count();
  ::timerfd_settime(timer_.get(), 0, &period, nullptr);
}

Pool::~Pool() = default;

void Pool::start() {
  const std::lock_guard lock(mutex_);
  start_thread_locked();
}

bool Pool::is_own_thread() const { return current_pool == this; }

void Pool::start_thread_locked() {
  threads_.push_back(start_thread("paceline-rpc", [self = shared_from_this()] { self->serve(); }));
}

// Wakes or starts a thread to wait for sockets in place of this thread. Returns false if the
// pool already has its maximum number of threads.
bool Pool::bring_another_locked() {
  if (num_resting_ > 0) {
    --num_resting_;
    ++num_called_;
    rest_ends_.notify_one();
    return true;
  }
  if (static_cast<int>(threads_.size()) >= max_threads_) return false;
  start_thread_locked();
  return true;
}

void Pool::add(const std::shared_ptr<Source>& source, std::uint32_t events) {
  {
    const std::lock_guard lock(mutex_);
    source->id_ = ++last_id_;
    source->is_closed_there_ = false;
    sources_.emplace(source->id_, source);
  }
  epoll_event event{.events = events | EPOLLRDHUP | EPOLLET, .data = {.u64 = source->id_}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source->descriptor(), &event) == 0) return;
  const int error = errno;
  const std::lock_guard lock(mutex_);
  sources_.erase(source->id_);
  throw system_error("waiting for a worker's connection", error);
}

void Pool::change(const Source& source, std::uint32_t events) {
  epoll_event event{.events = events | EPOLLRDHUP | EPOLLET, .data = {.u64 = source.id_}};
  // The call fails only for a source that was removed meanwhile.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, source.descriptor(), &event);
}

void Pool::remove(const Source& source) {
  std::shared_ptr<Source> last;  // destroyed after the lock is released
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.descriptor(), nullptr);
  const std::lock_guard lock(mutex_);
  const auto found = sources_.find(source.id_);
  if (found == sources_.end()) return;
  last = std::move(found->second);
  sources_.erase(found);
}

void Pool::run(std::function<void()> task) { run(std::make_shared<FunctionTask>(std::move(task))); }

void Pool::run(std::shared_ptr<Task> task) {
  if (is_in_ready && current_pool == this) {
    received->push_back(std::move(task));
    if (received->size() == kMaxReceived) add_received();
    return;
  }
  bool needs_another = false;
  {
    const std::lock_guard lock(mutex_);
    if (stops_) return;
    if (tasks_.empty()) moved_at_ = std::chrono::steady_clock::now();
    tasks_.push_back(std::move(task));
    needs_another = num_waiting_ > 0;
  }
  if (needs_another) ring(wake_.get());
}

// Queues the tasks that ready() received. This thread will run the first one; if there are more,
// another thread is woken for them.
void Pool::add_received() {
  if (received->empty()) return;
  bool needs_another = false;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) moved_at_ = std::chrono::steady_clock::now();
    if (!stops_) std::move(received->begin(), received->end(), std::back_inserter(tasks_));
    needs_another = tasks_.size() > 1 && num_looking_ == 0;
  }
  received->clear();
  if (needs_another) ring(wake_.get());
}

void Pool::run_next(std::shared_ptr<Task> task) {
  if (!is_in_task || current_pool != this) return run(std::move(task));
  const std::lock_guard lock(mutex_);
  if (stops_) return;
  if (tasks_.empty()) moved_at_ = std::chrono::steady_clock::now();
  tasks_.push_back(std::move(task));
}

Pool::Blocked::Blocked() : pool_(is_in_task ? current_pool : nullptr) {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  pool_->end_running_locked();
  pool_->set_active_locked(false);
  if (!pool_->tasks_.empty()) ring(pool_->wake_.get());
}
Pool::Blocked::~Blocked() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  pool_->begin_running_locked();
  pool_->set_active_locked(true);
}

void Pool::set_active_locked(bool active) {
  if (std::exchange(is_active, active) != active) num_active_ += active ? 1 : -1;
}

void Pool::send_soon(const std::shared_ptr<Sender>& sender) {
  bool needs_another = false;
  {
    const std::lock_guard lock(mutex_);
    if (stops_ || sender->is_due_) return;
    add_due_locked(sender);
    needs_another = num_looking_ == 0;
  }
  if (needs_another) ring(wake_.get());
}

bool Pool::send_with_others(const std::shared_ptr<Sender>& sender) {
  if (!is_in_task || current_pool != this) return false;
  if (std::chrono::steady_clock::now() - task_began > kShort) return false;
  const std::lock_guard lock(mutex_);
  if (tasks_.size() < kBacklog) return false;
  if (!sender->is_due_) add_due_locked(sender);
  return true;
}

void Pool::add_due_locked(const std::shared_ptr<Sender>& sender) {
  sender->is_due_ = true;
  if (due_.empty()) due_since_ = std::chrono::steady_clock::now();
  due_.push_back(sender);
}

Pool::Senders Pool::take_due_locked(bool even_if_recent) {
  if (due_.empty()) return {};
  if (!even_if_recent && std::chrono::steady_clock::now() - due_since_ < kLatest) return {};
  for (const auto& sender : due_) sender->is_due_ = false;
  return std::exchange(due_, {});
}

void Pool::send_all(const Senders& senders) {
  for (const auto& sender : senders) sender->send();
}

void Pool::serve() {
  std::vector<std::shared_ptr<Task>> own_received;
  received = &own_received;
  current_pool = this;
  while (!stops_) {
    if (run_tasks()) continue;
    const Event event = wait_for_event();
    if (stops_) break;
    if (event.kind == Event::Kind::kTime) {
      std::uint64_t ticks = 0;
      read_record(timer_.get(), ticks);
      if (!keeps_house_.exchange(true)) {
        housekeeping_();
        keeps_house_ = false;
      }
      continue;
    }
    if (event.source == 0) continue;
    std::shared_ptr<Source> source;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sources_.find(event.source);
      if (found != sources_.end()) source = found->second;
    }
    if (!source) continue;
    if (event.kind == Event::Kind::kTakenOver) {
      source->watch_input(true);
      go_on(*source);
      continue;
    }
    if (event.is_end) source->is_closed_there_ = true;
    attend(source);
    if (source->lets_stay() && may_stay(source)) stay_with(source);
  }
  ring(wake_.get());  // so that the next thread ends as well
  const std::lock_guard lock(mutex_);
  ended_.push_back(std::this_thread::get_id());
  thread_ended_.notify_all();
}

void Pool::attend(const std::shared_ptr<Source>& source) {
  // If another thread is in ready(), it handles this event as well.
  if (source->num_events_.fetch_add(1) == 0) go_on(*source);
}

// Calls ready() until all counted events are handled. Requires: this thread has raised num_events_
// from 0, or has taken over the source.
void Pool::go_on(Source& source) {
  int seen = 0;
  is_in_ready = true;
  do {
    seen = source.num_events_.load();
    source.ready();
  } while (source.num_events_.fetch_sub(seen) != seen);
  is_in_ready = false;
  add_received();
}

bool Pool::may_stay(const std::shared_ptr<Source>& source) {
  run_tasks();
  const std::lock_guard lock(mutex_);
  num_in_row_ = last_source_ == source->id_ ? num_in_row_ + 1 : 0;
  last_source_ = source->id_;
  if (num_in_row_ < kInRow || stayed_with_ || !tasks_.empty() || stops_) return false;
  if (num_waiting_ == 0 && !bring_another_locked())
    return false;  // no thread would wait for the other sources
  stayed_with_ = source;
  look_at_stay_ = kCheckInterval;
  num_looks_at_stay_ = 0;
  set_active_locked(false);
  return true;
}

void Pool::stay_with(const std::shared_ptr<Source>& source) {
  using Stay = Source::Stay;
  bool is_taken_over = false;
  if (source->num_events_.fetch_add(1) == 0) {
    source->watch_input(false);
    bool stays = true;
    while (stays && !stops_) {
      source->stay_ = Stay::kReads;
      is_in_ready = true;
      stays = source->wait_until_ready();
      is_in_ready = false;
      source->stay_ = Stay::kRuns;
      add_received();
      run_tasks();
      auto expected = Stay::kRuns;
      is_taken_over = !source->stay_.compare_exchange_strong(expected, Stay::kReads);
      if (is_taken_over) break;
      const std::lock_guard lock(mutex_);
      stays = stays && tasks_.empty();  // if the limit holds up tasks, go back to the queue
    }
    if (!is_taken_over) {
      source->stay_ = Stay::kNone;
      source->watch_input(true);
      go_on(*source);  // for events that arrived meanwhile
    }
  }
  if (is_taken_over) return;
  const std::lock_guard lock(mutex_);
  stayed_with_.reset();
  num_in_row_ = 0;
}

// Takes the source from a thread that stays with it, if that thread has been running the same task
// since the last check. This thread must then call go_on().
bool Pool::take_over_locked() {
  if (!stayed_with_) return false;
  if (std::exchange(turns_at_look_, num_turns_) != num_turns_) {
    if (++num_looks_at_stay_ % kLooksBeforeDoubling == 0) {
      look_at_stay_ = std::min(look_at_stay_ * 2, kRareLook);
    }
    return false;
  }
  auto expected = Source::Stay::kRuns;
  if (!stayed_with_->stay_.compare_exchange_strong(expected, Source::Stay::kNone)) return false;
  mark_sleeping_locked();
  num_in_row_ = 0;
  return true;
}

std::shared_ptr<Pool::Task> Pool::next_task_locked(Senders& due) {
  if (tasks_.empty() || stops_) return {};
  if (!may_run_locked()) return {};
  // This is the last thread that could wait for sockets, so it must find another one.
  if (num_waiting_ == 0 && !bring_another_locked()) return {};
  auto task = std::move(tasks_.front());
  tasks_.pop_front();
  ++num_taken_;
  ++num_turns_;
  begin_running_locked();
  if (tasks_.empty() && static_cast<int>(runners_.size()) <= usual_running_) max_running_ = 1;
  due = take_due_locked(tasks_.size() < kBacklog);
  return task;
}

// Runs as many tasks as this thread may; returns false if it ran none.
bool Pool::run_tasks() {
  bool has_run = false;
  Senders due;
  std::unique_lock lock(mutex_);
  while (auto task = next_task_locked(due)) {
    lock.unlock();
    send_all(due);
    is_in_task = true;
    task_began = std::chrono::steady_clock::now();
    task->run();
    task.reset();
    is_in_task = false;
    has_run = true;
    lock.lock();
    end_running_locked();
  }
  return has_run;
}

void Pool::rest(std::unique_lock<std::mutex>& lock) {
  ++num_resting_;
  rest_ends_.wait(lock, [&] { return stops_ || num_called_ > 0; });
  if (num_called_ > 0) --num_called_;
}

Pool::Event Pool::wait_for_event() {
  std::optional<std::chrono::microseconds> look;  // when to check the queue without an event
  bool follows = false;
  Senders due;
  {
    std::unique_lock lock(mutex_);
    set_active_locked(false);
    if (num_waiting_ >= (num_active_ > 0 ? 1 : 2)) rest(lock);
    due = take_due_locked(false);
    const bool is_quiet = tasks_.empty() && due_.empty() && due.empty();
    num_quiet_looks_ = is_quiet ? num_quiet_looks_ + 1 : 0;
    if (num_looking_ == 0 && num_quiet_looks_ < kMaxQuietLooks) {
      look = kCheckInterval;
    } else if (num_looking_ == 0 && stayed_with_ && num_looking_rarely_ == 0) {
      look = look_at_stay_;
    }
    ++num_waiting_;
    if (look) (look == kCheckInterval ? num_looking_ : num_looking_rarely_) += 1;
    follows = num_active_ > 0 && std::exchange(turns_seen, num_turns_) != num_turns_;
    raise_limit_if_stuck_locked();
  }
  send_all(due);
  epoll_event event{};
  int count = 0;
  if (follows) {
    std::this_thread::sleep_for(kCheckInterval);
  } else {
    count = wait_for_one(epoll_.get(), event, look);
  }
  {
    const std::lock_guard lock(mutex_);
    --num_waiting_;
    if (look) (look == kCheckInterval ? num_looking_ : num_looking_rarely_) -= 1;
    if (count == 0 && take_over_locked()) {
      set_active_locked(true);
      return {Event::Kind::kTakenOver, std::exchange(stayed_with_, {})->id_};
    }
    if (count > 0) {
      set_active_locked(true);
      ++num_turns_;
    }
    raise_limit_if_stuck_locked();
  }
  if (count <= 0) return {};
  if (event.data.u64 == kWakeId) return {Event::Kind::kWake};
  if (event.data.u64 == kTimerId) return {Event::Kind::kTime};
  return {Event::Kind::kSource, event.data.u64,
          (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0};
}

void Pool::begin_running_locked() { runners_.push_back({kOwnNumber}); }
void Pool::end_running_locked() {
  std::erase_if(runners_, [](const Runner& runner) { return runner.thread == kOwnNumber; });
}

bool Pool::may_run_locked() const {
  return std::count_if(runners_.begin(), runners_.end(),
                       [](const Runner& runner) { return !runner.is_asleep; }) < max_running_;
}

// Marks the tasks that are asleep, and returns whether it found one. A thread that only waits for a
// processor is not asleep; more threads would not help it.
bool Pool::mark_sleeping_locked() {
  bool found = false;
  for (Runner& runner : runners_) {
    if (runner.is_asleep) continue;
    const auto status = process_status(runner.thread);
    runner.is_asleep = status && status->state != 'R';
    found = found || runner.is_asleep;
  }
  return found;
}

void Pool::raise_limit_if_stuck_locked() {
  if (tasks_.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  if (num_taken_ != num_taken_before_) {
    num_taken_before_ = num_taken_;
    moved_at_ = now;
    return;
  }
  const auto stuck = now - moved_at_;
  if (may_run_locked() || stuck < kCheckInterval) return;
  if (!mark_sleeping_locked()) {
    const bool is_usual = max_running_ < usual_running_;
    if (max_running_ >= max_threads_ - 1 || (!is_usual && stuck < kStuckForLong)) return;
    ++max_running_;
  }
  moved_at_ = now;
}

bool Pool::stop(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    rest_ends_.notify_all();
  }
  ring(wake_.get());
  std::deque<std::shared_ptr<Task>> never_run;
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources;
  std::vector<std::jthread> threads;
  bool all_ended = true;
  {
    std::unique_lock lock(mutex_);
    never_run = std::move(tasks_);
    sources = std::move(sources_);
    sources_.clear();
    const std::size_t num_own = is_own_thread() ? 1 : 0;
    const auto have_ended = [&] { return ended_.size() + num_own >= threads_.size(); };
    if (deadline.moment() == Deadline::Clock::time_point::max()) {
      thread_ended_.wait(lock, have_ended);
    } else {
      all_ended = thread_ended_.wait_until(lock, deadline.moment(), have_ended);
    }
    threads = std::move(threads_);
    threads_.clear();
    for (auto& thread : threads) {
      if (std::find(ended_.begin(), ended_.end(), thread.get_id()) == ended_.end()) thread.detach();
    }
  }
  return all_ended;  // the threads that have ended are joined here
}

}  // namespace paceline::rpc

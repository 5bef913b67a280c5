#include "paceline/engine/telemetry/last_words.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "paceline/engine/core/system/thread.h"

namespace paceline {

namespace {

constexpr std::chrono::seconds kLongest{2};

struct Registry {
  std::mutex mutex;  // guards `all`, and keeps each object alive while its function is called
  std::vector<const LastWords*> all;
};

// The registry is never destroyed, because a program's groups may end after main().
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

struct Done {
  std::mutex mutex;  // guards `is_done`
  std::condition_variable changed;
  bool is_done = false;
};

}  // namespace

LastWords::LastWords(Say say) : say_(std::move(say)) {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

LastWords::~LastWords() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

void say_last_words(const std::string& text) noexcept try {
  const auto done = std::make_shared<Done>();
  auto thread = start_thread("paceline-last", [done, text] {
    try {
      const std::lock_guard lock(registry().mutex);
      for (const LastWords* one : registry().all) one->say_(text);
    } catch (...) {  // the peers then learn only that this process has ended
    }
    const std::lock_guard lock(done->mutex);
    done->is_done = true;
    done->changed.notify_all();
  });
  thread.detach();
  std::unique_lock lock(done->mutex);
  done->changed.wait_for(lock, kLongest, [&] { return done->is_done; });
} catch (...) {  // without memory or threads the peers learn only that this process has ended
}

}  // namespace paceline

#pragma once

// A check that one thread makes while it waits for other processes. An embedder that must react to
// something during a wait, for example Python to Ctrl-C, sets a WaitCheck around its call. Every
// wait of that thread in a collective, in a message, in Work::wait() or in forming a group then
// calls the function between its sleeps, at least twice a second. If the function throws, the wait
// ends with that exception: a collective aborts its group as after any other failure. The function
// should throw an Error, because the text of an Error also reaches the other ranks.
//
// A thread without a WaitCheck pays for one load of a thread-local pointer, and only while it
// sleeps.
//
// Thread safety: a WaitCheck belongs to the thread that made it. WaitChecks of a thread nest; the
// innermost one counts.

#include <chrono>
#include <functional>
#include <utility>

namespace paceline {

class WaitCheck {
 public:
  // The longest time that a wait may take between two calls.
  static constexpr std::chrono::milliseconds kRound{250};

  explicit WaitCheck(std::function<void()> check)
      : check_(std::move(check)), outer_(std::exchange(current_, this)) {}
  ~WaitCheck() { current_ = outer_; }
  WaitCheck(const WaitCheck&) = delete;
  WaitCheck& operator=(const WaitCheck&) = delete;

  // Whether this thread has a check.
  static bool is_set() { return current_ != nullptr; }
  // Called by waits: makes this thread's check, if it has one.
  static void run() {
    if (current_ != nullptr) current_->check_();
  }

 private:
  static inline thread_local const WaitCheck* current_ = nullptr;

  const std::function<void()> check_;
  const WaitCheck* const outer_;
};

}  // namespace paceline

#pragma once

// A counter that forked processes share. Tests use it to wait until their ranks have reached
// the point at which they are to be killed. Make it before the ranks are forked.

#include <atomic>
#include <cstdint>
#include <new>
#include <stdexcept>

#include <sys/mman.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline::harness {

class SharedCounter {
 public:
  SharedCounter() {
    void* page =
        mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    word_ = new (page) Word(0);
  }
  ~SharedCounter() { munmap(word_, sizeof(Word)); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  void add() {
    word_->fetch_add(1);
    futex_wake_all(*word_);
  }
  std::uint32_t count() const { return word_->load(); }
  // Throws if the count has not reached `value` by the deadline.
  void wait_for(std::uint32_t value, Deadline deadline) const {
    for (;;) {
      const auto now = word_->load();
      if (now >= value) return;
      if (deadline.expired())
        throw std::runtime_error("the ranks did not reach this count in time");
      futex_wait(*word_, now, deadline.remaining());
    }
  }

 private:
  using Word = std::atomic<std::uint32_t>;
  Word* word_ = nullptr;
};

}  // namespace paceline::harness

#pragma once

// While this object exists, the process cannot start a thread, as at a limit of the system.

#include <cstddef>

#include <pthread.h>

namespace paceline::harness {

class NoNewThreads {
 public:
  // No address space has room for such a stack.
  NoNewThreads() { set_stack_size(std::size_t{1} << 47); }
  ~NoNewThreads() { set_stack_size(usual_); }
  NoNewThreads(const NoNewThreads&) = delete;
  NoNewThreads& operator=(const NoNewThreads&) = delete;

 private:
  static std::size_t stack_size() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    std::size_t size = 0;
    pthread_attr_getstacksize(&attributes, &size);
    pthread_attr_destroy(&attributes);
    return size;
  }
  static void set_stack_size(std::size_t size) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }

  const std::size_t usual_ = stack_size();
};

}  // namespace paceline::harness

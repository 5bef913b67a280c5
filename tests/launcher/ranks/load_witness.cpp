// A library that knows which process loaded it. It can leave something behind that processes must
// not share: a thread with WITNESS=thread, an open file with WITNESS=descriptor.

#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace {

pid_t loaded_by = 0;

void* wait_for_ever(void*) {
  for (;;) pause();
}

[[gnu::constructor]] void load() {
  loaded_by = getpid();
  const char* const leave = std::getenv("WITNESS");
  if (leave == nullptr) return;
  pthread_t thread;
  if (std::strcmp(leave, "thread") == 0) pthread_create(&thread, nullptr, wait_for_ever, nullptr);
  if (std::strcmp(leave, "descriptor") == 0) open("/dev/null", O_RDONLY | O_CLOEXEC);
}

}  // namespace

pid_t process_that_loaded() { return loaded_by; }

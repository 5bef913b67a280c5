// A rank for the tests of explained failures: crashing_program HOW. Rank 1 fails in the given way
// while the other ranks wait in a collective:
//
//   null       writes through a null pointer, three calls deep
//   thread     does the same in a thread of its own
//   overflow   calls itself without end
//   throws     throws an exception that is not caught
//   asserts    fails an assertion
//   frees      frees memory twice
//   illegal    executes an instruction that no processor has
//   zero       divides an integer by zero
//   handled    writes through a null pointer; its own handler for SIGSEGV exits with 9
//   memory     takes memory until it is killed
//   leaves     exits with 0 before a collective
//   shm        fills /dev/shm through a mapped file

#undef NDEBUG
#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"

namespace {

volatile int* volatile nowhere = nullptr;
volatile int zero = 0;

[[gnu::noinline]] int write_to_nowhere(int value) {
  *nowhere = value;
  return value;
}
[[gnu::noinline]] int compute_loss(int value) { return write_to_nowhere(value + 1) + 1; }
[[gnu::noinline]] int train_step(int value) { return compute_loss(value + 1) + 1; }

[[gnu::noinline]] int call_without_end(int depth) {
  if (depth < zero) return 0;  // never
  volatile char frame[4096];
  frame[depth % 4096] = 1;
  const int result = call_without_end(depth + 1);
  return result + frame[depth % 4096];  // so that it is no tail call
}

[[gnu::noinline]] void run_kernel() { __builtin_trap(); }

[[gnu::noinline]] int divide(int value) {
  const volatile int quotient = value / zero;  // volatile, so that it is computed
  return quotient;
}

[[gnu::noinline]] void read_config() { throw std::runtime_error("no such key: learning_rate"); }

[[gnu::noinline]] void check_loss(int value) { assert(value < 0 && "the loss is finite"); }

[[gnu::noinline]] void free_batch(void* batch) { std::free(batch); }

void take_memory() {
  std::vector<char*> blocks;
  constexpr std::size_t kBlock = 4 << 20;
  for (;;) {
    blocks.push_back(static_cast<char*>(std::malloc(kBlock)));
    std::memset(blocks.back(), 1, kBlock);
  }
}

[[gnu::noinline]] void fill_shared_memory() {
  const std::string path = "/dev/shm/paceline-test-" + std::to_string(getpid());
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  unlink(path.c_str());
  constexpr std::size_t kSize = 64 << 20;
  if (ftruncate(fd, kSize) != 0) std::exit(8);
  void* const memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::memset(memory, 1, kSize);
}

void end(const std::string& how) {
  if (how == "frees") {
    void* volatile batch = std::malloc(100);
    for (int i = 0; i < 2; ++i) free_batch(batch);
  }
  if (how == "null") train_step(1);
  if (how == "thread") std::thread([] { train_step(1); }).join();
  if (how == "overflow") call_without_end(0);
  if (how == "throws") read_config();
  if (how == "asserts") check_loss(7);
  if (how == "illegal") run_kernel();
  if (how == "zero") divide(7);
  if (how == "handled") train_step(1);
  if (how == "memory") take_memory();
  if (how == "leaves") std::exit(0);
  if (how == "shm") fill_shared_memory();
  std::fprintf(stderr, "crashing_program: '%s' is no way to fail, or had no effect\n", how.c_str());
  std::exit(2);
}

}  // namespace

int main(int, char** argv) {
  const std::string how = argv[1];
  if (how == "handled") std::signal(SIGSEGV, [](int) { _exit(9); });
  try {
    const auto group = paceline::init_process_group();
    if (group->rank() == 1 || group->world_size() == 1) end(how);
    std::vector<float> data(1000, 1.0f);
    for (;;) group->all_reduce(std::span(data));
  } catch (const paceline::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}

// A program that exits while its group still exists: in a global variable of each kind, with each
// way to end a program. The library's own static objects must live as long.

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/engine/collectives/exit_ways_library.h"
#include "tests/harness/end_of.h"
#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// This variable is destroyed after all function-local static objects that main() has caused the
// library to make, because its construction was complete before theirs. So those objects must have
// no destructors.
Group in_global;
Group* volatile leaked = nullptr;  // only so that the leak sanitizer finds the group
[[gnu::init_priority(101)]] std::shared_ptr<void> in_first_global;
thread_local Group in_thread_local;

Group& in_function() {
  static Group group;
  return group;
}

struct Base {
  virtual ~Base() = default;
  Group group;
};
// The group is a member of the base class; the destructor of the derived class uses it.
struct Trainer : Base {
  ~Trainer() override {
    if (group) group->barrier();
  }
};
Trainer in_object;

void use(const Group& group) {
  std::vector<float> values(1000, 1.0F);
  group->all_reduce(std::span(values));
  group->barrier();
  // The thread for asynchronous operations runs, and a group exists that was made from another
  // group.
  group->all_reduce(std::span(values), ReduceOp::kSum, {.async_op = true})->wait();
  group->split(0, group->rank())->barrier();
}

struct Way {
  const char* name;
  std::function<void(Group group)> end;
  bool leaves = true;  // the group says goodbye, so the other rank does not miss this one
};

const std::vector<Way>& ways() {
  static const std::vector<Way> rows = {
      {"a_global", [](Group group) { in_global = std::move(group); }},
      {"the_first_global", [](Group group) { in_first_global = std::move(group); }},
      {"an_object_whose_destructor_uses_it",
       [](Group group) { in_object.group = std::move(group); }},
      {"a_static_of_a_function", [](Group group) { in_function() = std::move(group); }},
      {"a_thread_local_of_main", [](Group group) { in_thread_local = std::move(group); }},
      {"a_thread_local_of_a_thread",
       [](Group group) { std::thread([&] { in_thread_local = std::move(group); }).join(); }},
      {"a_global_of_a_static_library",
       [](Group group) { held_by_static_library() = std::move(group); }},
      {"a_global_of_a_shared_library",
       [](Group group) { held_by_shared_library() = std::move(group); }},
      {"a_shared_library_that_is_unloaded",
       [](Group group) {
         void* const library = ::dlopen(EXIT_WAYS_PLUGIN, RTLD_NOW);
         ASSERT_NE(library, nullptr) << ::dlerror();
         const auto holder =
             reinterpret_cast<std::shared_ptr<void>* (*)()>(::dlsym(library, "held_by_plugin"));
         ASSERT_NE(holder, nullptr);
         *holder() = std::move(group);
         ::dlclose(library);
       }},
      {"an_atexit_handler",
       [](Group group) {
         in_global = std::move(group);
         std::atexit([] { in_global.reset(); });
       }},
      {"exit_in_a_thread",
       [](Group group) {
         in_global = std::move(group);
         std::thread([] { std::exit(0); }).join();
       }},
      {"exit_in_the_thread_of_asynchronous_operations",
       [](Group group) {
         in_global = std::move(group);
         static std::vector<float> values(64);
         engine(*in_global).start_visit(std::span(values), [](const Visit&) {});
         in_global->barrier({.async_op = true})->on_complete([](const Error*) { std::exit(0); });
         for (;;) ::pause();
       }},
      {"quick_exit",
       [](Group group) {
         in_global = std::move(group);
         std::at_quick_exit([] { in_global.reset(); });
         std::quick_exit(0);
       }},
      {"leaked", [](Group group) { leaked = new Group(std::move(group)); }, false},
      {"_exit",
       [](Group group) {
         in_global = std::move(group);
         ::_exit(0);
       },
       false},
  };
  return rows;
}

std::string free_port() { return std::to_string(local_port(listen_tcp({"127.0.0.1", 0}))); }

// Starts one rank of two in its own process.
pid_t start(const Way& way, int rank, const std::string& meeting) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::unsetenv("PACELINE_JOB_SOCKET");
  try {
    auto group = init_process_group({.rendezvous = {.init_method = "tcp://127.0.0.1:" + meeting,
                                                    .rank = rank,
                                                    .world_size = 2,
                                                    .timeout = 30s},
                                     .group = {.timeout = 30s}});
    use(group);
    way.end(std::move(group));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    ::_exit(7);
  }
  std::exit(::testing::Test::HasFailure() ? 8 : 0);
}

class ExitWays : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(All, ExitWays, ::testing::Range(std::size_t{0}, ways().size()),
                         [](const auto& info) { return std::string(ways()[info.param].name); });

TEST_P(ExitWays, with_a_group_are_clean) {
  const Way& way = ways()[GetParam()];
  const std::string meeting = free_port();
  const pid_t first = start(way, 0, meeting), second = start(way, 1, meeting);
  EXPECT_EQ(harness::end_of(first), "exit code 0");
  EXPECT_EQ(harness::end_of(second), "exit code 0");
}

}  // namespace
}  // namespace paceline

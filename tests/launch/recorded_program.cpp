// A rank for the tests of flight records: recorded_program HOW.
//
//   ends     finishes two collectives
//   misses   rank 1 does not come to the second one
//   dies     rank 1 is killed in front of the second one
//   hangs    rank 1 does not come, and nobody gives up

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "paceline/collectives/init.h"

using namespace std::chrono_literals;

int main(int, char** argv) {
  const std::string how = argv[1];
  try {
    const auto group =
        paceline::init_process_group({.group = {.timeout = how == "misses" ? 500ms : 60'000ms}});
    std::vector<float> data(1000, 1.0f);
    group->broadcast(std::span(data), 0);
    if (group->rank() == 1 && how == "dies") std::raise(SIGKILL);
    if (group->rank() == 1 && (how == "misses" || how == "hangs")) {
      std::this_thread::sleep_for(60s);
    }
    if (group->rank() == 0) {
      std::printf("waiting\n");
      std::fflush(stdout);
    }
    group->all_reduce(std::span(data));
  } catch (const paceline::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}

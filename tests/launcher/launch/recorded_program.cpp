// A rank for the tests of flight records: recorded_program HOW.
//
//   ends      finishes two collectives
//   misses    rank 1 does not arrive at the second one
//   throws    every rank throws an exception; the process of rank 0 ends last, after a minute
//   dies      rank 1 is killed before the second one
//   hangs     rank 1 does not arrive, and no rank gives up
//   stops     rank 1 stops itself; after SIGCONT the job continues for a second
//   works     200 collectives in two seconds
//   counts    steps without end, numbered from 1000 on; reports that a quarter of each is waiting
//   sleeps    the same, but rank 1 takes three times as long, most of it asleep
//   stalls    20 steps, then no rank does anything for a minute
//   evaluates 20 steps, then all ranks compute for five seconds
//   computes  no rank makes a call for two seconds
//   threads   prints the number of threads that each rank should use
//   samples   900 steps, each with one sample for every rank, which the rank writes down; continues
//             where an agreed stop ended the program, and is faster then
//   restarts  20 steps, after which rank 1 is killed; the next generation repeats the last 10

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/step_log.h"

using namespace std::chrono_literals;

// In the working folder, "next" has the step to continue with, and "seen-R" the samples of rank R.
int take_samples(paceline::ProcessGroup& group) {
  paceline::AgreedStop stop;
  int step = 0;
  std::ifstream("next") >> step;
  const auto pace = step == 0 ? 100ms : 10ms;
  if (group.rank() == 0) {
    std::printf("goes on at step %d\n", step);
    std::fflush(stdout);
  }
  group.barrier();  // no rank writes before all ranks have read
  std::ofstream seen("seen-" + std::to_string(group.rank()), std::ios::app);
  for (; step < 900; ++step) {
    std::this_thread::sleep_for(pace);
    seen << step * group.world_size() + group.rank() << std::endl;
    if (!stop.requested(group)) continue;
    if (group.rank() == 0) std::ofstream("next") << step + 1 << std::endl;
    group.barrier();
    return paceline::kStoppedAsAgreed;
  }
  return 0;
}

int main(int, char** argv) {
  const std::string how = argv[1];
  try {
    const auto group =
        paceline::init_process_group({.group = {.timeout = how == "misses" ? 500ms : 60'000ms}});
    std::vector<float> data(1000, 1.0f);
    group->broadcast(std::span(data), 0);
    if (how == "throws") throw std::runtime_error("no such folder");
    if (group->rank() == 1 && how == "dies") std::raise(SIGKILL);
    if (group->rank() == 1 && (how == "misses" || how == "hangs")) {
      std::this_thread::sleep_for(60s);
    }
    if (how == "threads") {
      const char* threads = std::getenv("OMP_NUM_THREADS");
      std::printf("rank %d: %s threads\n", group->rank(), threads != nullptr ? threads : "all");
      std::fflush(stdout);
    }
    if (how == "samples") return take_samples(*group);
    if (how == "works") {
      for (int i = 0; i < 200; ++i) {
        std::this_thread::sleep_for(10ms);
        group->all_reduce(std::span(data));
      }
    }
    if (how == "counts" || how == "sleeps") {
      paceline::StepLog steps;
      steps.begin_at(1000);
      for (int i = 0;; ++i) {
        std::this_thread::sleep_for(how == "sleeps" && group->rank() == 1 ? 15ms : 5ms);
        group->all_reduce(std::span(data));
        steps.step(32, 0.008, 0.002);
        if (i == 3 && group->rank() == 0) {
          std::printf("waiting\n");
          std::fflush(stdout);
        }
      }
    }
    if (how == "stalls" || how == "evaluates") {
      paceline::StepLog steps;
      for (int i = 0; i < 20; ++i) {
        group->all_reduce(std::span(data));
        steps.step(32, 0.001, 0.001);
      }
      if (how == "stalls") std::this_thread::sleep_for(60s);
      const auto end = std::chrono::steady_clock::now() + 5s;
      while (std::chrono::steady_clock::now() < end) data[0] = data[0] * 0.5f + 1.0f;
    }
    if (how == "computes") std::this_thread::sleep_for(2s);
    if (how == "restarts") {
      const int generation = std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
      paceline::StepLog steps;
      steps.begin_at(10 * generation);
      for (int i = 0; i < 20; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        std::this_thread::sleep_for(5ms);
        group->all_reduce(std::span(data));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        steps.step(32, took.count(), 0);
      }
      group->barrier();
      if (generation == 0 && group->rank() == 1) std::raise(SIGKILL);
    }
    if (group->rank() == 1 && how == "stops") {
      std::printf("pid %d\n", getpid());
      std::fflush(stdout);
      std::raise(SIGSTOP);
    }
    if (group->rank() == 0) {
      std::printf("waiting\n");
      std::fflush(stdout);
    }
    group->all_reduce(std::span(data));
    for (int i = 0; i < 100 && how == "stops"; ++i) {
      std::this_thread::sleep_for(10ms);
      group->all_reduce(std::span(data));
    }
  } catch (const paceline::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (std::atoi(std::getenv("RANK")) == 0) std::this_thread::sleep_for(60s);
    return 4;
  }
}

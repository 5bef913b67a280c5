// A small training for tests that pause, kill and restart jobs:
//
//   enduring_program STEPS MILLISECONDS DIRECTORY
//
// Each step takes about MILLISECONDS and sums over all ranks. Every tenth step is saved in
// DIRECTORY, and a restarted job continues from there. If DIRECTORY has a file "last" with a number
// of steps, that number replaces STEPS. At the end rank 0 writes the file "result" there, a digest
// of all bits. As long as the number of ranks never changes, the digest depends only on it and on
// the steps.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/step_log.h"

namespace {

constexpr std::size_t kCount = 100'000;
constexpr int kSaveEvery = 10;

struct State {
  std::int64_t step = 0;
  std::vector<float> values = std::vector<float>(kCount, 1.0f);
};

void save(const State& state, const std::string& path) {
  const std::string draft = path + ".new";
  std::ofstream file(draft, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&state.step), sizeof state.step);
  file.write(reinterpret_cast<const char*>(state.values.data()), kCount * sizeof(float));
  file.close();
  if (file) std::filesystem::rename(draft, path);
}

State restore(const std::string& path) {
  State state;
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&state.step), sizeof state.step);
  file.read(reinterpret_cast<char*>(state.values.data()), kCount * sizeof(float));
  return file ? state : State();
}

std::uint64_t digest(const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::byte byte : std::as_bytes(std::span(values))) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  }
  return hash;
}

void make_step(paceline::ProcessGroup& group, State& state) {
  const auto rank = static_cast<float>(group.rank() + 1);
  for (std::size_t i = 0; i < kCount; ++i) {
    state.values[i] += std::sin(rank * static_cast<float>(i + 1) + static_cast<float>(state.step));
  }
  group.all_reduce(std::span(state.values));
  for (float& value : state.values) value /= static_cast<float>(group.world_size());
  ++state.step;
}

// The number of steps in the file "last", which rank 0 reads for all ranks; without a file,
// `steps`.
std::int64_t last_step(paceline::ProcessGroup& group, std::int64_t steps,
                       const std::string& directory) {
  if (group.rank() == 0) std::ifstream(directory + "/last") >> steps;
  group.broadcast(std::span(&steps, 1), 0);
  return steps;
}

void train(std::int64_t steps, std::chrono::milliseconds pace, const std::string& directory) {
  const auto group = paceline::init_process_group();
  State state;
  if (group->rank() == 0) state = restore(directory + "/saved");
  group->broadcast(std::span(&state.step, 1), 0);
  group->broadcast(std::span(state.values), 0);
  paceline::StepLog log;
  log.begin_at(state.step);
  while (state.step < steps) {
    std::this_thread::sleep_for(pace);
    make_step(*group, state);
    log.step(1, 0.001 * static_cast<double>(pace.count()), 0);
    if (state.step % kSaveEvery != 0) continue;
    if (group->rank() == 0) save(state, directory + "/saved");
    steps = last_step(*group, steps, directory);
  }
  group->barrier();
  if (group->rank() == 0) {
    std::ofstream(directory + "/result") << std::hex << digest(state.values) << "\n";
  }
}

}  // namespace

int main(int, char** argv) {
  try {
    train(std::atoi(argv[1]), std::chrono::milliseconds(std::atoi(argv[2])), argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

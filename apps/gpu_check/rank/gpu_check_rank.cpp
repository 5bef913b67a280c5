// The program that `paceline gpu-check` starts as its ranks:
//
//   paceline_gpu_check nccl|host CHECK,CHECK FOLDER [--quick]   as a rank
//   paceline_gpu_check --probe                                  alone: prints the usable devices

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/training/device/streams.h"

#include "apps/gpu_check/rank/ranks.h"
#include "apps/gpu_check/rank_records.h"

namespace paceline::gpu_check {

void wait_for_device(const Ranks& ranks, const std::string& what) {
  StreamEvent::after_current(ranks.device)
      .wait_on_host(Deadline::after(std::chrono::seconds(30)), what);
}

double require_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                     const std::string& what) {
  if (found.size() != expected.size()) {
    throw CheckFailed(
        fmt::format("{}: {} tensors instead of {}", what, found.size(), expected.size()));
  }
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor one = found[i].detach().cpu().to(at::kDouble);
    const at::Tensor other = expected[i].detach().cpu().to(at::kDouble);
    const double difference = one.numel() == 0 ? 0 : (one - other).abs().max().item<double>();
    if (!at::allclose(one, other, 1e-3, 1e-4)) {
      throw CheckFailed(
          fmt::format("{}: tensor {} differs from the CPU's by up to {:.3g}", what, i, difference));
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

namespace {

constexpr std::chrono::seconds kTimeout{30};

struct CheckEntry {
  std::string_view name;
  CheckOutcome (*carry_out)(const Ranks&);
};
constexpr CheckEntry kEntries[] = {
    {"collectives", check_collectives},
    {"messages", check_messages},
    {"order", check_order},
    {"data_parallel", check_data_parallel},
    {"replicas", check_replicas},
    {"fully_shard_1", check_fully_shard_1},
    {"fully_shard_2", check_fully_shard_2},
    {"fully_shard_3", check_fully_shard_3},
    {"tensor_parallel", check_tensor_parallel},
    {"pipeline", check_pipeline},
    {"checkpoint", check_checkpoint},
    {"loader", check_loader},
    {"peer_copies", check_peer_copies},
    {"against_c10d", check_against_c10d},
    {"graph", check_graph},
    {"bandwidth", check_bandwidth},
    {"device_0", check_device_0},
    {"killed", check_killed},
    {"stopped", check_stopped},
    {"never_called", check_never_called},
    {"out_of_memory", check_out_of_memory},
};
static_assert(std::size(kEntries) == std::size(kChecks));

const CheckEntry& entry_of(std::string_view name) {
  for (const CheckEntry& entry : kEntries) {
    if (entry.name == name) return entry;
  }
  fail(ErrorCode::kInvalid, "unknown check '{}'", name);
}

CheckOutcome outcome_of(const CheckEntry& entry, const Ranks& ranks) {
  const auto begin = std::chrono::steady_clock::now();
  CheckOutcome outcome;
  try {
    ranks.group->barrier();  // fails if another rank failed the previous check
    outcome = entry.carry_out(ranks);
  } catch (...) {
    outcome.verdict = Verdict::kFail;
    outcome.text = describe_current_exception();
    // LibTorch's errors continue with a stack trace.
    outcome.text = outcome.text.substr(0, outcome.text.find("\nException raised from"));
  }
  outcome.name = entry.name;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

int run_rank(Setups setup, const std::string& names, const std::string& folder, bool is_quick) {
  const LaunchEnvironment environment = detect_launch_environment();
  const c10::Device device = choose_device("cuda", environment.local_rank);
  set_current_device(device);
  const Ranks ranks{.group = init_process_group({.group = {.timeout = kTimeout}}),
                    .device = device,
                    .setup = setup,
                    .is_quick = is_quick,
                    .folder = folder};
  RecordWriter records(folder, environment.rank);
  for (const std::string_view name : split(names, ',')) {
    const CheckEntry& entry = entry_of(name);
    records.begin(std::string(name));
    const CheckOutcome outcome = outcome_of(entry, ranks);
    records.end(outcome);
    // Skips destructors, which after a failure may wait for a GPU that does not answer.
    if (outcome.verdict == Verdict::kFail) _exit(kCheckFailed);
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1 && arguments[0] == "--probe") {
    print_probe();
    return 0;
  }
  check(arguments.size() >= 3 && (arguments[0] == "nccl" || arguments[0] == "host"),
        "start this program with: paceline gpu-check");
  return run_rank(arguments[0] == "nccl" ? kNccl : kHost, arguments[1], arguments[2],
                  arguments.size() > 3 && arguments[3] == "--quick");
}

}  // namespace
}  // namespace paceline::gpu_check

int main(int argc, char** argv) {
  try {
    return paceline::gpu_check::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paceline_gpu_check: %s\n", error.what());
    return paceline::exit_code_of(error);
  }
}

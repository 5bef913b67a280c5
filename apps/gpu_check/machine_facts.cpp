#include "apps/gpu_check/machine_facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"

#include "apps/cli/own_program.h"

namespace paceline::gpu_check {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kProbeLimit = 60;  // seconds
constexpr std::size_t kMaxOutput = 16 << 10;
constexpr std::uint64_t kOtherUse = 64 << 20;  // other programs' use may change by this much
constexpr std::chrono::seconds kReturnLimit{10};
// Prefixes of variables that decide how CUDA, NCCL and Paceline work. Variables with these prefixes
// that may be secret, such as NVIDIA_API_KEY, are left out (may_be_secret()).
constexpr std::array kShownVariables = {
    "CUDA_",           "NCCL_",     "NVIDIA_", "PACELINE_", "TORCH_", "SLURM_", "OMPI_COMM_WORLD_",
    "LD_LIBRARY_PATH", "LD_PRELOAD"};

bool may_be_secret(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char letter) { return std::toupper(letter); });
  constexpr std::array kWords = {"SECRET", "KEY", "TOKEN", "PASSW", "CREDENTIAL"};
  return std::ranges::any_of(kWords,
                             [&](const char* word) { return name.find(word) != name.npos; });
}

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the model from a line such as "Model: \t\t NVIDIA H100" in the driver's file about a GPU.
std::string model_of(const std::string& bus_id) {
  std::string lower = bus_id;
  for (char& letter : lower) letter = static_cast<char>(std::tolower(letter));
  std::istringstream file(
      text_of_file(fs::path("/proc/driver/nvidia/gpus") / lower / "information"));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("Model:")) continue;
    const auto begin = line.find_first_not_of(" \t", 6);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

nlohmann::ordered_json variables_now() {
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    for (const std::string_view prefix : kShownVariables) {
      if (!name.starts_with(prefix) || may_be_secret(name)) continue;
      variables[name] = text.substr(equals + 1);
    }
  }
  return variables;
}

nlohmann::ordered_json device_list(const std::vector<DeviceFacts>& devices) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DeviceFacts& device : devices) {
    list.push_back({{"bus_id", device.bus_id},
                    {"model", model_of(device.bus_id)},
                    {"total_bytes", device.total_bytes},
                    {"free_bytes", device.free_bytes}});
  }
  return list;
}

// The number in a line such as "# Avg bus bandwidth    : 123.4"; nullopt without such a line.
std::optional<double> average_of(const std::string& output) {
  const auto line = output.find("Avg bus bandwidth");
  if (line == std::string::npos) return {};
  const auto colon = output.find(':', line);
  if (colon == std::string::npos) return {};
  double value = 0;
  return std::sscanf(output.c_str() + colon + 1, "%lf", &value) == 1 ? std::optional(value)
                                                                     : std::nullopt;
}

}  // namespace

std::string output_of(const std::string& command, int seconds) {
  const std::string line = fmt::format("timeout -k 5 {} {} 2>&1 </dev/null", seconds, command);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(line.c_str(), "re"), pclose);
  if (!pipe) return "";
  std::string output;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe.get())) {
    output.append(part.data(), count);
    if (output.size() > kMaxOutput) output.erase(0, output.size() - kMaxOutput);
  }
  return output;
}

ProgramFacts ask_program(const std::string& program) {
  ProgramFacts facts;
  if (access(program.c_str(), X_OK) != 0) {
    facts.error = fmt::format("{} is not installed", program);
    return facts;
  }
  const std::string output =
      output_of(shell_line(std::vector<std::string>{program, "--probe"}), kProbeLimit);
  // Libraries may print lines before and after the answer.
  const auto before = ("\n" + output).rfind("\n{");
  const std::string line =
      before == std::string::npos ? "" : output.substr(before, output.find('\n', before) - before);
  const auto fields = parse_json_or_discard(line);
  if (!fields.is_object()) {
    facts.error = output.empty()
                      ? fmt::format("{} --probe has not answered within {} s", program, kProbeLimit)
                      : fmt::format("{} --probe: {}", program, output);
    return facts;
  }
  try {
    facts.libtorch = fields.at("libtorch").get<std::string>();
    facts.knows_cuda = fields.at("knows_cuda").get<bool>();
    facts.cuda_error = fields.at("cuda_error").get<std::string>();
    facts.has_c10d_nccl = fields.at("has_c10d_nccl").get<bool>();
    for (const auto& device : fields.at("devices")) {
      facts.devices.push_back({.bus_id = device.at("bus_id").get<std::string>(),
                               .free_bytes = device.at("free_bytes").get<std::uint64_t>(),
                               .total_bytes = device.at("total_bytes").get<std::uint64_t>()});
    }
  } catch (const nlohmann::json::exception& error) {
    facts.error = fmt::format("{} --probe: {}; does it belong to another version of Paceline?",
                              program, error.what());
  }
  return facts;
}

std::string facts_text(const apps::GpuMachine& machine, const ProgramFacts& program,
                       const std::string& program_path) {
  utsname system{};
  uname(&system);
  const std::time_t now = std::time(nullptr);
  nlohmann::ordered_json on_bus = nlohmann::ordered_json::array();
  for (const launcher::Gpu& gpu : launcher::find_gpus(machine.root)) {
    on_bus.push_back(
        {{"bus_id", gpu.bus_id}, {"model", model_of(gpu.bus_id)}, {"numa_node", gpu.numa_node}});
  }
  const bool is_simulated = on_bus.empty() && std::getenv("PACELINE_LIBCUDART") != nullptr;
  const nlohmann::ordered_json facts = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
      {"paceline", apps::version_text()},
      {"program", program_path},
      {"libtorch", program.libtorch},
      {"kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
      {"processors", std::thread::hardware_concurrency()},
      {"gpus_on_bus", on_bus},
      {"is_simulated", is_simulated},
      {"devices", device_list(program.devices)},
      {"driver", text_of_file("/proc/driver/nvidia/version")},
      {"cuda", machine.runtime_error.empty() ? machine.runtime_text : machine.runtime_error},
      {"nccl", machine.nccl_error.empty() ? machine.nccl_text : machine.nccl_error},
      {"has_c10d_nccl", program.has_c10d_nccl},
      {"variables", variables_now()},
      {"nvidia_smi", on_bus.empty() ? "" : output_of("nvidia-smi", 20)},
      {"topology", on_bus.empty() ? "" : output_of("nvidia-smi topo -m", 20)}};
  return json_text(facts);
}

std::vector<CheckOutcome> outcomes_of(const std::vector<apps::Finding>& findings) {
  std::vector<CheckOutcome> outcomes;
  for (const apps::Finding& finding : findings) {
    const bool failed = finding.result == apps::CheckResult::kFail;
    std::string word = finding.name;
    for (char& letter : word) letter = letter == ' ' ? '_' : letter;
    outcomes.push_back({.name = "machine/" + word,
                        .what = "paceline doctor",
                        .verdict = failed ? Verdict::kFail : Verdict::kPass,
                        .text = finding.result == apps::CheckResult::kWarn
                                    ? "works, with a drawback: " + finding.text
                                    : finding.text,
                        .advice = finding.advice});
  }
  return outcomes;
}

CheckOutcome run_nccl_tests(int num_gpus) {
  CheckOutcome outcome{.name = "nccl/nccl_tests", .what = "all_reduce_perf of nccl-tests"};
  if (output_of("sh -c 'command -v all_reduce_perf'", 10).empty()) {
    outcome.verdict = Verdict::kNotHere;
    outcome.text = "all_reduce_perf of nccl-tests is not in PATH";
    return outcome;
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string command = fmt::format("all_reduce_perf -b 1M -e 256M -f 16 -g {}", num_gpus);
  const std::string output = output_of(command, 120);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  outcome.output = output;
  const auto average = average_of(output);
  if (!average) {
    outcome.verdict = Verdict::kFail;
    outcome.text = fmt::format("{} printed no average: {}", command, output);
    return outcome;
  }
  outcome.text = fmt::format("{:.1f} GB/s on average; compare with nccl/bandwidth", *average);
  outcome.figures = json_text(nlohmann::json{{"average_busbw_gb_s", *average}});
  return outcome;
}

CheckOutcome check_memory_returned(const std::string& program, const ProgramFacts& before) {
  CheckOutcome outcome{.name = "machine/memory_returned",
                       .what = "the GPUs' memory is free again after all checks"};
  const auto give_up = std::chrono::steady_clock::now() + kReturnLimit;
  while (true) {
    const ProgramFacts after = ask_program(program);
    outcome.verdict = Verdict::kPass;
    if (!after.error.empty() || after.devices.size() != before.devices.size()) {
      outcome.verdict = Verdict::kFail;
      outcome.text = after.error.empty() ? "a GPU has disappeared" : after.error;
      return outcome;
    }
    for (std::size_t i = 0; i < after.devices.size(); ++i) {
      const std::uint64_t was = before.devices[i].free_bytes, is = after.devices[i].free_bytes;
      if (is + kOtherUse >= was) continue;
      outcome.verdict = Verdict::kFail;
      outcome.text = fmt::format("GPU {} has {} less free memory than before", i,
                                 size_text(static_cast<std::size_t>(was - is)));
      outcome.advice =
          "another program may have started; otherwise nvidia-smi shows the remaining process";
    }
    if (outcome.verdict == Verdict::kPass || std::chrono::steady_clock::now() > give_up)
      return outcome;
    std::this_thread::sleep_for(500ms);
  }
}

}  // namespace paceline::gpu_check

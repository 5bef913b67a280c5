#include "apps/jobs/python_stacks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/program_file.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongestDump = 5s;
constexpr std::size_t kMaxBytes = 16 << 20;

std::optional<std::string> find_reader() {
  if (const auto python = process_environment()("PACELINE_PYTHON")) {
    const auto beside = std::filesystem::path(*python).parent_path() / "py-spy";
    if (access(beside.c_str(), X_OK) == 0) return beside.string();
  }
  try {
    return launcher::find_program("py-spy");
  } catch (const launcher::ProgramError&) {
    return std::nullopt;
  }
}

// Runs a program and collects its output until the output ends or exceeds kMaxBytes, or the
// deadline passes; then kills the program and returns the output.
std::string output_of(const std::vector<std::string>& command, Deadline deadline) {
  launcher::Pipe output = launcher::make_pipe();
  const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  launcher::ProcessSpec spec{.path = command.front(),
                             .command = command,
                             .environment = launcher::inherited_environment()};
  spec.stdin_fd = nothing.get();
  spec.stdout_fd = output.write_end.get();
  spec.stderr_fd = output.write_end.get();
  const launcher::Process program = launcher::start_process(spec);
  output.write_end.reset();
  std::string text;
  char bytes[65536];
  while (text.size() < kMaxBytes && await(output.read_end.get(), POLLIN, deadline)) {
    const ssize_t length =
        read_some(output.read_end.get(), std::as_writable_bytes(std::span(bytes)));
    if (length <= 0) break;
    text.append(bytes, static_cast<std::size_t>(length));
  }
  syscall(SYS_pidfd_send_signal, program.pidfd.get(), SIGKILL, nullptr, 0);
  return text;
}

std::string last_line_of(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "it printed nothing within 5 s";
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

bool is_of_interpreter(const std::string& frame) {
  return frame.starts_with("_PyEval_") || frame.starts_with("PyEval_");
}

std::string frame_text(const nlohmann::json& frame) {
  const std::filesystem::path path = frame.at("filename").get<std::string>();
  return fmt::format("{} ({}:{})", frame.at("name").get<std::string>(), path.filename().string(),
                     frame.at("line").get<int>());
}

}  // namespace

bool runs_python(pid_t pid) {
  std::error_code ended;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), ended);
  if (program.filename().string().starts_with("python")) return true;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/libpython3") != std::string::npos) return true;
  }
  return false;
}

bool add_frames_of_dump(const std::string& dump, std::vector<ThreadStack>& stacks) {
  std::map<pid_t, std::vector<std::string>> frames;
  const auto json = parse_json_or_discard(dump);
  try {
    for (const auto& thread : json) {
      auto& of_thread = frames[thread.at("os_thread_id").get<pid_t>()];
      for (const auto& frame : thread.at("frames")) of_thread.push_back(frame_text(frame));
    }
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  bool is_any = false;
  for (ThreadStack& stack : stacks) {
    const auto& added = frames[stack.thread];
    if (added.empty()) continue;
    is_any = true;
    const auto inside = std::find_if(stack.frames.begin(), stack.frames.end(), is_of_interpreter);
    stack.frames.erase(inside, stack.frames.end());
    stack.frames.insert(stack.frames.end(), added.begin(), added.end());
  }
  return is_any;
}

std::string add_python_frames(pid_t pid, std::vector<ThreadStack>& stacks) {
  const auto reader = find_reader();
  if (!reader) {
    return "Python functions are not shown, because py-spy is not installed: pip install py-spy, "
           "then run this command again";
  }
  std::string dump;
  try {
    dump = output_of({*reader, "dump", "--json", "--pid", std::to_string(pid)},
                     Deadline::after(kLongestDump));
  } catch (const Error& error) {
    dump = error.what();
  }
  if (add_frames_of_dump(dump, stacks)) return "";
  return fmt::format("Python functions are not shown: {} failed: {}", *reader, last_line_of(dump));
}

}  // namespace paceline::apps

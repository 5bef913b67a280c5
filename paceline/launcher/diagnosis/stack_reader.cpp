#include "paceline/launcher/diagnosis/stack_reader.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/output/rank_output.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kShownFrames = 32;
constexpr std::size_t kLongestText = 16 << 20;

std::vector<std::string> command_for(const StackReader::Target& target) {
  std::vector<std::string> command = {"paceline", "stacks", "--json",
                                      fmt::format("--pid={}", target.pid)};
  if (!target.threads.empty()) {
    command.push_back(fmt::format("--threads={}", fmt::join(target.threads, ",")));
  }
  if (target.crashed) command.emplace_back("--crashed");
  return command;
}

}  // namespace

ProcessStacks parse_stacks(const std::string& text) {
  ProcessStacks stacks;
  const auto json = parse_json_or_discard(text);
  try {
    if (json.contains("problem")) stacks.problem = json.at("problem").get<std::string>();
    for (const auto& thread : json.value("threads", nlohmann::json::array())) {
      stacks.threads.push_back({thread.at("thread").get<pid_t>(),
                                thread.at("name").get<std::string>(),
                                thread.at("frames").get<std::vector<std::string>>()});
    }
  } catch (const nlohmann::json::exception&) {
    stacks.threads.clear();
  }
  if (stacks.threads.empty() && stacks.problem.empty()) {
    stacks.problem = "reading its stack took too long or failed";
  }
  return stacks;
}

std::string frames_text(const std::vector<std::string>& frames, const std::string& indent) {
  std::string text;
  for (std::size_t i = 0; i < frames.size() && i < kShownFrames; ++i) {
    text += fmt::format("{}#{:<2} {}\n", indent, i, frames[i]);
  }
  if (frames.size() > kShownFrames) {
    text += fmt::format("{}... and {} more\n", indent, frames.size() - kShownFrames);
  }
  return text;
}

StackReader::StackReader(EventLoop& loop, const std::string& helper, const Target& target, Fd held,
                         Handler handler)
    : loop_(loop), handler_(std::move(handler)) {
  Pipe output = make_output_pipe();
  const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (access(helper.c_str(), X_OK) == 0) {
    ProcessSpec spec{
        .path = helper, .command = command_for(target), .environment = inherited_environment()};
    spec.stdin_fd = held ? held.get() : nothing.get();
    spec.stdout_fd = output.write_end.get();
    spec.stderr_fd = nothing.get();
    helper_ = start_process(spec);
  } else {
    text_ = fmt::format(R"({{"problem": "no process could be started to read its stack: {}"}})",
                        std::strerror(errno));
  }
  output_ = std::move(output.read_end);
  loop_.watch(output_.get(), [this] { read(); });
}

StackReader::~StackReader() {
  if (output_) loop_.forget(output_.get());
  const Fd& pidfd = helper_.pidfd;
  if (pidfd) syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

void StackReader::read() {
  char bytes[65536];
  const ssize_t length = read_some(output_.get(), std::as_writable_bytes(std::span(bytes)));
  if (length < 0 && errno == EAGAIN) return;
  if (length > 0 && text_.size() < kLongestText) {
    text_.append(bytes, static_cast<std::size_t>(length));
    return;
  }
  loop_.forget(output_.get());
  output_.reset();
  const Handler handler = std::move(handler_);  // the handler may destroy this object
  handler(parse_stacks(text_));
}

namespace {

constexpr std::size_t kAtOnce = 4;  // the most processes whose stacks are read at the same time

// Threads with the same frames.
struct Group {
  std::vector<std::string> frames;
  std::map<std::string, std::map<int, int>> threads;  // [name][rank]: number of threads
};

std::vector<Group> group_equal(const RankStacks& stacks) {
  std::vector<Group> groups;
  for (const auto& [rank, process] : stacks) {
    for (const ThreadFrames& thread : process.threads) {
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const Group& other) { return other.frames == thread.frames; });
      if (group == groups.end()) group = groups.insert(group, Group{thread.frames, {}});
      ++group->threads[thread.name][rank];
    }
  }
  return groups;
}

std::string heading(const Group& group) {
  std::string text;
  for (const auto& [name, counts] : group.threads) {
    std::vector<int> ranks;
    int most = 0;
    for (const auto& [rank, count] : counts) {
      ranks.push_back(rank);
      most = std::max(most, count);
    }
    text += fmt::format("{}{}, {} {}", text.empty() ? "" : "; ", ranks_text(ranks),
                        most == 1 ? "thread" : fmt::format("{} threads", most), name);
  }
  return text;
}

}  // namespace

std::string stacks_text(const RankStacks& stacks) {
  std::string text;
  for (const Group& group : group_equal(stacks)) {
    text += fmt::format(
        "  {}:\n{}", heading(group),
        group.frames.empty() ? "      (no frames)\n" : frames_text(group.frames, "      "));
  }
  std::map<std::string, std::vector<int>> problems;
  for (const auto& [rank, process] : stacks) {
    if (!process.problem.empty()) problems[process.problem].push_back(rank);
  }
  for (const auto& [problem, ranks] : problems) {
    text += fmt::format("  {}: {}\n", ranks_text(ranks), problem);
  }
  return text;
}

StackSurvey::StackSurvey(EventLoop& loop, std::string helper,
                         std::map<int, StackReader::Target> targets, Handler handler)
    : loop_(loop),
      helper_(std::move(helper)),
      handler_(std::move(handler)),
      waiting_(std::move(targets)) {
  start_more();
  if (reading_.empty() && !stacks_.empty()) {
    throw Error(ErrorCode::kSystem, stacks_.begin()->second.problem);
  }
}

std::vector<pid_t> StackSurvey::helpers() const {
  std::vector<pid_t> pids;
  for (const auto& [rank, reader] : reading_) pids.push_back(reader->helper());
  return pids;
}

// Does not throw if a helper cannot be started: handlers of the event loop also call this function,
// and an exception would end the loop.
void StackSurvey::start_more() {
  while (!waiting_.empty() && reading_.size() < kAtOnce) {
    const auto [rank, target] = *waiting_.begin();
    waiting_.erase(waiting_.begin());
    try {
      auto reader = std::make_unique<StackReader>(
          loop_, helper_, target, Fd(),
          [this, rank = rank](ProcessStacks stacks) { take(rank, std::move(stacks)); });
      reading_.emplace(rank, std::move(reader));
    } catch (const Error& error) {
      stacks_[rank].problem = fmt::format("its stack could not be read: {}", error.what());
    }
  }
}

void StackSurvey::take(int rank, ProcessStacks stacks) {
  stacks_[rank] = std::move(stacks);
  reading_.erase(rank);
  start_more();
  if (!reading_.empty()) return;
  const Handler handler = std::move(handler_);  // the handler may destroy this object
  const RankStacks all = std::move(stacks_);
  handler(all);
}

}  // namespace paceline::launcher

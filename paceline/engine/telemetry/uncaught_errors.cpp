#include "paceline/engine/telemetry/uncaught_errors.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <typeinfo>

#include <cxxabi.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/crash_reporter.h"

namespace paceline {
namespace {

constexpr std::chrono::seconds kLongestWrite{10};

constinit std::terminate_handler handler_before = nullptr;
constinit std::atomic_flag first_error = ATOMIC_FLAG_INIT;

std::string readable(const char* type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type, nullptr, nullptr, &status), std::free);
  return name ? name.get() : type;
}

// c10::Error: "TEXT\nException raised from F at FILE (most recent call first):\nframe #0: ...".
std::string without_frames(std::string text) {
  constexpr std::string_view kFrames = " (most recent call first):\nframe #0: ";
  text.resize(std::min(text.size(), text.find(kFrames)));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// A lock that another thread holds, perhaps forever, must not hold this one up.
void flush_stdout() {
  if (ftrylockfile(stdout) != 0) return;
  fflush_unlocked(stdout);
  funlockfile(stdout);
}

int exit_code_of_current() {
  if (!std::current_exception()) return EXIT_FAILURE;
  try {
    throw;
  } catch (const std::exception& error) {
    return exit_code_of(error);
  } catch (...) {
    return EXIT_FAILURE;
  }
}

// Empty without an exception, and for one that is not a std::exception.
std::string text_of_current() {
  if (!std::current_exception()) return "";
  try {
    throw;
  } catch (const std::exception& error) {
    return uncaught_text(typeid(error).name(), error.what(), log::rank());
  } catch (...) {
    return "";
  }
}

// Read at the end: a program may set it itself.
bool is_wanted() {
  const char* const value = std::getenv("PACELINE_CRASH_REPORT");
  return value == nullptr || std::string_view(value) != "0";
}

[[noreturn]] void on_terminate() {
  if (first_error.test_and_set()) {
    for (;;) pause();  // another thread ends the process
  }
  const std::string text = is_wanted() ? text_of_current() : "";
  if (text.empty()) {
    handler_before();
    std::abort();
  }
  flush_stdout();
  write_whole(STDERR_FILENO, std::as_bytes(std::span(text)), Deadline::after(kLongestWrite));
  show_stack_to_launcher();
  _exit(exit_code_of_current());
}

[[maybe_unused]] const bool kIsInstalled = (report_uncaught_errors(), true);

}  // namespace

std::string uncaught_text(const char* type, const std::string& what, int rank) {
  std::string text = without_frames(what);
  if (text.empty()) text = "it has no text";
  if (text == std::bad_alloc().what())
    text = "memory was refused; see ulimit -v and the size asked for";
  const std::string_view name = type;
  if (name != typeid(Error).name() && name != typeid(DamagedState).name())
    text = readable(type) + ": " + text;
  const bool names_rank = text.starts_with("rank ");
  const std::string who = rank < 0 || names_rank ? "" : "rank " + std::to_string(rank) + ": ";
  return "error: " + who + text + "\n";
}

void report_uncaught_errors() noexcept {
  if (std::get_terminate() != __gnu_cxx::__verbose_terminate_handler) return;
  handler_before = std::set_terminate(on_terminate);
}

}  // namespace paceline

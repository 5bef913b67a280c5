#include "paceline/engine/core/error.h"

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <typeinfo>
#include <utility>

#include <cxxabi.h>
#include <sys/resource.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kSystem:
      return "system";
  }
  return "unknown";
}

namespace {

bool is_empty(const ErrorContext& context) {
  return context.operation.empty() && context.group.empty() && context.ranks.empty() &&
         !context.deadline;
}

}  // namespace

Error::Error(ErrorCode code, const std::string& message, ErrorContext context)
    : std::runtime_error(message), code_(code) {
  if (!is_empty(context)) context_ = std::make_shared<const ErrorContext>(std::move(context));
}

std::string Error::operation() const { return context_ ? context_->operation : ""; }

std::string Error::group() const { return context_ ? context_->group : ""; }

std::vector<int> Error::ranks() const { return context_ ? context_->ranks : std::vector<int>(); }

std::optional<std::chrono::milliseconds> Error::deadline() const {
  return context_ ? context_->deadline : std::nullopt;
}

Error Error::reworded(const std::string& message) const {
  return Error(code_, message, context_ ? *context_ : ErrorContext());
}

Error Error::with(ErrorContext context) const {
  if (!operation().empty()) context.operation = operation();
  if (!group().empty()) context.group = group();
  if (!ranks().empty()) context.ranks = ranks();
  if (deadline()) context.deadline = deadline();
  return Error(code_, what(), std::move(context));
}

Error system_error(const std::string& what) { return system_error(what, errno); }

Error system_error(const std::string& what, int error_number) {
  return Error(ErrorCode::kSystem, what + ": " + describe_errno(error_number));
}

std::string describe_errno(int error_number) {
  std::string text = std::generic_category().message(error_number);
  rlimit limit{};
  if (error_number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += "; raise ulimit -n, which is now " + std::to_string(limit.rlim_cur);
  }
  return text;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text ? text.get() : name;
}

std::string describe_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return "an exception that is not a std::exception, of type " +
           (type == nullptr ? "unknown" : demangled(type->name()));
  }
}

namespace {

// Whether `text` begins with the name of a rank: "rank 3: ", "rank 1 (rank 3 of the world): ".
bool begins_with_rank(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  if (!text.starts_with(kRank)) return false;
  text.remove_prefix(kRank.size());
  const auto end = text.find_first_not_of("0123456789");
  if (end == 0 || end == std::string_view::npos) return false;
  text.remove_prefix(end);
  return text.starts_with(':') || (text.starts_with(" (rank ") &&
                                   text.substr(0, text.find(':')).ends_with(" of the world)"));
}

}  // namespace

Error reported_by(const std::string& who, const std::string& doing, const Error& error) {
  const std::string text = error.what();
  if (begins_with_rank(text)) return error;
  return error.reworded(who + ": " + doing + ": " + text);
}

std::string first_lines(std::string lines) {
  constexpr int kShown = 8;
  std::size_t at = lines.find('\n');
  for (int i = 0; i < kShown && at != std::string::npos; ++i) at = lines.find('\n', at + 1);
  if (at == std::string::npos) return lines;
  int others = 0;
  for (std::size_t i = at; i < lines.size(); ++i) others += lines[i] == '\n' ? 1 : 0;
  lines.erase(at);
  return lines + "\n  and " + counted(others, "other");
}

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const DamagedState*>(&error) != nullptr) return kStateDamaged;
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr) return EXIT_FAILURE;
  const bool is_of_use =
      known->code() == ErrorCode::kInvalid || known->code() == ErrorCode::kUnsupported;
  return is_of_use ? kExitUsage : EXIT_FAILURE;
}

namespace {

std::string number_in_world(int in_world) {
  return "rank " + std::to_string(in_world) + " of the world";
}

}  // namespace

std::string rank_name(int rank, int in_world) {
  const std::string name = "rank " + std::to_string(rank);
  return rank == in_world ? name : name + " (" + number_in_world(in_world) + ")";
}

std::string rank_name(int rank, int in_world, const std::string& host) {
  const std::string also = rank == in_world ? "" : number_in_world(in_world) + ", ";
  return "rank " + std::to_string(rank) + " (" + also + host + ")";
}

}  // namespace paceline

#include "apps/cli/flag_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"
#include "apps/cli/suggestion.h"

namespace paceline::apps {

namespace {

constexpr const char* kUsualFlagFile = "paceline.toml";
constexpr std::size_t kMaxFile = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw UsageError(fmt::format("{}: {}", where, launcher::neutralise(what)));
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

bool is_key(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_');
  });
}

// Reads the quoted string at the beginning of `text`. After the string, only a comment is allowed.
std::string take_string(std::string_view text, const std::string& where) {
  const char quote = text.front();
  std::string value;
  std::size_t at = 1;
  for (; at < text.size() && text[at] != quote; ++at) {
    const bool escaped = quote == '"' && text[at] == '\\';
    if (!escaped) {
      value += text[at];
      continue;
    }
    const char next = at + 1 < text.size() ? text[++at] : '\0';
    if (next != '"' && next != '\\') refuse(where, "only \" or \\ may follow a backslash");
    value += next;
  }
  if (at == text.size()) refuse(where, fmt::format("the string has no closing {}", quote));
  const auto rest = trimmed(text.substr(at + 1));
  if (!rest.empty() && rest.front() != '#') refuse(where, fmt::format("unexpected '{}'", rest));
  return value;
}

void take_value(FlagFileEntry& entry, std::string_view text, const std::string& where) {
  if (!text.empty() && (text.front() == '"' || text.front() == '\'')) {
    entry.value = take_string(text, where);
  } else {
    const auto bare = trimmed(text.substr(0, text.find('#')));
    entry.is_flag = bare == "true" || bare == "false";
    if (!entry.is_flag && !parse_number<double>(bare)) {
      refuse(where, fmt::format("'{}' is not a number, true, false or a string in quotes", bare));
    }
    entry.value = bare;
  }
  if (entry.value.empty()) refuse(where, fmt::format("{}: the value is empty", entry.key));
}

std::string take_section(std::string_view text, const std::string& where) {
  const auto end = text.find(']');
  const auto name = trimmed(text.substr(1, end == std::string_view::npos ? end : end - 1));
  const auto rest = end == std::string_view::npos ? "]" : trimmed(text.substr(end + 1));
  if (!is_key(name) || (!rest.empty() && rest.front() != '#')) {
    refuse(where, fmt::format("'{}' is not the name of a command in brackets", text));
  }
  if (name != "run" && name != "submit") {
    refuse(where, fmt::format("[{}] is neither [run] nor [submit]", name));
  }
  return std::string(name);
}

FlagFileEntry take_entry(std::string_view text, const std::string& command, int line,
                         const std::string& where) {
  const auto equals = text.find('=');
  FlagFileEntry entry{.command = command, .key = std::string(trimmed(text.substr(0, equals)))};
  entry.line = line;
  std::replace(entry.key.begin(), entry.key.end(), '_', '-');
  if (equals == std::string_view::npos || !is_key(entry.key)) {
    refuse(where, fmt::format("'{}' is not option = value", text));
  }
  if (command.empty()) refuse(where, "options belong below the name of their command: [run]");
  take_value(entry, trimmed(text.substr(equals + 1)), where);
  return entry;
}

std::string read_file(int fd, const std::string& path) {
  std::string text(kMaxFile + 1, '\0');
  const ssize_t length = read_whole(fd, std::as_writable_bytes(std::span(text)));
  if (length < 0) refuse(path, std::strerror(errno));
  if (length > static_cast<ssize_t>(kMaxFile)) refuse(path, "it is larger than 1 MiB");
  text.resize(static_cast<std::size_t>(length));
  return text;
}

struct stat status_of(int fd) {
  struct stat status {};
  fstat(fd, &status);
  return status;
}

constexpr const char* kForeign = "it belongs to another user, or every user may write to it";

// Whether the file, which can name programs to start, belongs neither to this user nor to root, or
// every user may write to it.
bool is_foreign(int fd) {
  const struct stat status = status_of(fd);
  const bool own = status.st_uid == geteuid() || status.st_uid == 0;
  return !own || (status.st_mode & S_IWOTH) != 0;
}

// The path that the option --config or its variable gives; "" if neither is set.
std::string named_path(const CommandLine& line) {
  for (const std::string& option : line.options) {
    if (option.starts_with("--config=")) return option.substr(std::strlen("--config="));
  }
  const char* variable = std::getenv("PET_CONFIG");
  return variable != nullptr ? variable : "";
}

struct Opened {
  Fd file;               // empty: there is nothing to read
  std::string obstacle;  // why the file is not read; empty if the user wants no file
};

// Opens the file. A device such as /dev/null means that the user wants no file.
Opened open_flag_file(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {Fd(), std::strerror(errno)};
  if (S_ISCHR(status_of(file.get()).st_mode)) return {};
  if (is_foreign(file.get())) return {Fd(), kForeign};
  return {std::move(file), ""};
}

void add_default(const CLI::App& app, const FlagFileEntry& entry, const std::string& where,
                 CommandLine& line) {
  const std::string name = "--" + entry.key;
  const CLI::Option* option = app.get_option_no_throw(name);
  if (name == "--help" || name == "--config") {
    refuse(where, fmt::format("{} can be given only on the command line", entry.key));
  }
  if (option == nullptr) {
    std::vector<std::string> known;
    for (const CLI::Option* one : app.get_options()) {
      for (const std::string& long_name : one->get_lnames()) known.push_back(long_name);
    }
    refuse(where, fmt::format("paceline {} has no option {}{}", entry.command, entry.key,
                              did_you_mean(entry.key, known)));
  }
  const bool flag = option->get_items_expected_max() == 0;
  if (flag != entry.is_flag) {
    refuse(where,
           fmt::format("{} must be {}", entry.key,
                       flag ? "true or false, without quotes" : "a number or a string in quotes"));
  }
  for (const CommandLine::Default& other : line.defaults) {
    if (other.name == name) refuse(where, fmt::format("{} is given twice", entry.key));
  }
  line.defaults.push_back({name, entry.value, flag, "file " + where});
}

}  // namespace

std::vector<FlagFileEntry> parse_flag_file(const std::string& text, const std::string& path) {
  std::vector<FlagFileEntry> entries;
  // Some editors begin a file with a byte order mark.
  std::istringstream lines(
      text.substr(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0));
  std::string command;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string where = fmt::format("{}, line {}", path, number);
    const auto content = trimmed(line);
    if (content.empty() || content.front() == '#') continue;
    if (content.front() == '[') {
      command = take_section(content, where);
    } else {
      entries.push_back(take_entry(content, command, number, where));
    }
  }
  return entries;
}

std::string usual_flag_file() { return open_flag_file(kUsualFlagFile).file ? kUsualFlagFile : ""; }

void read_flag_file(const CLI::App& app, const std::string& command, CommandLine& line) {
  if (line.has("--help")) return;
  const std::string named = named_path(line);
  const std::string path = named.empty() ? kUsualFlagFile : named;
  const auto [file, obstacle] = open_flag_file(path);
  if (!obstacle.empty() && !named.empty()) refuse(path, obstacle);
  if (!obstacle.empty() && access(kUsualFlagFile, F_OK) == 0) {
    say(fmt::format("paceline: warning: {} is not read: {}", path, obstacle));
  }
  if (!file) return;
  for (const FlagFileEntry& entry : parse_flag_file(read_file(file.get(), path), path)) {
    if (entry.command != command) continue;
    add_default(app, entry, fmt::format("{}, line {}", path, entry.line), line);
  }
}

}  // namespace paceline::apps

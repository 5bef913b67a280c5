#include "paceline/launcher/process/program_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "paceline/engine/core/error_text.h"

namespace paceline::launcher {

namespace {

// Files whose kind follows from the end of their name. In the messages, {} is the file.
struct KindOfFile {
  std::string_view end;
  std::string_view message;
};
constexpr std::string_view kSource =
    "'{}' is a source file: compile it, and run the program that the compiler makes";
constexpr std::string_view kBuild =
    "'{}' describes a build: build the program (cmake -B build && cmake --build build), and run "
    "what the build makes";
constexpr KindOfFile kKinds[] = {
    {".cpp", kSource},
    {".cc", kSource},
    {".cxx", kSource},
    {".c", kSource},
    {".C", kSource},
    {".cu", kSource},
    {".hip", kSource},
    {".h", kSource},
    {".hpp", kSource},
    {".cuh", kSource},
    {"CMakeLists.txt", kBuild},
    {"CMakeCache.txt", kBuild},
    {"CMakePresets.json", kBuild},
    {".cmake", kBuild},
    {"Makefile", kBuild},
    {".ninja", kBuild},
    {".ipynb",
     "'{0}' is a notebook: make a script of it (jupyter nbconvert --to script {0}), and run that"}};

// Scripts without a #! line, by the ends of their names.
struct Interpreter {
  std::string_view end, program;
};
constexpr Interpreter kInterpreters[] = {
    {".py", "python3"}, {".sh", "bash"}, {".pl", "perl"}, {".jl", "julia"}, {".lua", "lua"}};

// The first bytes of a file, filled up with zeros.
struct Head {
  std::array<char, sizeof(Elf64_Ehdr)> bytes{};
  std::size_t size = 0;

  explicit Head(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    file.read(bytes.data(), bytes.size());
    size = static_cast<std::size_t>(file.gcount());
  }
  bool begins_with(std::string_view magic) const {
    return std::string_view(bytes.data(), size).starts_with(magic);
  }
  bool is_binary() const { return begins_with(ELFMAG); }
};

// A message about a file that is not a program, whatever its permissions; empty if it may be a
// program. A shared library has no entry address.
std::string_view message_about_kind(const std::string& path, const Head& head) {
  if (head.is_binary()) {
    Elf64_Ehdr header;
    std::memcpy(&header, head.bytes.data(), sizeof header);
    if (header.e_type == ET_REL)
      return "'{}' is an object file: link it, and run the program that the linker makes";
    if (header.e_type == ET_CORE) return "'{}' is the core dump of a program that crashed";
    const bool is_wide = header.e_ident[EI_CLASS] == ELFCLASS64;
    if (is_wide && header.e_type == ET_DYN && header.e_entry == 0)
      return "'{}' is a shared library: run a program that is linked to it";
    return "";
  }
  if (head.begins_with("!<arch>\n"))
    return "'{}' is a static library: link it, and run the program that the linker makes";
  if (head.begins_with("#!")) return "";
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const KindOfFile& one) { return path.ends_with(one.end); });
  return kind == std::end(kKinds) ? "" : kind->message;
}

// A message about a file that may not be executed.
std::string_view message_about_permission(const std::string& path, const Head& head,
                                          mode_t permissions) {
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0)
    return "'{}' is in a file system from which nothing may be executed (mounted noexec): copy the "
           "program elsewhere";
  if ((permissions & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0)
    return "'{}' may be executed by other users, but not by this one (see ls -l)";
  // A linker sets the permission last, so the linker of such a file is still running or has failed.
  if (head.size == 0 || head.is_binary())
    return "'{0}' may not be executed: it is being linked, or its build has failed; start it when "
           "the build has ended (a finished program that was copied without its permissions: "
           "chmod +x {0})";
  if (head.begins_with("#!")) return "'{0}' may not be executed (make it executable: chmod +x {0})";
  return "'{}' is not a program: it begins neither like a binary nor with a #! line";
}

std::string with_path(std::string_view message, const std::string& path) {
  return fmt::format(fmt::runtime(message), path);
}

// Why the file at `path` cannot be executed; empty if it can be executed or does not exist.
std::string why_not(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno != EACCES) return "";
    return with_path("a folder in the path '{}' may not be searched by this user", path);
  }
  if (S_ISDIR(status.st_mode))
    return with_path("'{}' is a directory, not a program: name the program in it", path);
  if (!S_ISREG(status.st_mode)) return with_path("'{}' is not a file", path);
  const Head head(path);
  if (const auto message = message_about_kind(path, head); !message.empty())
    return with_path(message, path);
  if (access(path.c_str(), X_OK) == 0) return "";
  for (const auto& [end, program] : kInterpreters) {
    if (path.ends_with(end) && !head.begins_with("#!"))
      return fmt::format("'{0}' is a script: start it with its interpreter, for example {1} {0}",
                         path, program);
  }
  return with_path(message_about_permission(path, head, status.st_mode), path);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string checked_path(const std::string& path) {
  const std::string reason = why_not(path);
  if (!reason.empty()) throw ProgramError(kExitNotExecutable, reason);
  if (!exists(path)) throw ProgramError(kExitNotFound, fmt::format("'{}' does not exist", path));
  return path;
}

}  // namespace

std::string own_path() {
  const char* path = std::getenv("PATH");
  return path != nullptr ? path : "";
}

std::string find_program(const std::string& name, const std::string& path) {
  if (name.empty()) throw ProgramError(kExitNotFound, "the program's name is empty");
  if (name.find('/') != std::string::npos) return checked_path(name);
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (exists(candidate) && why_not(candidate).empty()) return candidate;
  }
  std::string message = fmt::format("'{}' was not found in PATH", name);
  if (exists("./" + name)) {
    const std::string reason = why_not("./" + name);
    message += reason.empty() ? fmt::format("; did you mean ./{}?", name) : ", and " + reason;
  }
  throw ProgramError(kExitNotFound, message);
}

}  // namespace paceline::launcher

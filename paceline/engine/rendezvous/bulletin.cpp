#include "paceline/engine/rendezvous/bulletin.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/file_draft.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/log.h"

namespace paceline {
namespace {

struct Boards {
  std::vector<std::string> directories;  // in the order in which rank 0 tries them
  std::string problem;                   // why XDG_RUNTIME_DIR is not among them
};

// Every rank of this user on this host finds the same boards.
Boards boards_for(const GetVariable& variable) {
  Boards boards;
  const auto runtime = variable("XDG_RUNTIME_DIR");
  if (runtime && !runtime->empty()) {
    struct stat status {};
    if (::stat(runtime->c_str(), &status) != 0) {
      boards.problem = fmt::format("XDG_RUNTIME_DIR={}: {}", *runtime, std::strerror(errno));
    } else if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
      boards.problem =
          fmt::format("XDG_RUNTIME_DIR={} is not a directory of user {}", *runtime, ::geteuid());
    } else {
      boards.directories.push_back(*runtime + "/paceline");
    }
  }
  boards.directories.push_back(fmt::format("/tmp/paceline-{}", ::geteuid()));
  return boards;
}

// False when it does not exist. Error(kInvalid) when others can reach it.
bool is_private_directory(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    throw system_error("stat " + path);
  }
  check(
      S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
      "{} must be a directory of user {} that nobody else may enter (mode 0700): remove it or set "
      "XDG_RUNTIME_DIR",
      path, ::geteuid());
  return true;
}

void make_private_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw system_error("mkdir " + path);
  if (!is_private_directory(path)) throw system_error("stat " + path);
}

bool is_older(const struct stat& one, const struct stat& other) {
  const auto moment = [](const struct stat& status) {
    return std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  };
  return moment(one) < moment(other);
}

std::string file_name(std::string job) {
  for (char& c : job) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return job.substr(0, 200) + ".job";
}

}  // namespace

Bulletin::Bulletin(const GetVariable& variable, const std::string& job) {
  Boards boards = boards_for(variable);
  problem_ = std::move(boards.problem);
  for (const std::string& directory : boards.directories) {
    is_private_directory(directory);
    places_.push_back(directory + "/" + file_name(job));
  }
  path_ = places_.front();
}

void Bulletin::publish(const Endpoint& endpoint, const Secret& secret) {
  const std::string text = to_string(endpoint) + " " + secret.to_hex() + "\n";
  for (const std::string& place : places_) {
    try {
      make_private_directory(place.substr(0, place.rfind('/')));
      replace_file(place, text, 0600);
      path_ = place;
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem || place == places_.back()) throw;
      problem_ = error.what();
    }
  }
  for (const std::string& place : places_) {
    if (place != path_) ::unlink(place.c_str());  // an earlier job's, which ranks would read first
  }
  if (!problem_.empty()) {
    log::warning(fmt::format("{}; the ranks of this host meet by {} instead", problem_, path_));
  }
}

std::optional<JobNotice> Bulletin::read() const {
  Fd newest;
  std::string path;
  struct stat status {
  }, newest_status{};
  for (const std::string& place : places_) {
    if (!is_private_directory(place.substr(0, place.rfind('/')))) continue;
    Fd file(::open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file && errno == ENOENT) continue;
    if (!file || ::fstat(file.get(), &status) != 0) throw system_error("opening " + place);
    if (newest && !is_older(newest_status, status)) continue;
    newest = std::move(file);
    newest_status = status;
    path = place;
  }
  if (!newest) return std::nullopt;
  char buffer[512];
  const ssize_t got = read_whole(newest.get(), std::as_writable_bytes(std::span(buffer)));
  if (got < 0) throw system_error("reading " + path);
  const std::string text(buffer, static_cast<std::size_t>(got));
  const auto space = text.find(' ');
  check(space != std::string::npos, "{} is not a notice of Paceline; remove it", path);
  return JobNotice{parse_endpoint(text.substr(0, space), path),
                   Secret::from_text(text.substr(space + 1))};
}

void Bulletin::remove() const noexcept { ::unlink(path_.c_str()); }

}  // namespace paceline

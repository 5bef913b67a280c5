#include "paceline/rendezvous/bulletin.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/fd.h"
#include "paceline/core/io.h"

namespace paceline {
namespace {

std::string directory_for(const GetVariable& variable) {
  const auto runtime = variable("XDG_RUNTIME_DIR");
  struct stat status {};
  const bool usable = runtime && !runtime->empty() && ::stat(runtime->c_str(), &status) == 0 &&
                      S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
  return usable ? *runtime + "/paceline" : fmt::format("/tmp/paceline-{}", ::geteuid());
}

void make_private_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw system_error("mkdir " + path);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) throw system_error("stat " + path);
  check(
      S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
      "{} must be a directory of user {} that nobody else may enter (mode 0700): remove it or set "
      "XDG_RUNTIME_DIR",
      path, ::geteuid());
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
  const auto directory = directory_for(variable);
  make_private_directory(directory);
  path_ = directory + "/" + file_name(job);
}

void Bulletin::publish(const Endpoint& endpoint, const Secret& secret) const {
  const std::string draft = path_ + "." + random_hex(8);
  const Fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw system_error("creating " + draft);
  try {
    const std::string text = to_string(endpoint) + " " + secret.to_hex() + "\n";
    if (!write_whole(file.get(), as_bytes(text))) throw system_error("writing " + draft);
    if (::rename(draft.c_str(), path_.c_str()) != 0) throw system_error("renaming to " + path_);
  } catch (const Error&) {
    ::unlink(draft.c_str());
    throw;
  }
}

std::optional<JobNotice> Bulletin::read() const {
  const Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) throw system_error("opening " + path_);
  char buffer[512];
  const ssize_t got = read_whole(file.get(), std::as_writable_bytes(std::span(buffer)));
  if (got < 0) throw system_error("reading " + path_);
  const std::string text(buffer, static_cast<std::size_t>(got));
  const auto space = text.find(' ');
  check(space != std::string::npos, "{} is not a notice of Paceline; remove it", path_);
  return JobNotice{parse_endpoint(text.substr(0, space), path_),
                   Secret::from_text(text.substr(space + 1))};
}

void Bulletin::remove() const noexcept { ::unlink(path_.c_str()); }

}  // namespace paceline

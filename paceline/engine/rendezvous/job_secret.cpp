#include "paceline/engine/rendezvous/job_secret.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/rendezvous/variables.h"

namespace paceline {
namespace {

// By offset: several processes share the descriptor's position.
Secret read_secret(int fd, const std::string& source) {
  std::array<char, 4096> buffer;
  const ssize_t got = read_whole_at(fd, 0, std::as_writable_bytes(std::span(buffer)));
  check(got >= 0, "{} cannot be read: {}", source, std::strerror(errno));
  const Secret secret =
      Secret::from_text(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  ::explicit_bzero(buffer.data(), buffer.size());
  return secret;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

Secret read_descriptor(int fd) {
  check(
      is_open(fd),
      "the descriptor of PACELINE_SECRET_FD={} is closed: something between the launcher and this "
      "program closed it, as Python's subprocess does. Let it pass (subprocess: close_fds=False, "
      "or "
      "pass_fds=[int(os.environ['PACELINE_SECRET_FD'])]), or give the launcher a private file by "
      "PACELINE_SECRET_FILE, which the ranks read then",
      fd);
  Secret secret = read_secret(fd, fmt::format("the descriptor of PACELINE_SECRET_FD={}", fd));
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags >= 0) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  return secret;
}

Secret read_private_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check(static_cast<bool>(file), "PACELINE_SECRET_FILE={} cannot be opened: {}", path,
        std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error("stat " + path);
  check(S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
        "PACELINE_SECRET_FILE={} must be a file of user {} that nobody else can read: chmod 600 {}",
        path, ::geteuid(), path);
  return read_secret(file.get(), "PACELINE_SECRET_FILE=" + path);
}

}  // namespace

std::optional<Secret> find_job_secret(const GetVariable& variable) {
  const auto fd = read_number(variable, "PACELINE_SECRET_FD");
  const auto path = variable("PACELINE_SECRET_FILE");
  if (fd && (is_open(*fd) || !path)) return read_descriptor(*fd);
  if (path) return read_private_file(*path);
  return std::nullopt;
}

}  // namespace paceline
